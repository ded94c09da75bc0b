"""Slots: how GPUs are promised on a node where the kubelet chooses which GPU a pod gets.

NVIDIA's plugin hands the GPUs over there, and nobody knows beforehand which. What can be promised is *a* GPU: such
a node has as many slots as GPUs, any slot may turn out to be any GPU, and no more slots are taken than there are
GPUs, so that the kubelet has one for each. A slot is as large as the node's smallest GPU.

Pods that ask the kubelet for whole GPUs by themselves need no more. For all others a reservation pod asks the kubelet
for the GPU and says which it is. Its life, and what to do next, are decided here:

                 it says which GPU             it is gone, or has another GPU
     wanted ───────────────────────► held ───────────────────────────────────► lost ◄──────► doubled
                                      ▲                                          │   another pod has the GPU
                                      └──────────── it says the same GPU ───────┘
     any of them, when nobody holds a part of the slot: closing, until the reservation pod is gone

While a GPU is *lost*, pods may be running on it and the kubelet may give it to anybody: nobody new comes to the node,
and reservation pods are made until one of them has that GPU again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from carrel.ledger.gpus import Gpu, MiB, Node


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
    card: str = ""
    """UUID; empty as long as nobody knows. Pods are told this GPU, so it stays until the last of them has gone."""
    pod: str = ""
    """uid of the reservation pod that last had the GPU."""

    def after(self, event: ReservationEvent) -> "Reservation":
        return replace(self, state=LIFE[self.state, event])

    def found(self, card: str, pod: str) -> "Reservation":
        return replace(self.after(ReservationEvent.FOUND), card=card, pod=pod)


WANTED = Reservation()


# --- the ledger's view of such a node --------------------------------------------------------------------------------


def slot_id(node: str, index: int) -> str:
    """What stands in the ledger for the UUID of a GPU."""
    return f"{node}/{index}"


def as_slots(node: Node, in_use: Mapping[int, Reservation | None]) -> Node:
    """The node with slots for GPUs. `in_use` has the slots that somebody holds a part of, with their reservations."""
    if not node.gpus:
        return node
    memory, models = min(gpu.memory for gpu in node.gpus), {gpu.model for gpu in node.gpus}
    model = models.pop() if len(models) == 1 else ""
    why = _why_unusable(node, in_use)
    every = frozenset(gpu.uuid for gpu in node.gpus)
    slots = tuple(
        Gpu(
            slot_id(node.name, gpu.index),
            node.name,
            gpu.index,
            model,
            MiB(memory),
            unusable=why[gpu.index],
            may_be=_possible_uuids(in_use.get(gpu.index)) or every,
        )
        for gpu in node.gpus
    )
    lost = [each.card for each in in_use.values() if each and each.state is ReservationState.LOST]
    closed = f"{min(lost)} has lost its reservation pod; it is being taken back" if lost else ""
    return replace(node, gpus=slots, unusable=node.unusable or closed)


def _possible_uuids(reservation: Reservation | None) -> frozenset[str]:
    """Empty: nobody knows yet."""
    return frozenset((reservation.card,)) if reservation is not None and reservation.card else frozenset()


def _why_unusable(node: Node, in_use: Mapping[int, Reservation | None]) -> dict[int, str]:
    """By index; empty where the slot may be had. A slot whose GPU is known is as healthy as that GPU; of the others
    there are as many as the node has healthy GPUs besides, those in use first."""
    health = {gpu.uuid: gpu.unusable for gpu in node.gpus}
    known = {index: each for index, each in in_use.items() if each is not None and each.card}
    named = {each.card for each in known.values()}
    left = sum(not unusable for uuid, unusable in health.items() if uuid not in named)
    broken = next((f"a GPU of {node.name} is not: {why}" for uuid, why in health.items() if why), "no GPU is left")
    answer = {}
    for index in sorted((gpu.index for gpu in node.gpus), key=lambda index: (index not in in_use, index)):
        reservation = in_use.get(index)
        if index in known:
            answer[index] = health.get(known[index].card, "its node no longer reports its GPU")
        else:
            answer[index] = "" if left > 0 else broken
            left -= 1
        if reservation is not None and reservation.state in _TROUBLE:
            answer[index] = _TROUBLE[reservation.state]
    return answer


_TROUBLE = {
    ReservationState.LOST: "its reservation pod was lost",
    ReservationState.DOUBLED: "its reservation pod was lost, and another pod has the GPU too",
    ReservationState.CLOSING: "its reservation pod is still going",
}


# --- what to do about a reservation ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReservationPod:
    """The pod that holds the GPU of a slot, as the API server shows it."""

    uid: str
    is_going: bool = False
    is_finished: bool = False
    """It failed, or was evicted: it has no GPU any more."""
    is_stuck: bool = False
    """It had time enough to say which GPU it has."""
    card: str = ""
    """What it says."""


@dataclass(frozen=True, slots=True)
class SlotObservation:
    """All that is known about a slot when its reservation is decided on."""

    is_needed: bool
    """Somebody holds a part of the slot, or may do so in a moment."""
    pod: ReservationPod | None
    """None: the API server has none."""
    cards: frozenset[str]
    """Those that the node reports."""
    cards_of_others: frozenset[str] = frozenset()
    """Those that other slots of the node stand for."""
    has_other_user: bool = False
    """Another pod than ours is shown to have the slot's GPU."""
    others_are_lost: bool = False
    """Another slot of the node has lost its GPU: nobody may take one before that is found again."""


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
    if not observation.is_needed:
        return reservation.after(ReservationEvent.CLOSE)
    if state is ReservationState.HELD and not _still_has(reservation, pod):
        return reservation.after(ReservationEvent.LOSE)
    if pod is None:
        waits = state is ReservationState.WANTED and observation.others_are_lost
        return Act.WAIT if waits else Act.CREATE
    if pod.is_going or state is ReservationState.HELD:
        return Act.WAIT
    if pod.is_finished or not pod.card:
        return Act.DELETE if pod.is_finished or pod.is_stuck else Act.WAIT
    return _what_it_says(reservation, pod, observation)


def _still_has(reservation: Reservation, pod: ReservationPod | None) -> bool:
    """A pod keeps its GPU as long as it lives, also if somebody takes its word off it."""
    if pod is None or pod.is_going or pod.is_finished:
        return False
    return pod.card == reservation.card or (pod.uid == reservation.pod and not pod.card)


def _what_it_says(reservation: Reservation, pod: ReservationPod, observation: SlotObservation) -> Step:
    if reservation.state is ReservationState.WANTED:
        if pod.card in observation.cards_of_others:
            return Act.DELETE  # the other slot must have it back
        if pod.card in observation.cards:
            return reservation.found(pod.card, pod.uid)
        return Act.DELETE if pod.is_stuck else Act.WAIT  # the node may not have reported it yet
    if pod.card == reservation.card:
        return reservation.found(pod.card, pod.uid)
    if observation.has_other_user:
        # Nothing helps but that one of them goes. Meanwhile our pod keeps a GPU, so that the kubelet has one for all.
        is_known = reservation.state is ReservationState.DOUBLED
        return Act.WAIT if is_known else reservation.after(ReservationEvent.TAKEN)
    if reservation.state is ReservationState.DOUBLED:
        return reservation.after(ReservationEvent.LOSE)
    return Act.DELETE  # it has another GPU: the next one may have the right one
