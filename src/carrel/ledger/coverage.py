"""Which pods a booking covers: a pure function of the bookings that run and of what people's pods hold and want.

A booking entitles its people to a number of GPUs of one model. The pods that it covers never touch more different GPUs
than that at once; parts of one GPU count as one GPU. Covered pods are booked, all other pods are opportunistic.

Pods are looked at in this order; one that does not fit is passed over, and nothing waits for it:

1. pods whose coverage by this booking is recorded on their Leases, by the instant it began: who is covered stays so
2. other pods that hold GPUs, by the instant they were bound
3. pods that wait, by their creation. Such a pod counts only if it could be placed were all opportunistic pods gone;
   else a wrong selector would use up the booking. If it wants a part of a GPU, and a GPU that its booking covers
   already has room for it, or can be given room by revocation, then it counts as no further GPU and goes only there

Where several bookings would do, the one that ends last is taken. Every process evaluates the same function, so a race
between two of them for the last GPU of a booking ends the same way everywhere; what is on the Leases only gives the
order. A pod that is ending counts until it has given its GPUs back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from carrel.ledger.gpu_choice import by_island
from carrel.ledger.ledger import Card, Ledger
from carrel.ledger.node_room import needs_one_island
from carrel.ledger.placement import selected, suits_by_nature
from carrel.ledger.requests import WHOLE, Request
from carrel.ledger.shares import Coverage, Holder, ShareState

MOST_WITNESSES = 1_000
"""Different requests that are remembered with a node that would do."""


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What a booking entitles to: so many GPUs of a model, for these people, from its start to its end."""

    booking: str
    """Its id."""
    people: frozenset[str]
    model: str
    """Empty: any."""
    gpus: int
    start: datetime
    ends: datetime
    share_of: int = 1
    """More than one: not whole GPUs but such a part of one GPU's memory."""
    namespace: str = ""
    """Only for pods there. Empty: anywhere."""
    group: str = ""
    """The group that it was made for; empty: a person's own."""

    def runs_at(self, now: datetime) -> bool:
        return self.start <= now < self.ends

    def is_for(self, person: str, namespace: str) -> bool:
        return person in self.people and self.namespace in ("", namespace)

    def __str__(self) -> str:
        what = f"1/{self.share_of} {self.model or 'GPU'}" if self.share_of > 1 else f"{self.gpus} {self.model or 'GPU'}"
        return f"{what} for {self.group}" if self.group else what


@dataclass(frozen=True, slots=True)
class PersonsPod:
    """A pod of a person that holds GPUs or waits for some."""

    holder: Holder
    person: str
    namespace: str
    """As bookings spell it."""
    created: datetime
    bound_at: datetime | None
    """None: it is not bound."""
    request: Request | None
    """None: it cannot be read; what the pod holds counts all the same."""
    nodes: tuple[str, ...] = ()
    """Where it may run by everything that is not about GPUs; only of a pod that waits."""
    wanted_booking: str = ""
    """The id of the booking that it was made for; empty: any."""


@dataclass(frozen=True, slots=True)
class Covered:
    """By which booking a pod is covered."""

    entitlement: Entitlement
    only: frozenset[str] = frozenset()
    """A pod that waits goes only on one of these GPUs. Empty: on any of the booked model."""
    not_on: frozenset[str] = frozenset()
    """GPUs of which another booking covers a part, and is entitled to the rest."""

    def narrowed(self, request: Request) -> Request:
        """What the pod asks for, of the booked GPUs."""
        request = replace(request, model=request.model or self.entitlement.model)
        if not (self.only or self.not_on):
            return request
        return replace(request, selector=replace(request.selector, only=self.only, not_on=self.not_on))


@dataclass(slots=True)
class BookingUse:
    """What the covered pods of one booking touch."""

    entitlement: Entitlement
    gpus: dict[str, int] = field(default_factory=dict)
    """GPU → MiB that covered pods hold of it, or are going to."""
    promised: dict[str, int] = field(default_factory=dict)
    """The part of it that covered pods wait for."""
    coming: int = 0
    """Further GPUs, not known yet, that covered pods wait for."""

    @property
    def count(self) -> int:
        return len(self.gpus) + self.coming

    def limit_on(self, memory: int) -> int:
        """The most MiB of a GPU of that size that the booking entitles to."""
        return memory // self.entitlement.share_of

    def has_room_for(self, more: Mapping[str, int], memory_of: Callable[[str], int]) -> bool:
        if len(self.gpus.keys() | more.keys()) + self.coming > self.entitlement.gpus:
            return False
        return self.entitlement.share_of == 1 or all(
            self.gpus.get(gpu, 0) + mib <= self.limit_on(memory_of(gpu)) for gpu, mib in more.items()
        )

    def add(self, more: Mapping[str, int]) -> None:
        _add(self.gpus, more)

    def promise(self, more: Mapping[str, int]) -> None:
        """To a pod that waits: on GPUs that the booking covers already."""
        _add(self.gpus, more)
        _add(self.promised, more)


def _add(to: dict[str, int], more: Mapping[str, int]) -> None:
    for gpu, mib in more.items():
        to[gpu] = to.get(gpu, 0) + mib


Uses = dict[str, BookingUse]
"""By booking; the one that ends last comes first."""


def uses_of(entitlements: Iterable[Entitlement]) -> Uses:
    """Bookings that nobody uses yet."""
    last_first = sorted(entitlements, key=lambda each: (-each.ends.timestamp(), each.booking))
    return {each.booking: BookingUse(each) for each in last_first}


# --- pods that hold GPUs ---------------------------------------------------------------------------------------------


def cover_holders(ledger: Ledger, uses: Uses, pods: Iterable[PersonsPod]) -> dict[str, Covered]:
    """By uid. `uses` is filled with what they touch."""
    holding = [pod for pod in pods if ledger.shares_of(pod.holder.uid)]
    records = {pod.holder.uid: record_of(ledger, pod.holder.uid) for pod in holding}
    covered: dict[str, Covered] = {}

    def cover(pod: PersonsPod, use: BookingUse) -> bool:
        uid, entitlement = pod.holder.uid, use.entitlement
        record = records[uid]
        is_recorded = record is not None and record.booking == entitlement.booking
        held = _held(ledger, uid, entitlement.model, is_recorded=is_recorded)
        if held is None or not _is_for(entitlement, pod, uses) or not use.has_room_for(held, _memory_in(ledger)):
            return False
        use.add(held)
        covered[uid] = Covered(entitlement)
        return True

    recorded = [(record, pod) for pod in holding if (record := records[pod.holder.uid]) and record.booking in uses]
    for record, pod in sorted(recorded, key=lambda each: (each[0].since, each[1].holder.uid)):
        cover(pod, uses[record.booking])
    for pod in sorted(holding, key=lambda pod: (pod.bound_at is None, pod.bound_at or pod.created, pod.holder.uid)):
        if pod.holder.uid not in covered:
            any(cover(pod, use) for use in uses.values())
    return covered


def record_of(ledger: Ledger, uid: str) -> Coverage | None:
    """What the Leases say about a pod. Of several, the earliest: a correction may have reached some of them only."""
    records = [share.coverage for share in ledger.shares_of(uid).values() if share.coverage is not None]
    return min(records, key=lambda record: (record.since, record.booking), default=None)


def _held(ledger: Ledger, uid: str, model: str, *, is_recorded: bool) -> dict[str, int] | None:
    """GPU → MiB; None if one is of another model. A GPU that no node reports now has the model that was recorded."""
    held: dict[str, int] = {}
    for gpu, share in ledger.shares_of(uid).items():
        card = ledger.card(gpu)
        if (card is None and not is_recorded) or (card is not None and model not in ("", card.gpu.model)):
            return None
        held[gpu] = card.held(share) if card is not None else share.memory or 0
    return held


def _memory_in(ledger: Ledger) -> Callable[[str], int]:
    return lambda gpu: card.gpu.memory if (card := ledger.card(gpu)) is not None else 0


def _is_for(entitlement: Entitlement, pod: PersonsPod, uses: Uses) -> bool:
    """A pod that was made for one booking is not covered by another, as long as that one runs."""
    is_wanted = pod.wanted_booking not in uses or pod.wanted_booking == entitlement.booking
    return is_wanted and entitlement.is_for(pod.person, pod.namespace)


class SharedGpus:
    """The GPUs of which bookings cover a part. Who booked whole GPUs is entitled to the rest of such a GPU as well;
    those who booked shares of a GPU share it."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Entitlement, tuple[str, ...]]] = {}  # uid → what covers it, and its GPUs

    def add(self, uid: str, entitlement: Entitlement, gpus: Iterable[str]) -> None:
        """A covered pod that holds parts of these GPUs."""
        if there := tuple(gpus):
            self._parts[uid] = (entitlement, there)

    def remove(self, uid: str) -> None:
        self._parts.pop(uid, None)

    def closed_to(self, entitlement: Entitlement) -> frozenset[str]:
        """The GPUs that a pod which this booking covers leaves to other bookings."""
        return frozenset(
            gpu
            for other, gpus in self._parts.values()
            if other.booking != entitlement.booking and not (entitlement.share_of > 1 and other.share_of > 1)
            for gpu in gpus
        )


# --- pods that wait --------------------------------------------------------------------------------------------------


class RevocableRoom:
    """How much room there would be if all opportunistic pods were gone."""

    def __init__(self, ledger: Ledger, is_revocable: Callable[[str], bool]) -> None:
        """`is_revocable`: whether the pod of that uid is opportunistic, or gone."""
        self._ledger = ledger
        self._is_revocable = is_revocable
        self._witness: dict[tuple[Request, tuple[str, ...]], str] = {}
        self._impossible: tuple[int, set[tuple[Request, tuple[str, ...]]]] = (-1, set())

    def on_card(self, card: Card) -> int:
        stays = (
            card.held(share)
            for uid, share in card.shares.items()
            if share.state is not ShareState.RELEASING and not self._is_revocable(uid)
        )
        return card.gpu.memory - sum(stays)

    def card(self, gpu: str, request: Request) -> Card | None:
        """None if no node reports it, or the request does not allow it."""
        card = self._ledger.card(gpu)
        node = self._ledger.node(card.gpu.node) if card is not None else None
        if card is None or node is None or node.unusable or not selected(node, request):
            return None
        return card if suits_by_nature(card.gpu, request) else None

    def could_place(self, request: Request, nodes: tuple[str, ...]) -> bool:
        """On one of the nodes. The node that would do last time is looked at first: it mostly still does."""
        question = (request, nodes)
        if self._fits(request, self._witness.get(question, "")):
            return True
        moment, impossible = self._impossible
        if moment != self._ledger.moment:
            self._impossible = (self._ledger.moment, impossible := set())
        if question in impossible:
            return False
        found = next((name for name in nodes if self._fits(request, name)), "")
        if found:
            if len(self._witness) > MOST_WITNESSES:
                self._witness.clear()
            self._witness[question] = found
        else:
            impossible.add(question)
        return bool(found)

    def changed(self) -> None:
        """Other pods are opportunistic now."""
        self._impossible = (-1, set())

    def _fits(self, request: Request, node: str) -> bool:
        there = self._ledger.node(node)
        if there is None or there.unusable or not selected(there, request):
            return False
        need = request.amount.on
        cards = (
            card
            for card in self._ledger.cards(node)
            if suits_by_nature(card.gpu, request) and self.on_card(card) >= need(card.gpu.memory)
        )
        if not needs_one_island(request):
            return len(list(islice(cards, request.cards))) == request.cards
        return any(island and len(found) >= request.cards for island, found in by_island(cards).items())


def cover_waiting(
    room: RevocableRoom, uses: Uses, pods: Iterable[PersonsPod], shared: "SharedGpus | None" = None
) -> dict[str, Covered]:
    """By uid, of the pods that hold nothing. `uses` has what the others touch, and is filled further."""
    shared = shared or SharedGpus()
    covered: dict[str, Covered] = {}
    for pod in sorted(pods, key=lambda pod: (pod.created, pod.holder.full_name, pod.holder.uid)):
        for use in uses.values():
            if not _is_for(use.entitlement, pod, uses):
                continue
            if (found := _cover_waiting_pod(room, use, pod, shared)) is not None:
                covered[pod.holder.uid] = found
                break
    return covered


def _cover_waiting_pod(room: RevocableRoom, use: BookingUse, pod: PersonsPod, shared: "SharedGpus") -> Covered | None:
    entitlement, asked = use.entitlement, pod.request
    if asked is None or (entitlement.model and not asked.allows_model(entitlement.model)):
        return None
    covered = Covered(entitlement)
    if asked.amount != WHOLE:
        covered = Covered(entitlement, not_on=shared.closed_to(entitlement))
        if there := _on_covered_gpus(room, use, covered.narrowed(asked), pod.nodes):
            return Covered(entitlement, there)
    request = covered.narrowed(asked)
    if use.count + request.cards > entitlement.gpus or (entitlement.share_of > 1 and request.amount == WHOLE):
        return None
    if not room.could_place(request, pod.nodes):
        return None
    use.coming += request.cards
    return covered


def _on_covered_gpus(room: RevocableRoom, use: BookingUse, request: Request, nodes: Sequence[str]) -> frozenset[str]:
    """GPUs of one node that the booking covers already and that have room, or can be given some; empty: too few."""
    by_node: dict[str, list[tuple[str, int]]] = {}
    for gpu in sorted(use.gpus):
        card = room.card(gpu, request)
        if card is None or card.gpu.node not in nodes:
            continue
        need = request.amount.on(card.gpu.memory)
        is_within = use.gpus[gpu] + need <= use.limit_on(card.gpu.memory)
        if is_within and need <= room.on_card(card) - use.promised.get(gpu, 0):
            by_node.setdefault(card.gpu.node, []).append((gpu, need))
    for _, found in sorted(by_node.items()):
        if len(found) >= request.cards:
            use.promise(dict(found[: request.cards]))
            return frozenset(gpu for gpu, _ in found)
    return frozenset()
