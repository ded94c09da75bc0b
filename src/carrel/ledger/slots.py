"""Slots: how GPUs are promised on a node where the kubelet chooses which GPU a pod gets.

NVIDIA's plugin hands the GPUs over there, and nobody knows beforehand which. What can be promised is *a* GPU: such
a node has as many slots as GPUs, any slot may turn out to be any GPU, and no more slots are taken than there are
GPUs, so that the kubelet has one for each. A slot is as large as the node's smallest GPU. The kubelet may have fewer
GPUs to give than the node has: its plugin calls one unhealthy or is away, or pods that Carrel did not place have some.
There are never more slots than that (`KubeletCapacity`).

Pods that ask the kubelet for whole GPUs by themselves need no more. For all others a reservation pod asks the kubelet
for the GPU and says which it is. Its life, and what to do next, are decided here:

                 it says which GPU             it is gone, or has another GPU
     wanted ───────────────────────► held ───────────────────────────────────► lost ◄──────► doubled
                                      ▲                                          │   another pod has the GPU
                                      └──────────── it says the same GPU ───────┘
     any of them, when nobody holds a part of the slot: closing, until the reservation pod is gone

While a GPU is *lost*, pods may be running on it and the kubelet may give it to anybody: nobody new comes to the node,
and reservation pods are made until one of them has that GPU again.

Where the kubelet refuses a reservation pod, its words are recorded, and the next one is made later: each time twice as
late, up to a limit. Until then no free slot of the node is given. A reservation pod that got a GPU which is not to be
used keeps it: else the kubelet would give the same GPU again, while another is free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from carrel.ids import NO_GPU, NO_POD, GpuUuid, PodUid
from carrel.ledger.gpus import Gpu, MiB, Node, place_name


class ReservationState(Enum):
    """How far a reservation is between its request and its end."""

    WANTED = "wanted"
    HELD = "held"
    LOST = "lost"
    DOUBLED = "doubled"
    CLOSING = "closing"


class ReservationEvent(Enum):
    """What changes the state of a reservation."""

    FOUND = "the reservation pod says which GPU it has"
    LOSE = "the reservation pod is gone, or has another GPU"
    TAKEN = "another pod has the GPU"
    CLOSE = "nobody holds a part of the slot any more"


_S, _E = ReservationState, ReservationEvent
LIFE: dict[tuple[ReservationState, ReservationEvent], ReservationState] = {
    (_S.WANTED, _E.FOUND): _S.HELD,
    (_S.HELD, _E.LOSE): _S.LOST,
    (_S.LOST, _E.FOUND): _S.HELD,
    (_S.LOST, _E.TAKEN): _S.DOUBLED,
    (_S.DOUBLED, _E.FOUND): _S.HELD,
    (_S.DOUBLED, _E.LOSE): _S.LOST,
    **{(state, _E.CLOSE): _S.CLOSING for state in (_S.WANTED, _S.HELD, _S.LOST, _S.DOUBLED)},
}


@dataclass(frozen=True, slots=True)
class Reservation:
    """The GPU behind a slot, held by a reservation pod, as the slot's Lease records it."""

    state: ReservationState = ReservationState.WANTED
    gpu: GpuUuid = NO_GPU
    """UUID; empty as long as nobody knows. Pods are told this GPU, so it stays until the last of them has gone."""
    pod: PodUid = NO_POD
    """uid of the reservation pod that last had the GPU."""
    refused: str = ""
    """Why the last reservation pod got no GPU, in the kubelet's words. Empty: none was refused, or it is over."""
    retry_at: datetime | None = None
    """When the next reservation pod may be made, after one was refused."""

    def after(self, event: ReservationEvent) -> "Reservation":
        return replace(self, state=LIFE[self.state, event])

    def found(self, gpu: GpuUuid, pod: PodUid) -> "Reservation":
        return replace(self.after(ReservationEvent.FOUND), gpu=gpu, pod=pod, refused="", retry_at=None)

    def refused_until(self, why: str, retry_at: datetime) -> "Reservation":
        return replace(self, refused=why, retry_at=retry_at)

    def trying_again(self) -> "Reservation":
        return replace(self, refused="", retry_at=None)


WANTED = Reservation()


# --- the ledger's view of such a node --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KubeletCapacity:
    """How many GPUs the kubelet has to give, as the Node says, and what pods that Carrel did not place have of them."""

    allocatable: int | None = None
    """Those that the kubelet's plugin calls healthy, also if a pod has them. None: not known, so no limit."""
    capacity: int = 0
    """Those of the plugin, healthy or not."""
    others: tuple[str, ...] = ()
    """The pods that Carrel did not place, by their names."""
    devices_of_others: int = 0
    """How many of the kubelet's devices these pods have."""
    gpus_of_others: frozenset[GpuUuid] = frozenset()
    """UUIDs of the GPUs that these pods have, where the agent says which."""
    unknown_of_others: int = 0
    """GPUs that they have, where nobody says which."""


NO_LIMIT = KubeletCapacity()


NO_SLICES: Mapping[str, KubeletCapacity] = {}


def as_slots(
    node: Node,
    in_use: Mapping[int, Reservation | None],
    kubelet: KubeletCapacity = NO_LIMIT,
    of_slices: Mapping[str, KubeletCapacity] = NO_SLICES,
) -> Node:
    """The node with slots for GPUs. `in_use` has the slots that somebody holds a part of, with their reservations; of a
    pod that asked the kubelet itself, with its GPU as if it were reserved.

    MIG slices that the kubelet gives by their profile have slots of their own: a slot may be any slice of one profile.
    """
    by_kind: dict[str, list[Gpu]] = {}
    for gpu in node.gpus:
        by_kind.setdefault(gpu.kind, []).append(gpu)
    slots: list[Gpu] = []
    for kind, gpus in by_kind.items():
        has = of_slices.get(kind, NO_LIMIT) if kind else kubelet
        indices = {gpu.index for gpu in gpus}
        used = {index: each for index, each in in_use.items() if index in indices}
        slots += _slots(replace(node, gpus=tuple(gpus)), used, has)
    lost = [each for each in in_use.values() if each and each.state is ReservationState.LOST]
    in_order = tuple(sorted(slots, key=lambda slot: slot.index))
    return replace(node, gpus=in_order, unusable=node.unusable or _why_closed(lost))


def _slots(node: Node, in_use: Mapping[int, Reservation | None], kubelet: KubeletCapacity) -> tuple[Gpu, ...]:
    """One for each of the node's GPUs, any of which may turn out to be any other."""
    memory, models = min(gpu.memory for gpu in node.gpus), {gpu.model for gpu in node.gpus}
    model = models.pop() if len(models) == 1 else ""
    why = _why_unusable(node, in_use, kubelet)
    numbers = {gpu.uuid: gpu.index for gpu in node.gpus}
    uuids = {index: each.gpu for index, each in in_use.items() if each is not None}
    every = frozenset(numbers)
    return tuple(
        Gpu(
            place_name(node.name, gpu.index),
            node.name,
            gpu.index,
            model,
            MiB(memory),
            unusable=why[gpu.index],
            may_be=_possible_uuids(in_use.get(gpu.index)) or every,
            number=numbers.get(uuids.get(gpu.index, NO_GPU)),
            slice=gpu.slice,
        )
        for gpu in node.gpus
    )


def _why_closed(lost: Sequence[Reservation]) -> str:
    if not lost:
        return ""
    first = min(lost, key=lambda each: each.gpu)
    closed = f"{first.gpu} has lost its reservation pod; it is being taken back"
    return f"{closed}; the last attempt failed: {first.refused}" if first.refused else closed


def _possible_uuids(reservation: Reservation | None) -> frozenset[GpuUuid]:
    """Empty: nobody knows yet."""
    return frozenset((reservation.gpu,)) if reservation is not None and reservation.gpu else frozenset()


def _why_unusable(node: Node, in_use: Mapping[int, Reservation | None], kubelet: KubeletCapacity) -> dict[int, str]:
    """By index; empty where the slot may be had. A slot whose GPU is known is as healthy as that GPU; of the others
    there are as many as the kubelet has healthy GPUs to give besides, those in use first."""
    health = {gpu.uuid: gpu.unusable for gpu in node.gpus}
    known = {index: each for index, each in in_use.items() if each is not None and each.gpu}
    room = _Room.of(node, {each.gpu for each in known.values()}, kubelet)
    refused = next((each.refused for each in in_use.values() if each is not None and each.refused), "")
    answer, left = {}, room.left
    for index in sorted((gpu.index for gpu in node.gpus), key=lambda index: (index not in in_use, index)):
        reservation = in_use.get(index)
        if index in known:
            answer[index] = health.get(known[index].gpu, "its node no longer reports its GPU")
        else:
            answer[index] = refused if left > 0 else room.why_none
            left -= 1
        if reservation is not None and reservation.state in _TROUBLE:
            answer[index] = _TROUBLE[reservation.state]
    return answer


@dataclass(frozen=True, slots=True)
class _Room:
    """How many slots a node has besides those whose GPUs are known."""

    left: int
    why_none: str
    """What is said of each slot beyond them."""

    @classmethod
    def of(cls, node: Node, named: set[GpuUuid], kubelet: KubeletCapacity) -> "_Room":
        """`named`: the GPUs behind slots that are in use."""
        health = {gpu.uuid: gpu.unusable for gpu in node.gpus}
        taken = named | kubelet.gpus_of_others
        healthy = sum(not unusable for uuid, unusable in health.items() if uuid not in taken)
        gpus = healthy - kubelet.unknown_of_others
        broken = next((f"a GPU of {node.name} is not: {why}" for why in health.values() if why), "")
        if kubelet.allocatable is None:
            return cls(gpus, _why_held(node, kubelet) or broken or "no GPU is left")
        # A GPU that is in use although it is unhealthy is not among the allocatable ones, so it takes none of them.
        unhealthy = min(kubelet.capacity - kubelet.allocatable, sum(bool(health.get(uuid)) for uuid in taken))
        devices = kubelet.allocatable - kubelet.devices_of_others - len(named) + max(unhealthy, 0)
        if devices >= gpus:
            return cls(gpus, _why_held(node, kubelet) or broken or "no GPU is left")
        return cls(devices, _why_kubelet_has_none(node, kubelet))


def _why_held(node: Node, kubelet: KubeletCapacity) -> str:
    if not kubelet.others:
        return ""
    has = "has GPUs" if len(kubelet.others) == 1 else "have GPUs"
    return f"{_named(kubelet.others)} {has} of {node.name}, and Carrel has not placed them there"


def _why_kubelet_has_none(node: Node, kubelet: KubeletCapacity) -> str:
    if not kubelet.allocatable:
        return f"the kubelet of {node.name} has no GPUs to give: its device plugin is away, or calls all unhealthy"
    words = (
        f"the kubelet of {node.name} has {kubelet.allocatable} of {len(node.gpus)} GPUs to give, and they are in use"
    )
    return f"{words}; {_why_held(node, kubelet)}" if kubelet.others else words


def _named(pods: Sequence[str]) -> str:
    shown = ", ".join(pods[:_MOST_NAMED])
    return f"{shown} and {len(pods) - _MOST_NAMED} more pods" if len(pods) > _MOST_NAMED else shown


_MOST_NAMED = 3

_TROUBLE = {
    ReservationState.LOST: "its reservation pod was lost",
    ReservationState.DOUBLED: "its reservation pod was lost, and another pod has the GPU too",
    ReservationState.CLOSING: "its reservation pod is still going",
}


# --- what to do about a reservation ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReservationPod:
    """The pod that holds the GPU of a slot, as the API server shows it."""

    uid: PodUid
    is_going: bool = False
    is_finished: bool = False
    """It failed, or was evicted: it has no GPU any more."""
    is_stuck: bool = False
    """It had time enough to say which GPU it has."""
    gpu: GpuUuid = NO_GPU
    """What it says, or the kubelet."""
    why: str = ""
    """Why it finished, or does not start, in the kubelet's words."""


@dataclass(frozen=True, slots=True)
class SlotObservation:
    """All that is known about a slot when its reservation is decided on."""

    is_needed: bool
    """Somebody holds a part of the slot, or may do so in a moment."""
    pod: ReservationPod | None
    """None: the API server has none."""
    gpus: frozenset[GpuUuid]
    """Those that the node reports."""
    gpus_of_others: frozenset[GpuUuid] = frozenset()
    """Those that other slots of the node stand for."""
    has_other_user: bool = False
    """Another pod than ours is shown to have the slot's GPU."""
    others_are_lost: bool = False
    """Another slot of the node has lost its GPU: nobody may take one before that is found again."""
    others_are_refused: bool = False
    """The kubelet has refused the reservation pod of another slot, and it is too early for the next one."""
    unusable_gpus: frozenset[GpuUuid] = frozenset()
    """Those that no new pod may have."""
    is_early: bool = False
    """After its last reservation pod was refused."""
    retry_at: datetime | None = None
    """When the next one may be made, if this one is refused; None: at once."""


class Act(Enum):
    """What to do next about a reservation."""

    CREATE = "make the reservation pod"
    DELETE = "delete the reservation pod"
    DROP = "the slot needs no reservation any more"
    WAIT = "wait"


Step = Act | Reservation
"""A reservation: what to record."""


def next_step(reservation: Reservation, observation: SlotObservation) -> Step:
    """One step at a time: what is recorded is recorded before anything is done about it."""
    pod, state = observation.pod, reservation.state
    if state is ReservationState.CLOSING:
        return Act.DROP if pod is None else Act.WAIT if pod.is_going else Act.DELETE
    if reservation.refused and observation.is_early:
        return Act.DELETE if pod is not None and not pod.is_going else Act.WAIT
    if not (observation.is_needed or _keeps_unusable(reservation, pod, observation)):
        return reservation.trying_again().after(ReservationEvent.CLOSE)
    if reservation.refused:
        return reservation.trying_again()
    if state is ReservationState.HELD and not _still_has(reservation, pod):
        return reservation.after(ReservationEvent.LOSE)
    if pod is None:
        must_wait = observation.others_are_lost or observation.others_are_refused
        return Act.WAIT if state is ReservationState.WANTED and must_wait else Act.CREATE
    if pod.is_going or state is ReservationState.HELD:
        return Act.WAIT
    if pod.is_finished or not pod.gpu:
        is_over = pod.is_finished or pod.is_stuck
        if is_over and observation.retry_at is not None:
            return reservation.refused_until(pod.why or "it has not said which GPU it has", observation.retry_at)
        return Act.DELETE if is_over else Act.WAIT
    return _what_it_says(reservation, pod, observation)


def _keeps_unusable(reservation: Reservation, pod: ReservationPod | None, observation: SlotObservation) -> bool:
    """Nobody has a part of the slot, but the kubelet would give its GPU, which is not to be used, to the next pod."""
    is_held = reservation.state is ReservationState.HELD and _still_has(reservation, pod)
    return is_held and reservation.gpu in observation.unusable_gpus


def _still_has(reservation: Reservation, pod: ReservationPod | None) -> bool:
    """A pod keeps its GPU as long as it lives, also if somebody takes its word off it."""
    if pod is None or pod.is_going or pod.is_finished:
        return False
    return pod.gpu == reservation.gpu or (pod.uid == reservation.pod and not pod.gpu)


def _what_it_says(reservation: Reservation, pod: ReservationPod, observation: SlotObservation) -> Step:
    if reservation.state is ReservationState.WANTED:
        if pod.gpu in observation.gpus_of_others:
            return Act.DELETE  # the other slot must have it back
        if pod.gpu in observation.gpus:
            return reservation.found(pod.gpu, pod.uid)
        return Act.DELETE if pod.is_stuck else Act.WAIT  # the node may not have reported it yet
    if pod.gpu == reservation.gpu:
        return reservation.found(pod.gpu, pod.uid)
    if observation.has_other_user:
        # Nothing helps but that one of them goes. Meanwhile our pod keeps a GPU, so that the kubelet has one for all.
        is_known = reservation.state is ReservationState.DOUBLED
        return Act.WAIT if is_known else reservation.after(ReservationEvent.TAKEN)
    if reservation.state is ReservationState.DOUBLED:
        return reservation.after(ReservationEvent.LOSE)
    return Act.DELETE  # it has another GPU: the next one may have the right one
