"""What pods have asked for lately: the mix of requests for which free GPUs should stay usable.

Each pod counts once, however often it is tried. A request weighs half as much after `HALF_LIFE` further pods, so the
mix follows what people do, and what it remembers is bounded. After a restart it is learnt again from the pods that
exist. What no node could serve, were it empty, is not in the mix: room that is kept for it helps nobody, and a pod that
asks for a million GPUs would outweigh all others.

The mix that scoring uses is replaced only when pods ask for something else, or when other GPUs are there: every
replacement makes all costs that were counted with the old one void.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from carrel.ids import NO_POD, HolderId
from carrel.ledger.gpus import MiB, Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import NodeRoom, fit_test, summarise
from carrel.ledger.requests import Memory, Request

HALF_LIFE = 1000
"""Pods. About 1,400 of them count then: enough to know the mix, few enough to follow it when it changes."""
REMEMBERED_PODS = 4000
"""Pods that are known to have been counted. What is older hardly weighs, and may be counted again."""
TYPICAL = 128
"""How many different requests are weighed; the rare rest would cost time and change little."""
RECOUNT = 64
"""Pods after which it is looked at whether the mix has changed. Before there are so many: each time it has doubled."""
DIFFERENT = 0.1
"""Which part of the mix must be other requests than before, or of the GPUs other ones, so that they count as changed.
Less is chance."""
SCALE_LIMIT = 1e100
DIGITS = 3
"""To which it is counted how much more a GPU is wanted. More would let rounding errors decide between nodes."""

GpuKind = tuple[str, MiB]
"""Model and memory."""


@dataclass(frozen=True, slots=True)
class Typical:
    """One kind of request of the mix."""

    request: Request
    cpu_milli: int
    weight: float
    """Its part of the mix; all parts make one."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The most frequent requests, how much CPU and memory goes with a GPU, and which GPUs are wanted most."""

    typical: Sequence[Typical] = ()
    cpu_milli_per_gpu: float = 0.0
    memory_mib_per_gpu: float = 0.0
    wanted_more: Mapping[GpuKind, float] = field(default_factory=dict)
    """By how much more than the average GPU one of a kind is wanted; those that are not in it: as the average."""


_Parts = dict[tuple[Request, MachineRoom], float]
"""How much each kind of request is of a mix."""


class Demand:
    """Counts what pods ask for."""

    def __init__(
        self, ledger: Ledger | None = None, machines: Machines | None = None, half_life: int = HALF_LIFE
    ) -> None:
        """`ledger` and `machines` say what there is; where no node is known, everything could be served."""
        self._ledger = ledger or Ledger()
        self._machines = machines or Machines()
        self._growth = 2 ** (1 / half_life)
        self._step = 1.0  # how much the next pod weighs: instead of all others becoming lighter, it becomes heavier
        self._weights: _Parts = {}
        self._counted: OrderedDict[HolderId, None] = OrderedDict()
        self._pods = 0
        self._next_look = 1
        self._used: _Parts = {}
        self._inventory_version = 0
        self._there: tuple[Counter[GpuKind], Sequence[NodeRoom]] = (Counter(), ())  # as of that version
        self._gpus: Counter[GpuKind] = Counter()  # how many usable ones there were when the mix was made
        self._mix = Mix()

    def saw(self, request: Request, machine: MachineRoom = NOTHING, uid: HolderId = NO_POD) -> None:
        """A pod asks for that, and for so much of the machine. With its uid it counts once, however often seen."""
        if uid in self._counted:
            return
        if request.gang is not None or request.selector.names_uuids or request.node_labels:
            # Without what only this pod asks for.
            general = request.selector.without_uuids()
            request = replace(request, gang=None, selector=general, node_labels=frozenset())
        if uid:
            self._counted[uid] = None
        if len(self._counted) > REMEMBERED_PODS:
            self._counted.popitem(last=False)
        self._weights[request, machine] = self._weights.get((request, machine), 0.0) + self._step
        self._step *= self._growth
        if self._step > SCALE_LIMIT:
            self._forget_the_lightest()
        self._pods += 1
        if self._pods >= self._next_look:
            self._next_look = self._pods + min(self._pods, RECOUNT)
            self._look()

    def has_counted(self, uid: HolderId) -> bool:
        return uid in self._counted

    @property
    def mix(self) -> Mix:
        """What scoring should use at the moment; the same object as long as that is the same."""
        if self._ledger.inventory_version - self._inventory_version > DIFFERENT * len(self._ledger.rooms):
            self._look()
        return self._mix

    def _forget_the_lightest(self) -> None:
        self._weights = {kind: weight / self._step for kind, weight in self._weights.items()}
        self._weights = {kind: weight for kind, weight in self._weights.items() if weight > 1 / SCALE_LIMIT}
        self._step = 1.0

    def _look(self) -> None:
        """Makes another mix, if pods ask for something else than before or other GPUs are there."""
        if self._inventory_version != self._ledger.inventory_version:
            self._inventory_version, self._there = self._ledger.inventory_version, _inventory(self._ledger)
        gpus, empty = self._there
        parts = self._heaviest(empty)
        if len(self._weights) > 4 * TYPICAL:
            self._weights = {kind: self._weights[kind] for kind in parts}
        other_gpus = (gpus - self._gpus).total() + (self._gpus - gpus).total()
        is_settled = self._pods > 2 * RECOUNT and _difference(parts, self._used) < DIFFERENT
        if is_settled and other_gpus <= DIFFERENT * self._gpus.total():
            return
        self._used, self._gpus = parts, gpus
        typical = [Typical(request, machine.cpu_milli, part) for (request, machine), part in parts.items()]
        mean_memory = sum(memory * count for (_, memory), count in gpus.items()) / max(gpus.total(), 1)
        in_gpus = sum(part * _gpus_asked(request, mean_memory) for (request, _), part in parts.items()) or 1.0
        cpu = sum(part * machine.cpu_milli for (_, machine), part in parts.items())
        memory = sum(part * machine.memory_mib for (_, machine), part in parts.items())
        self._mix = Mix(typical, cpu / in_gpus, memory / in_gpus, contention(typical, gpus))

    def _heaviest(self, empty: Sequence[NodeRoom]) -> _Parts:
        """The requests that weigh most, of those that a node could serve were it `empty`; together they make one."""
        sizes, heaviest = set(self._machines.sizes.values()), _Parts()
        for (request, machine), weight in sorted(self._weights.items(), key=lambda item: -item[1]):
            cpu, memory = machine
            has_machine = not sizes or any(cpu <= size.cpu_milli and memory <= size.memory_mib for size in sizes)
            if has_machine and not request.slices and (not empty or any(map(fit_test(request), empty))):
                heaviest[request, machine] = weight
            if len(heaviest) == TYPICAL:
                break
        total = sum(heaviest.values())
        return {kind: weight / total for kind, weight in heaviest.items()}


def _inventory(ledger: Ledger) -> tuple[Counter[GpuKind], Sequence[NodeRoom]]:
    """How many usable GPUs of each kind there are, whoever holds them; and how much room the different nodes have, were
    they empty and in order. Most nodes of a cluster have one of a few shapes."""
    shapes: dict[tuple[tuple[str, str, MiB, int], ...], Node] = {}
    kinds = Counter[GpuKind]()
    for node in filter(None, map(ledger.node, ledger.rooms)):
        gpus = [gpu for gpu in node.gpus if gpu.slice is None or gpu.slice.is_gpu]
        shapes[tuple((gpu.island, gpu.model, gpu.memory, gpu.bandwidth_gbps) for gpu in gpus)] = node
        if not node.out_of_use:
            kinds.update((gpu.model, gpu.memory) for gpu in gpus if not gpu.unusable)
    return kinds, [summarise((gpu, gpu.memory) for gpu in node.gpus) for node in shapes.values()]


def _gpus_asked(request: Request, mean_memory: float) -> float:
    """How many GPUs the request is. MiB count as the part of a GPU that they are, if it is known how large GPUs are."""
    if not isinstance(request.amount, Memory):
        return request.gpus * float(request.amount.part)
    return request.gpus * (min(request.amount.mib / mean_memory, 1.0) if mean_memory else 1.0)


def _difference(one: _Parts, other: _Parts) -> float:
    """Which part of a mix would have to be other requests to make it the other mix."""
    return sum(abs(one.get(kind, 0.0) - other.get(kind, 0.0)) for kind in one.keys() | other.keys()) / 2


def contention(typical: Iterable[Typical], there: Mapping[GpuKind, int]) -> dict[GpuKind, float]:
    """How much more than the average GPU one of a kind is wanted, because many requests can use no others: 1.0 for
    twice as much. Below zero: less. Kinds that are not in it are wanted as the average.

    Each request is shared out evenly among the GPUs that it allows. So pods that would run anywhere stay away from a
    model that others name, and from the GPUs with the memory that only large pods need, as long as there are others.
    """
    wanted: dict[GpuKind, float] = dict.fromkeys(there, 0.0)
    for each in typical:
        request, on = each.request, each.request.amount.on
        allowed = [kind for kind in there if 0 < on(kind[1]) <= kind[1] and request.allows_model(kind[0])]
        count = sum(there[kind] for kind in allowed)
        parts = sum(there[kind] * on(kind[1]) / kind[1] for kind in allowed)
        for kind in allowed:
            wanted[kind] += each.weight * request.gpus * parts / count / count
    mean = sum(wanted[kind] * count for kind, count in there.items()) / max(sum(there.values()), 1)
    found = {kind: round(wanted[kind] / mean - 1, DIGITS) for kind in there} if mean else {}
    return {kind: more for kind, more in found.items() if more}
