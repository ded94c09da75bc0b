"""A cluster's state in a file, for simulations elsewhere: machines, GPUs, pods, bookings, past use, and no names.

Nodes, pods and people are numbered. Nothing of a pod is kept but what it asks for and holds, when it was created, whose
it is and for how long it has been idle; no labels, no annotations, no environment.

The form says the limits of each field; what several fields say together is checked when it is read. Hours count from
the moment of the snapshot: what was before it is negative.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any

import msgspec

from carrel.ids import NO_NODE, NO_PERSON, GpuUuid, NodeName, PersonId, PodUid
from carrel.ledger.gpus import Gpu, MiB, MigSlice, Node, physical_index, place_name
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import (
    ANY_GPU,
    Amount,
    GpuPolicy,
    GpuSelector,
    Memory,
    Portion,
    Request,
    Topology,
    TopologyMode,
)
from carrel.parsing import Malformed
from carrel.parsing.time import instant
from carrel.parsing.validation import mistake_in
from carrel.simulation.idle_pods import FOUR_WEEKS_H
from carrel.simulation.workload import HOUR_S, BookingWish, PastUse, SimulatedCluster, SimulatedPod, Trace

FORM = "carrel-snapshot/3"
MOST = 1 << 60
"""As `machines.ENOUGH`: larger amounts of CPU, memory and GPUs need not be told apart."""
MOST_GPU_MEMORY = 16 * 1024 * 1024
CENTURY_H = 100 * 365.25 * 24
"""No date that a simulation counts with leaves the calendar."""

_TEXT = msgspec.Meta(min_length=1)
Text = Annotated[str, _TEXT]
Index = Annotated[int, msgspec.Meta(ge=0, le=9999)]
Size = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
GpuMemory = Annotated[int, msgspec.Meta(ge=1, le=MOST_GPU_MEMORY)]
Hours = Annotated[float, msgspec.Meta(ge=-CENTURY_H, le=CENTURY_H)]
Length = Annotated[float, msgspec.Meta(gt=0, le=CENTURY_H)]
IdleTime = Annotated[float, msgspec.Meta(ge=0, le=CENTURY_H)]
PastHour = Annotated[int, msgspec.Meta(ge=-FOUR_WEEKS_H, le=-1)]
GpuHours = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
"""Within one hour."""
Profile = Annotated[str, msgspec.Meta(max_length=64)]
Policy = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(each.value for each in GpuPolicy)})$")]
Mode = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(each.value for each in TopologyMode)})$")]


class SavedPart(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """A part of the file. What is at its default is not written."""


class SavedGpu(SavedPart):
    index: Index
    model: str
    memory_mib: GpuMemory = msgspec.field(name="memoryMiB")
    island: str = ""
    bandwidth_gbps: Size = msgspec.field(name="bandwidthGBps", default=0)
    usable: bool = True
    profile: Profile = ""
    """Of a MIG slice; empty: it is a physical GPU."""
    as_gpu: bool = False
    """Its node advertises the slice as a GPU."""


class SavedNode(SavedPart):
    name: Annotated[NodeName, _TEXT]
    gpus: Annotated[list[SavedGpu], msgspec.Meta(min_length=1)]
    cpu_milli: Size | None = None
    """Of CPU and memory: both, or none is known."""
    memory_mib: Size | None = msgspec.field(name="memoryMiB", default=None)


class SavedNodeSet(SavedPart):
    """The nodes on which some pods may run, by labels, affinity and taints."""

    name: Text
    nodes: list[NodeName]


class SavedRequest(SavedPart):
    gpus: Count
    part: str = ""
    """Of each GPU, as a fraction; "1" is the whole GPU."""
    memory_mib: Count | None = msgspec.field(name="memoryMiB", default=None)
    """Of each GPU; in place of `part`."""
    model: str = ""
    models: tuple[str, ...] = ()
    """One of these is in the name of the model. Empty: any model."""
    not_models: tuple[str, ...] = ()
    policy: Policy = GpuPolicy.PACK.value
    prefer_ids: tuple[Size, ...] = ()
    topology: Mode = TopologyMode.PREFERRED.value
    min_bandwidth_gbps: Size = msgspec.field(name="minBandwidthGBps", default=0)
    node_set: str = ""
    """Empty: it may run on every node."""
    slices: Profile = ""
    """The profile of MIG slices, or `any`; empty: GPUs."""


class SavedPod(SavedPart):
    name: Annotated[PodUid, _TEXT]
    arrives_hours: Hours
    owner: PersonId = NO_PERSON
    lasts_hours: Length | None = None
    """None: for ever."""
    cpu_milli: Size = 0
    memory_mib: Size = msgspec.field(name="memoryMiB", default=0)
    request: SavedRequest | None = None
    """None: it asks for no GPU."""
    node: NodeName = NO_NODE
    """Where it runs; empty: it waits."""
    held: tuple[Index, ...] = ()
    """The indexes of the GPUs that it holds there."""
    idle_hours: IdleTime | None = None
    """For how long these have been idle; 0: they are active. None: nobody knows."""


class SavedBooking(SavedPart):
    user: PersonId
    model: str
    gpus: Count
    asked_hours: Hours
    start_hours: Hours
    lasts_hours: Length


class SavedUse(SavedPart):
    """What a person's pods did with GPUs of one model in the last four weeks, hour by hour."""

    user: PersonId
    model: str
    first_hour: PastHour
    """-1 is the last whole hour before the snapshot."""
    held: Annotated[list[GpuHours], msgspec.Meta(min_length=1)]
    """In GPU hours; the others say of it what is known."""
    active: list[GpuHours]
    idle: list[GpuHours]


class SavedSnapshot(SavedPart):
    form: str
    taken: str
    nodes: list[SavedNode]
    pods: list[SavedPod]
    bookings: list[SavedBooking]
    node_sets: list[SavedNodeSet] = []
    use: list[SavedUse] = []


ROUNDED = 0.01
"""GPU hours: each of the sums of an hour is rounded."""
BOOKS_AGAIN_S = 8 * 7 * 24 * HOUR_S
"""How long people go on booking. A snapshot has one booking of a person, and rules about the next one would have
nothing to act on; in eight weeks most people book several times, also with a cooldown of two weeks."""
NOT_IN_USE = "it was not in use when the snapshot was taken"
_PART = re.compile(r"[0-9]{1,32}([/.][0-9]{1,32})?", re.ASCII)
"""Without the exponent that Fraction would read: it could ask for more digits than there is memory."""


# --- writing ---------------------------------------------------------------------------------------------------------


def written(cluster: SimulatedCluster, workload: Trace, taken: str) -> Any:
    """As JSON objects. Labels of nodes are the sets in which they are: their keys count, not their values."""
    indexes = {gpu.uuid: gpu.index for node in cluster.nodes for gpu in node.gpus}
    sets = [
        SavedNodeSet(name, [node.name for node in cluster.nodes if name in node.labels])
        for name in cluster.labels_of_added
    ]
    bookings = [
        SavedBooking(
            each.user,
            each.model,
            min(each.gpus, MOST),
            each.asked_s / HOUR_S,
            each.start_s / HOUR_S,
            each.lasts_s / HOUR_S,
        )
        for each in workload.wishes
    ]
    nodes = [_saved_node(node, cluster.machines.get(node.name)) for node in cluster.nodes]
    pods = [_saved_pod(pod, indexes) for pod in workload.pods]
    use = [
        SavedUse(each.person, each.model, each.first_hour, list(each.held), list(each.active), list(each.idle))
        for each in workload.past_use
    ]
    return msgspec.to_builtins(SavedSnapshot(FORM, taken, nodes, pods, bookings, sets, use))


def _saved_node(node: Node, machine: MachineRoom | None) -> SavedNode:
    gpus = [
        SavedGpu(
            gpu.index,
            gpu.model,
            min(int(gpu.memory), MOST_GPU_MEMORY),
            gpu.island,
            min(gpu.bandwidth_gbps, MOST),
            not (gpu.unusable or node.unusable),
            gpu.slice.profile if gpu.slice else "",
            gpu.slice is not None and gpu.slice.is_gpu,
        )
        for gpu in node.gpus
    ]
    if machine is None:
        return SavedNode(node.name, gpus)
    return SavedNode(node.name, gpus, min(machine.cpu_milli, MOST), min(machine.memory_mib, MOST))


def _saved_pod(pod: SimulatedPod, indexes: Mapping[GpuUuid, int]) -> SavedPod:
    return SavedPod(
        pod.name,
        pod.arrives_s / HOUR_S,
        pod.owner,
        None if pod.lasts_s is None else pod.lasts_s / HOUR_S,
        min(pod.machine.cpu_milli, MOST),
        min(pod.machine.memory_mib, MOST),
        _saved_request(pod.request) if pod.request is not None else None,
        pod.node,
        tuple(indexes[uuid] for uuid in pod.held),
        None if pod.idle_s is None else min(pod.idle_s / HOUR_S, CENTURY_H),
    )


def _saved_request(request: Request) -> SavedRequest:
    amount = request.amount
    return SavedRequest(
        min(request.gpus, MOST),
        str(amount.part) if isinstance(amount, Portion) else "",
        min(amount.mib, MOST) if isinstance(amount, Memory) else None,
        request.model,
        request.selector.models,
        request.selector.not_models,
        request.policy.value,
        tuple(min(index, MOST) for index in request.prefer_ids),
        request.topology.mode.value,
        min(request.topology.min_bandwidth_gbps, MOST),
        next((name for name, _ in request.node_labels), ""),
        request.slices,
    )


# --- reading ---------------------------------------------------------------------------------------------------------


def read(document: object, source: str) -> tuple[SimulatedCluster, Trace]:
    """`source` is the name of the file, for messages. Raises `Malformed`."""
    saved = _checked_form(document, source)
    instant(saved.taken, source, "taken")
    _refuse_twice(source, "nodes", (node.name for node in saved.nodes))
    _refuse_twice(source, "nodeSets", (each.name for each in saved.node_sets))
    _refuse_twice(source, "pods", (pod.name for pod in saved.pods))
    cluster = _cluster(saved, source)
    pods = tuple(_Pods(saved, cluster, source).read())
    wishes = tuple(
        BookingWish(
            each.user,
            each.model,
            each.gpus,
            each.asked_hours * HOUR_S,
            each.start_hours * HOUR_S,
            each.lasts_hours * HOUR_S,
            is_made=True,
        )
        for each in saved.bookings
    )
    past_use = tuple(_past_use(saved, source))
    return cluster, Trace(pods, wishes, past_use, begins_s=0.0, books_again_until_s=BOOKS_AGAIN_S)


def _checked_form(document: object, source: str) -> SavedSnapshot:
    form = document.get("form") if isinstance(document, Mapping) else document
    if isinstance(form, str) and form.startswith("carrel-snapshot/") and form != FORM:
        right = f"{FORM}: this one is of another version of Carrel; take a new snapshot with `carrel snapshot`"
        raise Malformed(source, "form", form, right)
    if form != FORM:
        raise Malformed(source, "form", form, f"{FORM}, as `carrel snapshot` writes it")
    try:
        return msgspec.convert(document, SavedSnapshot)
    except msgspec.ValidationError as error:
        wrong = mistake_in(document, str(error))
        where = wrong.path.removeprefix("$").removeprefix(".") or "the file"
        raise Malformed(source, where, wrong.value, wrong.expected) from None


def _refuse_twice(source: str, where: str, names: Iterable[object], field: str = "name") -> None:
    seen = set()
    for position, name in enumerate(names):
        if name in seen:
            raise Malformed(source, f"{where}[{position}].{field}", name, "one that no other has")
        seen.add(name)


def _cluster(saved: SavedSnapshot, source: str) -> SimulatedCluster:
    names = {node.name for node in saved.nodes}
    sets: dict[NodeName, dict[str, str]] = {name: {} for name in names}
    for number, each in enumerate(saved.node_sets):
        for position, name in enumerate(each.nodes):
            if name not in names:
                raise Malformed(source, f"nodeSets[{number}].nodes[{position}]", name, "the name of one of the nodes")
            sets[name][each.name] = ""
    machines = {}
    for number, node in enumerate(saved.nodes):
        _refuse_twice(source, f"nodes[{number}].gpus", (gpu.index for gpu in node.gpus), "index")
        if node.cpu_milli is not None and node.memory_mib is not None:
            machines[node.name] = MachineRoom(node.cpu_milli, node.memory_mib)
        elif (node.cpu_milli is None) is not (node.memory_mib is None):
            missing = "cpuMilli" if node.cpu_milli is None else "memoryMiB"
            raise Malformed(source, f"nodes[{number}].{missing}", None, "a whole number: both are known, or none")
    nodes = tuple(_node(node, sets[node.name]) for node in saved.nodes)
    return SimulatedCluster(nodes, machines, {each.name: "" for each in saved.node_sets})


def _node(node: SavedNode, labels: Mapping[str, str]) -> Node:
    gpus = tuple(
        Gpu(
            place_name(node.name, gpu.index),
            node.name,
            gpu.index,
            gpu.model,
            MiB(gpu.memory_mib),
            gpu.island,
            gpu.bandwidth_gbps,
            "" if gpu.usable else NOT_IN_USE,
            slice=_slice(gpu, node.name) if gpu.profile else None,
        )
        for gpu in node.gpus
    )
    return Node(node.name, gpus, labels)


def _slice(gpu: SavedGpu, node: NodeName) -> MigSlice:
    parent = physical_index(gpu.index)
    return MigSlice(gpu.profile, place_name(node, parent), parent, MiB(0), gpu.as_gpu)


def _past_use(saved: SavedSnapshot, source: str) -> Iterator[PastUse]:
    _refuse_twice(source, "use", (f"{each.user}, {each.model}" for each in saved.use), "user")
    for number, each in enumerate(saved.use):
        where, hours = f"use[{number}]", len(each.held)
        if hours > -each.first_hour:
            right = f"at most {-each.first_hour}, as hours have passed since firstHour"
            raise Malformed(source, f"{where}.held", f"{hours} hours", right)
        for name, sums in (("active", each.active), ("idle", each.idle)):
            if len(sums) != hours:
                raise Malformed(source, f"{where}.{name}", f"{len(sums)} hours", f"{hours}, as in held")
        for hour, (held, active, idle) in enumerate(zip(each.held, each.active, each.idle, strict=True)):
            if active + idle > held + ROUNDED:
                right = f"at least {active + idle:g}, which were active and idle"
                raise Malformed(source, f"{where}.held[{hour}]", held, right)
        yield PastUse(each.user, each.model, each.first_hour, tuple(each.held), tuple(each.active), tuple(each.idle))


class _Pods:
    """Counts what the pods hold, so that no GPU is held more than it has."""

    def __init__(self, saved: SavedSnapshot, cluster: SimulatedCluster, source: str) -> None:
        self._pods = saved.pods
        self._sets = {each.name for each in saved.node_sets}
        self._source = source
        self._nodes = {node.name: {gpu.index: gpu for gpu in node.gpus} for node in cluster.nodes}
        self._free = {gpu.uuid: int(gpu.memory) for node in cluster.nodes for gpu in node.gpus}

    def read(self) -> Iterator[SimulatedPod]:
        for number, pod in enumerate(self._pods):
            where = f"pods[{number}]"
            request = self._request(pod.request, f"{where}.request") if pod.request is not None else None
            if pod.node and pod.node not in self._nodes:
                raise Malformed(self._source, f"{where}.node", pod.node, "the name of one of the nodes")
            yield SimulatedPod(
                pod.name,
                request,
                MachineRoom(pod.cpu_milli, pod.memory_mib),
                pod.owner,
                pod.arrives_hours * HOUR_S,
                None if pod.lasts_hours is None else pod.lasts_hours * HOUR_S,
                pod.node,
                tuple(self._held(pod, request, where)),
                self._idle_s(pod, where),
            )

    def _idle_s(self, pod: SavedPod, where: str) -> float | None:
        if pod.idle_hours is None:
            return None
        if not pod.held:
            raise Malformed(self._source, f"{where}.idleHours", pod.idle_hours, "nothing, because it holds no GPU")
        return pod.idle_hours * HOUR_S

    def _held(self, pod: SavedPod, request: Request | None, where: str) -> Iterator[GpuUuid]:
        wanted = request.gpus if request is not None and pod.node else 0
        if len(pod.held) != wanted:
            right = f"{wanted} indexes: as many as `request.gpus` of a pod with a node, else none"
            raise Malformed(self._source, f"{where}.held", list(pod.held), right)
        for position, index in enumerate(pod.held):
            gpu = self._nodes[pod.node].get(index)
            place = f"{where}.held[{position}]"
            if gpu is None:
                raise Malformed(self._source, place, index, f"the index of a GPU of {pod.node}")
            if index in pod.held[:position]:
                raise Malformed(self._source, place, index, "each GPU once")
            self._take(gpu, request.amount.on(gpu.memory) if request is not None else 0, place)
            yield gpu.uuid

    def _take(self, gpu: Gpu, mib: int, place: str) -> None:
        if mib > self._free[gpu.uuid]:
            free = f"a GPU with {mib:,} MiB free; {gpu} has {self._free[gpu.uuid]:,} MiB that no pod before holds"
            raise Malformed(self._source, place, gpu.index, free)
        self._free[gpu.uuid] -= mib

    def _request(self, request: SavedRequest, where: str) -> Request:
        if request.node_set and request.node_set not in self._sets:
            raise Malformed(self._source, f"{where}.nodeSet", request.node_set, "the name of one of the nodeSets")
        return Request(
            request.gpus,
            self._amount(request, where),
            request.model,
            GpuSelector(request.models, request.not_models) if request.models or request.not_models else ANY_GPU,
            GpuPolicy(request.policy),
            request.prefer_ids,
            Topology(TopologyMode(request.topology), request.min_bandwidth_gbps),
            frozenset({(request.node_set, "")} if request.node_set else ()),
            slices=request.slices,
        )

    def _amount(self, request: SavedRequest, where: str) -> Amount:
        if request.memory_mib is not None:
            if request.part:
                raise Malformed(self._source, f"{where}.part", request.part, "nothing beside memoryMiB")
            return Memory(MiB(request.memory_mib))
        try:
            part = Fraction(request.part if _PART.fullmatch(request.part) else 0)
        except ZeroDivisionError:
            part = Fraction(0)
        if not 0 < part <= 1:
            right = 'a part of a GPU, as "1", "1/2" or "0.5", more than 0 and at most 1; or memoryMiB in its place'
            raise Malformed(self._source, f"{where}.part", request.part, right)
        return Portion(part)
