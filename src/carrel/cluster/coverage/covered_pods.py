"""Keeps up to date which pods are covered by which booking.

`ledger.coverage` decides. Here its answer is remembered, and worked out again only for the people whom a change
concerns: a booking that starts, ends or changes, a pod, a share. People who share a booking belong together. Pods that
wait are looked at again whenever the ledger has changed, because that decides whether they could be placed.

Inside a what-if of the ledger nothing is worked out: the answers are those from before it.
"""

import heapq
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

from carrel.cluster.coverage.coverage_changes import entitlement_in, matters
from carrel.cluster.eligible_nodes import EligibleNodes
from carrel.cluster.options import ClusterOptions
from carrel.cluster.pod_progress import bound_at, created_at, holder_of, is_ending, is_waiting
from carrel.cluster.pod_requests import PodRequests, request_in
from carrel.cluster.watches import Watches, has_exemption
from carrel.dialects.booking_objects import BookingObject, namespace_named
from carrel.dialects.carrel import BOOKING
from carrel.dialects.tier import is_told_a_tier, person_of
from carrel.kubernetes.objects.affinity import takes_the_same_pods
from carrel.kubernetes.objects.kinds import Namespace, NodeObject, Pod
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
from carrel.ledger.shares import Holder
from carrel.ledger.tiers import Tier


class CoveredPods:
    def __init__(
        self,
        ledger: Ledger,
        watches: Watches,
        requests: PodRequests,
        eligible_nodes: EligibleNodes,
        options: ClusterOptions,
    ) -> None:
        self._ledger = ledger
        self._watches = watches
        self._claim_users = watches.claim_users
        self._requests = requests
        self._eligible_nodes = eligible_nodes
        self._policy = options.tier_policy
        self._now = options.now
        self._known: dict[str, Entitlement] = {}  # all bookings, running or not
        self._known_of: dict[str, set[str]] = {}  # person → their bookings, running or not
        self._running: dict[str, Entitlement] = {}
        self._running_of: dict[str, set[str]] = {}  # person → their bookings that run
        self._turns: list[tuple[datetime, str]] = []  # when a booking starts or ends
        self._changed_people: set[str] = set()
        self._holders: dict[str, Covered] = {}  # uid → by what a pod that holds GPUs is covered
        self._covered_of: dict[str, set[str]] = {}  # person → the uids in it
        self._uses: dict[str, BookingUse] = {}  # by pods that hold GPUs
        self._recorded: dict[str, set[str]] = {}  # booking → the uids that Leases record for it
        self._bookings_of: dict[str, set[str]] = {}  # the same the other way round
        self._shared = SharedGpus()
        self._unbound_of: dict[str, set[str]] = {}  # person → the uids of pods that wait
        self._read: dict[str, tuple[Pod, PersonsPod]] = {}  # uid → a pod that waits, and what it asks for
        self._waiting: dict[str, Covered] = {}
        self._booked_waiting: tuple[WaitingPod, ...] = ()
        self._waiting_at: tuple[int, int] = (-1, -1)  # the ledger's version and our own, when that was true
        self._moment = 0
        self._room = RevocableRoom(ledger, self._is_revocable)
        for uid in ledger.holders():
            self._note_records(uid)

    # --- changes -----------------------------------------------------------------------------------------------------

    def on_booking(self, old: BookingObject | None, new: BookingObject | None) -> None:
        name = (new or old).metadata.name if (new or old) else ""  # type: ignore[union-attr] # one of them is there
        entitlement = entitlement_in(new) if new is not None else None
        if entitlement is not None and entitlement == self._known.get(name):
            return  # only its status has changed
        self._stop(name)
        before = self._known.pop(name, None)
        for person in before.people if before is not None else ():
            _discard(self._known_of, person, name)
        if entitlement is None:
            return
        self._known[name] = entitlement
        for person in entitlement.people:
            self._known_of.setdefault(person, set()).add(name)
        for turn in (entitlement.start, entitlement.ends):
            heapq.heappush(self._turns, (turn, name))
        if entitlement.runs_at(self._now()):
            self._start(entitlement)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and not matters(old, new):
            return
        for pod in (old, new):
            if pod is None:
                continue
            uid = pod.metadata.uid
            self._read.pop(uid, None)
            if person := person_of(pod):
                self._changed_people.add(person)
                _discard(self._unbound_of, person, uid)
                if pod is new and is_waiting(pod):
                    self._unbound_of.setdefault(person, set()).add(uid)
            claims = self._claim_users.used_by(pod)
            self._note_people(filter(None, map(self._claim_users.pod_of, claims)))
            self._note_recorded((uid, *claims))
            if any(map(self._ledger.shares_of, (uid, *claims))):  # what others may have by revocation has changed
                self._moment += 1
                self._room.changed()

    def on_claim(self, uid: str, users: Collection[Pod]) -> None:
        """A ResourceClaim has changed, or is used by other pods than before; these use it, or did."""
        if not users and not self._ledger.shares_of(uid):
            return  # nobody's, or a shadow claim: most of them are, and change nothing here
        for pod in users:
            self._read.pop(pod.metadata.uid, None)
        self._note_people(users)
        self._note_recorded((uid,))
        self._moment += 1
        self._room.changed()

    def _note_people(self, pods: Iterable[Pod]) -> None:
        self._changed_people |= {person for pod in pods if (person := person_of(pod))}

    def _note_recorded(self, uids: Iterable[str]) -> None:
        """What is gone counts for the bookings that its Leases record, whoever's it was."""
        if self._bookings_of:
            self._note_bookings(booking for uid in uids for booking in self._bookings_of.get(uid, ()))

    def _note_bookings(self, bookings: Iterable[str]) -> None:
        self._changed_people.update(*(self._running[each].people for each in bookings if each in self._running))

    def on_shares(self, uids: Iterable[str]) -> None:
        """These pods hold other shares than before, or their GPUs are reported differently."""
        for uid in uids:
            self._note_records(uid)
            pod = self._claim_users.pod_of(uid)
            if pod is None:
                self._note_recorded((uid,))
                continue
            self._read.pop(pod.metadata.uid, None)  # a pod waits for those of its claims that hold nothing
            self._note_people((pod,))

    def _note_records(self, uid: str) -> None:
        shares = self._ledger.shares_of(uid).values()
        before, now = self._bookings_of.pop(uid, set()), {each.coverage.booking for each in shares if each.coverage}
        if now:
            self._bookings_of[uid] = now
        for booking in before - now:
            _discard(self._recorded, booking, uid)
        for booking in now:
            self._recorded.setdefault(booking, set()).add(uid)
        self._note_bookings(before ^ now)

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        """Pods may run on other nodes than before."""
        if not takes_the_same_pods(old, new):
            self.on_requests()

    def on_requests(self) -> None:
        """Pods that wait may ask for something else than before: what they refer to has changed."""
        self._moment += 1
        self._read.clear()

    def on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if has_exemption(old) == has_exemption(new):
            return
        self._moment += 1
        self._room.changed()
        self._changed_people.update(self._running_of)

    def _start(self, entitlement: Entitlement) -> None:
        self._running[entitlement.booking] = entitlement
        for person in entitlement.people:
            self._running_of.setdefault(person, set()).add(entitlement.booking)
        self._changed_people |= entitlement.people

    def _stop(self, booking: str) -> None:
        entitlement = self._running.pop(booking, None)
        if entitlement is None:
            return
        self._uses.pop(booking, None)
        self._moment += 1
        for person in entitlement.people:
            _discard(self._running_of, person, booking)
        self._changed_people |= entitlement.people

    # --- answers -----------------------------------------------------------------------------------------------------

    def of(self, uid: str) -> Covered | None:
        """None: no booking covers the pod."""
        self._update()
        if not (self._holders or self._running_of):
            return None  # no booking runs
        pod = self._claim_users.pod_of(uid)
        if (found := self._holders.get(uid)) is not None:
            return found if pod is None or pod.metadata.uid != uid else self._unless_beyond(pod, found)
        if pod is None or person_of(pod) not in self._running_of:
            return None  # most pods: for these nothing has to be worked out
        if pod.metadata.uid == uid and (used := self._used_claims(pod)):
            return self._as_guest(pod, used)
        return self._waiting_covered().get(uid)

    def holders(self) -> AbstractSet[str]:
        """The uids of all pods and claims that hold GPUs, and that a booking covers."""
        self._update()
        return self._holders.keys()

    def _unless_beyond(self, pod: Pod, found: Covered) -> Covered | None:
        """A pod that also uses a claim of another pod which no booking covers may lose that one, and ends with it."""
        return found if all(uid in self._holders for uid in self._used_claims(pod)) else None

    def _used_claims(self, pod: Pod) -> list[str]:
        return [uid for uid in self._claim_users.used_by(pod) if self._ledger.shares_of(uid)]

    def _as_guest(self, pod: Pod, claims: Sequence[str]) -> Covered | None:
        """A pod whose claims are another pod's is covered with them, if that booking is for its own person too."""
        found = [self._holders.get(uid) for uid in claims]
        whose = (person_of(pod), namespace_named(pod.metadata.namespace))
        return found[0] if all(each is not None and each.entitlement.is_for(*whose) for each in found) else None

    def waiting(self) -> Sequence[tuple[Pod, Covered]]:
        """The covered pods that wait, the oldest first."""
        self._update()
        found = [(self._claim_users.pod_of(uid), covered) for uid, covered in self._waiting_covered().items()]
        return [(pod, covered) for pod, covered in found if pod is not None]

    def booked_waiting(self) -> Sequence[WaitingPod]:
        """The same, with what they ask for."""
        self._update()
        self._waiting_covered()
        return self._booked_waiting

    def of_newcomer(self, pod: Pod, person: str, request: Request) -> Covered | None:
        """By what a pod of that person would be covered that is about to be created."""
        self._update()
        bookings, people = self._together(person)
        if not bookings:
            return None
        namespace = pod.metadata.namespace
        newcomer = PersonsPod(
            holder=Holder("", namespace),
            person=person,
            namespace=namespace_named(namespace),
            created=datetime.max.replace(tzinfo=UTC),  # after all that exist
            bound_at=None,
            request=request,
            nodes=self._eligible_nodes.nodes_for(pod),
            nodes_when_open=self._eligible_nodes.nodes_for(pod, when_open=True),
            wanted_booking=pod.metadata.annotations.get(BOOKING, ""),
        )
        waiting = [] if self._unbound_of.keys().isdisjoint(people) else self._waiting_pods(people)
        return cover_waiting(self._room, self._copied_uses(bookings), [*waiting, newcomer], self._shared).get("")

    def is_revocable(self, uid: str) -> bool:
        """Whether the pod would have to give its GPUs to a booked pod: it is opportunistic, or gone anyway."""
        self._update()
        return self._is_revocable(uid)

    def _is_revocable(self, uid: str) -> bool:
        pod = self._claim_users.pod_of(uid)
        if pod is None or is_ending(pod):
            return True
        return uid not in self._holders and self.uncovered_tier(pod) is Tier.OPPORTUNISTIC

    def tier(self, pod: Pod) -> Tier | None:
        """As it is now; what is written on the pod follows within seconds. None: it has none, and keeps its GPUs."""
        return Tier.BOOKED if self.of(pod.metadata.uid) is not None else self.uncovered_tier(pod)

    def uncovered_tier(self, pod: Pod) -> Tier | None:
        """The tier of a pod that no booking covers. None: it is exempt, or was there before Carrel."""
        has_tier = is_told_a_tier(pod, self._policy) and not self.is_exempt(pod)
        return Tier.OPPORTUNISTIC if has_tier else None

    def is_exempt(self, pod: Pod) -> bool:
        return self._watches.is_exempt(pod.metadata.namespace)

    def use_of(self, booking: str) -> BookingUse | None:
        """What the pods that hold GPUs use of a booking; None: it does not run."""
        self._update()
        entitlement = self._running.get(booking)
        return self._uses.get(booking) or (BookingUse(entitlement) if entitlement else None)

    def covered_by(self, booking: str) -> list[Pod]:
        """The pods that hold GPUs and that the booking covers."""
        self._update()
        entitlement = self._running.get(booking)
        uids = {
            uid for person in (entitlement.people if entitlement else ()) for uid in self._covered_of.get(person, ())
        }
        here = [uid for uid in uids if self._holders[uid].entitlement.booking == booking]
        found = map(self._claim_users.pod_of, here)
        pods = {pod.metadata.uid: pod for pod in found if pod is not None}  # one may have several claims
        return sorted(pods.values(), key=lambda pod: holder_of(pod).full_name)

    def users_of(self, booking: str) -> list[Pod]:
        """The same, and those that wait for its GPUs."""
        waiting = [pod for pod, covered in self.waiting() if covered.entitlement.booking == booking]
        return [*self.covered_by(booking), *waiting]

    def booking(self, booking: str) -> Entitlement | None:
        """Whether it runs, is planned, or has just ended; None: there is none."""
        return self._known.get(booking)

    def bookings(self) -> Sequence[Entitlement]:
        return tuple(self._known.values())

    def running_for(self, person: str, namespace: str) -> list[Entitlement]:
        """The bookings of a person that run now; the one that ends last comes first."""
        self._update()
        theirs = uses_of(self._running[each] for each in self._running_of.get(person, ()))
        return [use.entitlement for use in theirs.values() if use.entitlement.is_for(person, namespace)]

    def planned_for(self, person: str, namespace: str) -> list[Entitlement]:
        """The bookings of a person that start later, the next one first."""
        now = self._now()
        theirs = [self._known[name] for name in self._known_of.get(person, ())]
        planned = [each for each in theirs if now < each.start and each.is_for(person, namespace)]
        return sorted(planned, key=lambda each: (each.start, each.booking))

    def running(self) -> Sequence[Entitlement]:
        """The bookings that run now."""
        self._update()
        return tuple(self._running.values())

    # --- working it out ----------------------------------------------------------------------------------------------

    def _update(self) -> None:
        if not (self._turns or self._changed_people) or self._ledger.is_what_if:
            return
        now = self._now()
        while self._turns and self._turns[0][0] <= now:
            _, name = heapq.heappop(self._turns)
            entitlement = self._known.get(name)
            if entitlement is not None and entitlement.runs_at(now) != (name in self._running):
                self._stop(name)
                if entitlement.runs_at(now):
                    self._start(entitlement)
        if not self._changed_people:
            return
        groups = []
        while self._changed_people:
            bookings, people = self._together(self._changed_people.pop())
            self._changed_people -= people
            groups.append((bookings, people))
        # First all are taken off: a pod may have moved from a person of one group to a person of another.
        were_covered = {uid for _, people in groups for person in people for uid in self._covered_of.pop(person, ())}
        for uid in were_covered:
            del self._holders[uid]
            self._shared.remove(uid)
        for bookings, people in groups:
            if bookings:
                self._cover_holders(bookings, people)
        if were_covered or any(bookings for bookings, _ in groups):
            self._moment += 1
        if not were_covered <= self._holders.keys():
            self._room.changed()

    def _together(self, person: str) -> tuple[set[str], set[str]]:
        """The bookings that run for the person, for those who share one of them, and so on; and all these people."""
        theirs = self._running_of.get(person, set())
        if all(len(self._running[booking].people) == 1 for booking in theirs):
            return theirs, {person}  # mostly: a person's own bookings
        people, bookings, left = {person}, set[str](), [person]
        while left:
            for booking in self._running_of.get(left.pop(), set()) - bookings:
                bookings.add(booking)
                new = self._running[booking].people - people
                people |= new
                left += new
        return bookings, people

    def _cover_holders(self, bookings: Iterable[str], people: Iterable[str]) -> None:
        uses: Uses = uses_of(self._running[booking] for booking in bookings)
        pods: list[PersonsPod] = []
        for person in people:
            holding = filter(self._holds_gpus, self._watches.pods_of(person))
            pods += [self._persons_pod(pod, person) for pod in holding]
        pods += self._gone_pods(uses)
        covered = cover_holders(self._ledger, uses, pods)
        for pod in pods:
            if (by := covered.get(pod.holder.uid)) is not None:
                self._note_covered(pod, by)
        self._uses |= uses

    def _note_covered(self, pod: PersonsPod, by: Covered) -> None:
        for uid in pod.uids:
            self._holders[uid] = by
            self._covered_of.setdefault(pod.person, set()).add(uid)
            parts = (gpu for gpu, share in self._ledger.shares_of(uid).items() if share.memory is not None)
            self._shared.add(uid, by.entitlement, parts)

    def _holds_gpus(self, pod: Pod) -> bool:
        uids = self._claim_users.holder_uids(pod)
        return any(map(self._ledger.shares_of, uids)) and not self.is_exempt(pod)

    def _gone_pods(self, uses: Uses) -> Iterable[PersonsPod]:
        """Pods that are gone, or that the cache does not show yet: their GPUs count until their Leases are free."""
        for booking, use in uses.items():
            entitlement = use.entitlement
            for uid in self._recorded.get(booking, ()):
                if self._claim_users.pod_of(uid) is None and entitlement.people:
                    person, created = min(entitlement.people), entitlement.start
                    yield PersonsPod(Holder(uid), person, entitlement.namespace, created, None, None)

    def _waiting_covered(self) -> dict[str, Covered]:
        now = (self._ledger.version, self._moment)
        if self._waiting_at != now and not self._ledger.is_what_if:
            self._cover_waiting()
            self._waiting_at = now
        return self._waiting

    def _cover_waiting(self) -> None:
        covered: dict[str, Covered] = {}
        waiting: list[PersonsPod] = []
        left = self._unbound_of.keys() & self._running_of.keys()
        with self._room.unchanged():
            while left:
                bookings, people = self._together(left.pop())
                left -= people
                pods = self._waiting_pods(people)
                if pods:
                    covered |= cover_waiting(self._room, self._copied_uses(bookings), pods, self._shared)
                    waiting += pods
        in_order = [pod for pod in sorted(waiting, key=waiting_order) if pod.holder.uid in covered]
        self._waiting = {pod.holder.uid: covered[pod.holder.uid] for pod in in_order}
        narrowed: dict[tuple[Request, str, frozenset[str], frozenset[str]], Request] = {}
        found = []
        for pod, by in zip(in_order, self._waiting.values(), strict=True):
            assert pod.request is not None, "a pod that waits has been read"
            # One object for all that ask alike: it is made, and compared, once.
            booking, question = by.entitlement, (pod.request, by.entitlement.model, by.only, by.not_on)
            asked = narrowed.get(question) or narrowed.setdefault(question, by.narrowed(pod.request))
            found.append(WaitingPod(pod.holder, asked, pod.nodes, booking.booking, booking.settled))
        self._booked_waiting = tuple(found)

    def _waiting_pods(self, people: Iterable[str]) -> list[PersonsPod]:
        waiting = [
            (person, pod)
            for person in people
            for uid in self._unbound_of.get(person, ())
            if (pod := self._claim_users.pod_of(uid)) is not None
        ]
        pods = [
            self._as_read(pod, person)
            for person, pod in waiting
            if not self._ledger.shares_of(pod.metadata.uid) and not self.is_exempt(pod)
        ]
        return [pod for pod in pods if pod.request is not None]

    def _as_read(self, pod: Pod, person: str) -> PersonsPod:
        """To read what a pod asks for costs more than to look for room."""
        known, read = self._read.get(pod.metadata.uid, (None, None))
        if known is not pod or read is None:
            read = self._persons_pod(pod, person)
            self._read[pod.metadata.uid] = (pod, read)
        return read

    def _copied_uses(self, bookings: Iterable[str]) -> Uses:
        copies = uses_of(self._running[booking] for booking in bookings)
        for booking, use in copies.items():
            use.add(self._uses[booking].gpus)
        return copies

    def _persons_pod(self, pod: Pod, person: str) -> PersonsPod:
        waits = is_waiting(pod)
        return PersonsPod(
            holder=holder_of(pod),
            person=person,
            namespace=namespace_named(pod.metadata.namespace),
            created=created_at(pod),
            bound_at=bound_at(pod),
            request=request_in(self._requests.as_admitted(pod)) if waits else None,
            nodes=self._eligible_nodes.nodes_for(pod) if waits else (),
            nodes_when_open=self._eligible_nodes.nodes_for(pod, when_open=True) if waits else (),
            wanted_booking=pod.metadata.annotations.get(BOOKING, ""),
            claims=tuple(self._claim_users.claims_of(pod)),
        )


def _discard(sets: dict[str, set[str]], key: str, item: str) -> None:
    """And the set itself, when it is empty."""
    if key in sets:
        sets[key].discard(item)
        if not sets[key]:
            del sets[key]
