"""Keeps up to date which pods are covered by which booking, in a cluster or in a simulated one.

`coverage` decides. Here its answer is remembered, and worked out again only for the people whom a change concerns: a
booking that starts, ends or changes, a pod, a share. People who share a booking belong together. Pods that wait are
looked at again whenever the ledger has changed, because that decides whether they could be placed.

Whoever has the pods derives a class that tells of changes, and says whose pods hold what. Inside a what-if of the
ledger nothing is worked out: the answers are those from before it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import TypeVar

from carrel.ids import BookingId, GpuUuid, HolderId, PersonId
from carrel.ledger.coverage import (
    BookingUse,
    Covered,
    Entitlement,
    PersonsPod,
    RevocableRoom,
    SharedGpus,
    Uses,
    cover_holders,
    cover_waiting,
    uses_of,
    waiting_order,
)
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import WaitingPod
from carrel.ledger.requests import Request

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
PAST, FOREVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class CoverageIndex(ABC):
    def __init__(self, ledger: Ledger, now: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._now = now
        self._bookings: dict[BookingId, Entitlement] = {}  # all, running or not
        self._bookings_of: dict[PersonId, set[BookingId]] = {}  # person → their bookings, running or not
        self._running: dict[BookingId, Entitlement] = {}
        self._next_turn = FOREVER  # when the next booking starts or ends; `PAST`: bookings say something else
        self._turns = 0
        self._changed_people: set[PersonId] = set()
        self._holders: dict[HolderId, Covered] = {}  # uid → by what a pod that holds GPUs is covered
        self._covered_of: dict[PersonId, set[HolderId]] = {}  # person → the uids in it
        self._uses: Uses = {}  # by pods that hold GPUs
        self._shared = SharedGpus()
        # Person → uid → a pod that waits. None: what it asks for has to be read again, which costs more than to look
        # for room.
        self._unbound_of: dict[PersonId, dict[HolderId, PersonsPod | None]] = {}
        self._waiting: dict[HolderId, Covered] = {}
        self._booked_waiting: tuple[WaitingPod, ...] = ()
        self._waiting_at = -1  # the ledger's version when that was true; -1: something else has changed since
        self._room = RevocableRoom(ledger, self._is_revocable)

    # --- who has the pods --------------------------------------------------------------------------------------------

    @abstractmethod
    def _holding(self, person: PersonId) -> Iterable[PersonsPod]:
        """The pods of a person that hold GPUs; others may be among them."""

    @abstractmethod
    def _read(self, uid: HolderId) -> PersonsPod | None:
        """A pod that waits, with what it asks for. None: it is gone."""

    @abstractmethod
    def _is_revocable(self, uid: HolderId) -> bool:
        """Whether what holds GPUs would have to give them to a booked pod, as of the last update."""

    # --- changes -----------------------------------------------------------------------------------------------------

    def set_booking(self, name: BookingId, entitlement: Entitlement | None) -> None:
        """The booking is made, or is another than before. None: it is gone."""
        before = self._bookings.get(name)
        if entitlement == before:
            return
        self._stop(name)
        self._bookings.pop(name, None)
        for person in before.people if before is not None else ():
            discard(self._bookings_of, person, name)
        if entitlement is not None:
            self._bookings[name] = entitlement
            for person in entitlement.people:
                self._bookings_of.setdefault(person, set()).add(name)
        self._next_turn = PAST

    def _set_waiting(
        self, person: PersonId, uid: HolderId, pod: PersonsPod | None = None, *, waits: bool = True
    ) -> None:
        """The person's pod waits for GPUs, or does not any more. `pod`: None if it has to be read."""
        theirs = self._unbound_of.setdefault(person, {})
        theirs.pop(uid, None)
        if waits:
            theirs[uid] = pod
        elif not theirs:
            del self._unbound_of[person]

    def _changed(self, people: Iterable[PersonId], *, is_room_changed: bool = False) -> None:
        """Pods of these people have changed. `is_room_changed`: a pod that holds GPUs may have become opportunistic."""
        self._changed_people.update(people)
        self._waiting_at = -1
        if is_room_changed:
            self._room.changed()

    def _stop(self, booking: BookingId) -> None:
        self._uses.pop(booking, None)
        if (entitlement := self._running.pop(booking, None)) is not None:
            self._changed(entitlement.people)

    # --- answers -----------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Another number once the bookings say something else, although the ledger has not changed."""
        self.update()
        return self._turns

    def holders(self) -> AbstractSet[HolderId]:
        """The uids of all pods and claims that hold GPUs, and that a booking covers."""
        self.update()
        return self._holders.keys()

    def covered_waiting(self) -> Mapping[HolderId, Covered]:
        """The covered pods that wait, by uid, the oldest first."""
        self.update()
        if self._waiting_at != self._ledger.version and not self._ledger.is_what_if:
            self._cover_waiting()
            self._waiting_at = self._ledger.version
        return self._waiting

    def booked_waiting(self) -> Sequence[WaitingPod]:
        """Return the covered pods that wait, with what they ask for."""
        self.covered_waiting()
        return self._booked_waiting

    def cover_of(self, newcomer: PersonsPod) -> Covered | None:
        """Return what would cover a pod that is about to be created."""
        self.update()
        self._room.look_anew()
        bookings, people = self._together(newcomer.person)
        pods = [*self._waiting_pods(people), newcomer]
        return cover_waiting(self._room, self._copied_uses(bookings), pods, self._shared).get(newcomer.holder.uid)

    def use_of(self, booking: BookingId) -> BookingUse | None:
        """What the pods that hold GPUs use of a booking; None: it does not run."""
        self.update()
        entitlement = self._running.get(booking)
        return self._uses.get(booking) or (BookingUse(entitlement) if entitlement else None)

    def booking(self, booking: BookingId) -> Entitlement | None:
        """Whether it runs, is planned, or has just ended; None: there is none."""
        return self._bookings.get(booking)

    def bookings(self) -> Sequence[Entitlement]:
        return tuple(self._bookings.values())

    def running(self) -> Sequence[Entitlement]:
        """The bookings that run now."""
        self.update()
        return tuple(self._running.values())

    def running_for(self, person: PersonId, namespace: str | None = None) -> list[Entitlement]:
        """The bookings of a person that run now, for pods there or anywhere; the one that ends last comes first."""
        self.update()
        theirs = uses_of(self._running[each] for each in self._bookings_of.get(person, ()) if each in self._running)
        bookings = [use.entitlement for use in theirs.values()]
        return bookings if namespace is None else [each for each in bookings if each.is_for(person, namespace)]

    def planned_for(self, person: PersonId, namespace: str) -> list[Entitlement]:
        """The bookings of a person that start later, the next one first."""
        now = self._now()
        theirs = [self._bookings[name] for name in self._bookings_of.get(person, ())]
        planned = [each for each in theirs if now < each.start and each.is_for(person, namespace)]
        return sorted(planned, key=lambda each: (each.start, each.booking))

    # --- working it out ----------------------------------------------------------------------------------------------

    def update(self) -> AbstractSet[PersonId]:
        """Work out who is covered of the pods that hold GPUs, as each question does. Return the people looked at."""
        if self._ledger.is_what_if:
            return frozenset()
        if self._next_turn <= (now := self._now()):
            self._start_and_stop(now)
        if not self._changed_people:
            return frozenset()
        groups, looked_at = [], set[PersonId]()
        for person in self._changed_people:
            if person not in looked_at:
                bookings, people = self._together(person)
                looked_at |= people
                groups.append((bookings, people))
        self._changed_people = set()
        # First all are taken off: a pod may have moved from a person of one group to a person of another.
        were_covered = {uid for person in looked_at for uid in self._covered_of.pop(person, ())}
        for uid in were_covered:
            del self._holders[uid]
            self._shared.remove(uid)
        for bookings, people in groups:
            if bookings:
                self._cover_holders(bookings, people)
        if not were_covered <= self._holders.keys():
            self._room.changed()
        return looked_at

    def _start_and_stop(self, now: datetime) -> None:
        self._turns += 1
        for name, entitlement in self._bookings.items():
            if not entitlement.runs_at(now):
                self._stop(name)
            elif name not in self._running:
                self._running[name] = entitlement
                self._changed(entitlement.people)
        turns = (turn for each in self._bookings.values() for turn in (each.start, each.ends) if turn > now)
        self._next_turn = min(turns, default=FOREVER)

    def _together(self, person: PersonId) -> tuple[set[BookingId], set[PersonId]]:
        """The bookings that run for the person, for those who share one of them, and so on; and all these people."""
        bookings, people, left = set[BookingId](), {person}, [person]
        while left:
            for booking in self._bookings_of.get(left.pop(), ()):
                if booking in self._running and booking not in bookings:
                    bookings.add(booking)
                    left += self._running[booking].people - people
                    people |= self._running[booking].people
        return bookings, people

    def _cover_holders(self, bookings: Iterable[BookingId], people: Iterable[PersonId]) -> None:
        uses = uses_of(self._running[booking] for booking in bookings)
        pods = [pod for person in people for pod in self._holding(person)]
        covered = cover_holders(self._ledger, uses, pods)
        for pod in pods:
            if (by := covered.get(pod.holder.uid)) is not None:
                for uid in pod.uids:
                    self._holders[uid] = by
                    self._covered_of.setdefault(pod.person, set()).add(uid)
                    parts = (gpu for gpu, share in self._ledger.shares_of(uid).items() if share.memory is not None)
                    self._shared.add(uid, by.entitlement, parts)
        self._uses |= uses

    def _cover_waiting(self) -> None:
        found: list[tuple[PersonsPod, Covered]] = []
        left = self._unbound_of.keys() & self._bookings_of.keys()
        self._room.look_anew()
        while left:
            bookings, people = self._together(left.pop())
            left -= people
            if bookings and (pods := self._waiting_pods(people)):
                covered = cover_waiting(self._room, self._copied_uses(bookings), pods, self._shared)
                found += [(pod, covered[pod.holder.uid]) for pod in pods if pod.holder.uid in covered]
        found.sort(key=lambda each: waiting_order(each[0]))
        self._waiting = {pod.holder.uid: by for pod, by in found}
        narrowed: dict[tuple[Request, str, frozenset[GpuUuid], frozenset[GpuUuid]], Request] = {}
        waiting = []
        for pod, by in found:
            assert pod.request is not None, "a pod that waits has been read"
            # One object for all that ask alike: it is made, and compared, once.
            booking, question = by.entitlement, (pod.request, by.entitlement.model, by.only, by.not_on)
            asked = narrowed.get(question) or narrowed.setdefault(question, by.narrowed(pod.request))
            waiting.append(WaitingPod(pod.holder, asked, pod.nodes, booking.booking, booking.settled))
        self._booked_waiting = tuple(waiting)

    def _waiting_pods(self, people: Iterable[PersonId]) -> list[PersonsPod]:
        pods = []
        for theirs in (self._unbound_of[person] for person in people if person in self._unbound_of):
            for uid, known in theirs.items():
                theirs[uid] = pod = known or self._read(uid)
                if pod is not None and pod.request is not None and not self._ledger.shares_of(uid):
                    pods.append(pod)
        return pods

    def _copied_uses(self, bookings: Iterable[BookingId]) -> Uses:
        copies = uses_of(self._running[booking] for booking in bookings)
        for booking, use in copies.items():
            use.gpus = self._uses[booking].gpus.copy()
        return copies


def discard(sets: dict[_Key, set[_Item]], key: _Key, item: _Item) -> None:
    """Take the item out of its set, and an empty set out of the sets."""
    if key in sets:
        sets[key].discard(item)
        if not sets[key]:
            del sets[key]
