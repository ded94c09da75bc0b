"""The cluster as it is, for `carrel simulate --from`: as little of it as a simulation needs.

Nodes, pods and people get numbers, in the order of their names or of their creation. What a booking allows at this
moment is left out: the simulation decides it anew. So are gangs, and pods that are ending or have scheduling gates.

Which GPUs a pod holds is said by indexes that its node reports, and the same amount of each:

    what the ledger says                             what the snapshot says
    slots, where the kubelet chooses                 the GPUs behind them, as `shown_gpus` finds them
    a ResourceClaim                                  its first pod holds the GPUs; the others run beside it without
    a part of every GPU, because nobody knows which  as many GPUs as it has, the first with room
    different parts of several GPUs                  the smallest of them, of each
    more than a GPU has; a GPU that is not reported  nothing: the pod runs on its node without GPUs

In the last line, to place the pod anew would give it GPUs that it does not have. No GPU is held more than it has.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec

from carrel.cluster.gpu_activities import GpuActivities
from carrel.cluster.pod_progress import created_at, is_ending
from carrel.cluster.pod_requests import request_in
from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.cluster.record.unrecorded_pods import UnrecordedPod
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import person_named, read_entitlement
from carrel.dialects.tier import counts_as, person_of
from carrel.ids import NO_PERSON, HolderId, NodeName, PersonId, PodUid
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.ledger.gpu_activity import ActivityState
from carrel.ledger.gpus import Gpu, MiB, Node, place_name
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.requests import WHOLE, Amount, Memory, Request
from carrel.parsing import Malformed
from carrel.parsing.time import instant, seconds
from carrel.scheduling.machine_room import machine_of, room_of
from carrel.simulation.idle_pods import FOUR_WEEKS_H
from carrel.simulation.snapshot import CENTURY_H, GpuHours, written
from carrel.simulation.workload import HOUR_S, BookingWish, PastUse, SimulatedCluster, SimulatedPod, Trace

NO_HOURS = (0.0, 0.0, 0.0)
PLACES = 3
"""Of GPU hours: a few seconds."""
Parts = dict[Gpu, MiB | None]
"""How much of each GPU; None: the whole of it."""


@dataclass(frozen=True, slots=True)
class Holding:
    node: NodeName
    gpus: tuple[Gpu, ...]
    """As the node reports them."""
    amount: Amount
    """Of each."""


def holdings(carrel: ClusterState, pods: Sequence[Pod]) -> dict[PodUid, Holding]:
    """By the uid of the pod. Of several pods that hold too much together, the first ones count."""
    found: dict[PodUid, Holding] = {}
    order = {pod.metadata.uid: number for number, pod in enumerate(pods)}
    for name in carrel.ledger.nodes:
        entries = shown_gpus(carrel.cluster_ledger, name)
        free = {entry.gpu: int(entry.gpu.memory) for entry in entries}
        parts, unknown = _parts(carrel, entries), _unknown(carrel, name)
        for uid in sorted(order.keys() & parts.keys() - unknown.keys(), key=order.__getitem__):
            amount = _amount(request_in(carrel.requests.as_admitted(pods[order[uid]])), parts[uid])
            if _take(free, parts[uid], amount):
                found[uid] = Holding(name, tuple(parts[uid]), amount)
        for uid in sorted(order.keys() & unknown.keys(), key=order.__getitem__):
            pod = unknown[uid]
            gpus = _with_room(free, pod)
            if len(gpus) == pod.count and _take(free, gpus, pod.amount):
                found[uid] = Holding(name, tuple(gpus), pod.amount)
    return found


def _parts(carrel: ClusterState, entries: Iterable[GpuEntry]) -> dict[PodUid, Parts]:
    """What the pods hold, by themselves and by their claims."""
    parts: dict[PodUid, Parts] = {}
    for entry in entries:
        for uid, share in entry.shares.items():
            pod = carrel.holders.pod_of(uid)
            if pod is not None:
                held = parts.setdefault(pod.metadata.uid, {})
                before = held.get(entry.gpu, MiB(0))
                is_whole = share.memory is None or before is None
                held[entry.gpu] = None if is_whole else MiB((share.memory or 0) + (before or 0))
    return parts


def _unknown(carrel: ClusterState, node: NodeName) -> Mapping[HolderId, UnrecordedPod]:
    """Of pods of which nobody has said yet which GPUs they have. Where there are slots, `shown_gpus` knows."""
    if carrel.cluster_ledger.kubelet_chooses(node):
        return {}
    return {pod.holder.uid: pod for pod in carrel.cluster_ledger.unrecorded(node) if not pod.is_known}


def _amount(asked: Request | None, held: Parts) -> Amount:
    parts = [part for part in held.values() if part is not None]
    if len(parts) < len(held):
        return WHOLE
    if asked is not None and all(asked.amount.on(gpu.memory) == part for gpu, part in held.items()):
        return asked.amount
    return Memory(min(parts))


def _with_room(free: Mapping[Gpu, int], pod: UnrecordedPod) -> list[Gpu]:
    return [gpu for gpu, mib in free.items() if mib >= pod.amount.on(gpu.memory)][: pod.count]


def _take(free: dict[Gpu, int], gpus: Iterable[Gpu], amount: Amount) -> bool:
    """False, and nothing is taken, if one of them has less."""
    needs = {gpu: amount.on(gpu.memory) for gpu in gpus}
    if any(free[gpu] < need for gpu, need in needs.items()):
        return False
    for gpu, need in needs.items():
        free[gpu] -= need
    return True


GATED = "with scheduling gates: not in the snapshot, because no GPU is wanted yet"
NODE_UNKNOWN = "on a node that reports no GPU: not in the snapshot"
GPUS_UNKNOWN = "whose GPUs no node reports, or that others hold: in the snapshot without GPUs"
BY_UUID = "that may have only GPUs with certain UUIDs: in the snapshot with any GPU that suits otherwise"
PART_BOOKED = "of a part of a GPU: not in the snapshot"
UNREADABLE = "that cannot be understood: not in the snapshot"
"""What the person who takes the snapshot should know, after the number of pods or bookings."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    document: Any
    remarks: Sequence[str]
    """What is not in it as it is in the cluster, one sentence each."""


class UsedHour(msgspec.Struct, frozen=True):
    """What a person's pods did with GPUs of one model in an hour, in the words of the booking service."""

    user: str
    model: str
    start: Annotated[datetime, msgspec.Meta(tz=True)]
    held_gpu_hours: GpuHours | None = None
    """None: it is about bookings alone."""
    active_gpu_hours: GpuHours | None = None
    idle_gpu_hours: GpuHours | None = None


def snapshot_of(carrel: ClusterState, activities: GpuActivities, used: Iterable[UsedHour] = ()) -> Snapshot:
    return _Taking(carrel, activities).snapshot(used)


class _Numbers(dict[str, PersonId]):
    """A number for each name: `user-1`. The empty name stays empty."""

    def __init__(self, word: str) -> None:
        super().__init__({"": NO_PERSON})
        self._word = word

    def __missing__(self, name: str) -> PersonId:
        self[name] = number = PersonId(f"{self._word}-{len(self)}")
        return number


class _Taking:
    def __init__(self, carrel: ClusterState, activities: GpuActivities) -> None:
        self._carrel = carrel
        self._activities = activities
        self._now = carrel.options.now()
        entries = {name: shown_gpus(carrel.cluster_ledger, name) for name in sorted(carrel.ledger.nodes)}
        self._gpus = {name: [entry.gpu for entry in found] for name, found in entries.items() if found}
        numbered = map(NodeName, _numbered("node", len(self._gpus)))
        self._nodes = dict(zip(self._gpus, numbered, strict=True))
        self._people = _Numbers("user")
        self._sets: dict[frozenset[str], str] = {}
        self._left_out: Counter[tuple[str, str]] = Counter()

    def snapshot(self, used: Iterable[UsedHour]) -> Snapshot:
        there = [pod for pod in self._carrel.pods.store if not is_ending(pod)]
        there.sort(key=lambda pod: (created_at(pod), pod.metadata.uid))
        held = holdings(self._carrel, there)
        pods = [pod for pod in there if self._counts(pod, held)]
        names = map(PodUid, _numbered("pod", len(pods)))
        saved = tuple(self._pod(pod, name, held.get(pod.metadata.uid)) for pod, name in zip(pods, names, strict=True))
        workload = Trace(saved, tuple(self._bookings()), tuple(self._past_use(used)))
        document = written(self._cluster(), workload, seconds(self._now))
        remarks = [
            f"{count} {what}{'s' * (count > 1)} {why}."
            for (what, why), count in sorted(self._left_out.items())
            if count
        ]
        return Snapshot(document, remarks)

    def _since_now_s(self, moment: datetime) -> float:
        """Negative: before now. Within what a snapshot can say."""
        passed = (moment - self._now).total_seconds()
        return max(-CENTURY_H * HOUR_S, min(passed, CENTURY_H * HOUR_S))

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _cluster(self) -> SimulatedCluster:
        carrel, nodes, machines = self._carrel, [], {}
        for name, number in self._nodes.items():
            known, machine = carrel.ledger.node(name), carrel.nodes.store.get(name)
            labels = {each: "" for names, each in self._sets.items() if number in names}
            gpus = tuple(self._renamed(gpu, number, self._islands(name)) for gpu in self._gpus[name])
            nodes.append(Node(number, gpus, labels, known.unusable if known is not None else ""))
            if machine is not None and (room := room_of(machine)) is not None:
                machines[number] = room
        return SimulatedCluster(tuple(nodes), machines, dict.fromkeys(self._sets.values(), ""))

    def _islands(self, node: NodeName) -> Mapping[str, str]:
        islands = dict.fromkeys(gpu.island for gpu in self._gpus[node] if gpu.island)
        return {"": "", **{island: str(number) for number, island in enumerate(islands)}}

    def _renamed(self, gpu: Gpu, node: NodeName, islands: Mapping[str, str]) -> Gpu:
        return replace(gpu, uuid=place_name(node, gpu.index), node=node, island=islands[gpu.island])

    # --- pods --------------------------------------------------------------------------------------------------------

    def _counts(self, pod: Pod, held: Mapping[PodUid, Holding]) -> bool:
        if pod.metadata.uid in held or pod.spec.node_name in self._nodes:
            return True
        if request_in(self._carrel.requests.as_admitted(pod)) is None:
            return False
        if pod.spec.node_name or gates_of(pod):
            self._left_out["pod", NODE_UNKNOWN if pod.spec.node_name else GATED] += 1
            return False
        return True

    def _pod(self, pod: Pod, name: PodUid, holding: Holding | None) -> SimulatedPod:
        asked = request_in(self._carrel.requests.as_admitted(pod))
        created = min(0.0, self._since_now_s(created_at(pod)))
        owner = self._people[person_of(pod) or counts_as(pod)]
        saved = SimulatedPod(name, None, machine_of(pod), owner, created)
        if holding is not None:
            asked = asked or Request(len(holding.gpus), holding.amount)
            request = replace(asked, gpus=len(holding.gpus), amount=holding.amount)
            node = self._nodes[holding.node]
            held = tuple(place_name(node, gpu.index) for gpu in holding.gpus)
            idle_s = self._idle_s(pod)
            return replace(saved, request=self._kept_of(pod, request), node=node, held=held, idle_s=idle_s)
        if pod.spec.node_name:
            if asked is not None and not self._carrel.requests.asks_any_scheduler(pod):
                self._left_out["pod", GPUS_UNKNOWN] += 1
            return replace(saved, node=self._nodes[pod.spec.node_name])
        return replace(saved, request=self._kept_of(pod, asked) if asked is not None else None)

    def _idle_s(self, pod: Pod) -> float | None:
        """0: it is active, or has just got its GPUs. None: nobody knows."""
        activity = self._activities.of_pod(pod)
        if activity is None or activity.state is ActivityState.UNKNOWN:
            return None
        return max(0.0, -self._since_now_s(activity.since)) if activity.is_idle and activity.since else 0.0

    def _kept_of(self, pod: Pod, request: Request) -> Request:
        """What does not depend on this moment, and names nothing."""
        self._left_out["pod", BY_UUID] += request.selector.names_uuids
        node = self._carrel.ledger.node
        suitable = (name for name in self._carrel.eligible_nodes.nodes_for(pod) if request.selects(node(name)))
        nodes = frozenset(self._nodes[name] for name in suitable if name in self._nodes)
        labels = frozenset[tuple[str, str]]()
        if len(nodes) < len(self._nodes):
            labels = frozenset({(self._sets.setdefault(nodes, f"set-{len(self._sets) + 1}"), "")})
        return replace(request, selector=request.selector.without_uuids(), gang=None, node_labels=labels)

    # --- bookings ----------------------------------------------------------------------------------------------------

    def _bookings(self) -> Iterator[BookingWish]:
        store = self._carrel.bookings.store
        for booking in sorted(store, key=lambda each: (each.metadata.creation_timestamp, each.metadata.name)):
            try:
                read = read_entitlement(booking)
            except Malformed:
                self._left_out["booking", UNREADABLE] += 1
                continue
            if read.share_of > 1:
                self._left_out["booking", PART_BOOKED] += 1
                continue
            start, ends = self._since_now_s(read.start), self._since_now_s(read.ends)
            if start < ends:
                group, asked = booking.spec.group, self._asked_s(booking.metadata.creation_timestamp)
                user = self._people[f"group {group}" if group else person_named(booking.spec.user)]
                yield BookingWish(user, read.model, read.gpus, asked, start, min(ends - start, CENTURY_H * HOUR_S))

    def _asked_s(self, text: str) -> float:
        try:
            return min(0.0, self._since_now_s(instant(text, "a booking", "metadata.creationTimestamp")))
        except Malformed:
            return 0.0

    # --- past use ----------------------------------------------------------------------------------------------------

    def _past_use(self, used: Iterable[UsedHour]) -> Iterator[PastUse]:
        """In whole hours. What nobody held is not written before the first hour in which somebody did, nor after the
        last."""
        found: dict[tuple[PersonId, str], dict[int, tuple[float, float, float]]] = {}
        for each in used:
            hour = -((self._now - each.start) // timedelta(hours=1))
            if -FOUR_WEEKS_H <= hour < 0 and each.held_gpu_hours:
                hours = found.setdefault((self._people[person_named(each.user)], each.model), {})
                held, active, idle = hours.get(hour, NO_HOURS)
                active, idle = active + (each.active_gpu_hours or 0.0), idle + (each.idle_gpu_hours or 0.0)
                hours[hour] = max(held + each.held_gpu_hours, active + idle), active, idle
        for (person, model), hours in sorted(found.items()):
            sums = [hours.get(hour, NO_HOURS) for hour in range(min(hours), max(hours) + 1)]
            rounded = (tuple(round(each, PLACES) for each in of) for of in zip(*sums, strict=True))
            yield PastUse(person, model, min(hours), *rounded)


def _numbered(word: str, count: int) -> list[str]:
    """With as many digits in each, so that they are sorted as they are numbered."""
    return [f"{word}-{number:0{len(str(count))}}" for number in range(1, count + 1)]
