"""Tells `ledger.coverage_index` what changes in the cluster, and which pods its answers are about.

The GPUs of a ResourceClaim count as those of one of its pods (`cluster.holders`). What holds GPUs and has no pod,
because that is gone or not seen yet, counts for the bookings that its Leases record until they are free.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from carrel.cluster.eligible_nodes import EligibleNodes
from carrel.cluster.options import ClusterOptions
from carrel.cluster.pod_progress import bound_at, created_at, holder_of, is_ending, is_waiting
from carrel.cluster.pod_requests import PodRequests, request_in
from carrel.cluster.watches import Watches, has_exemption
from carrel.dialects.booking_objects import BookingObject, namespace_named, read_entitlement
from carrel.dialects.carrel import BOOKING
from carrel.dialects.tier import is_told_a_tier, person_of
from carrel.ids import NO_POD, BookingId, HolderId, PersonId
from carrel.kubernetes.objects.affinity import takes_the_same_pods
from carrel.kubernetes.objects.kinds import Namespace, NodeObject, Pod
from carrel.ledger.coverage import Covered, PersonsPod
from carrel.ledger.coverage_index import FOREVER, PAST, CoverageIndex, discard
from carrel.ledger.ledger import Ledger
from carrel.ledger.requests import Request
from carrel.ledger.shares import Holder
from carrel.ledger.tiers import Tier
from carrel.parsing import Malformed

log = logging.getLogger(__name__)


class CoveredPods(CoverageIndex):
    def __init__(
        self,
        ledger: Ledger,
        watches: Watches,
        requests: PodRequests,
        eligible_nodes: EligibleNodes,
        options: ClusterOptions,
    ) -> None:
        super().__init__(ledger, options.now)
        self._watches = watches
        self._gpu_holders = watches.holders
        self._requests = requests
        self._eligible_nodes = eligible_nodes
        self._policy = options.tier_policy
        self._recorded: dict[HolderId, set[BookingId]] = {}  # uid → the bookings that its Leases record
        self._recorded_for: dict[BookingId, set[HolderId]] = {}  # the same the other way round
        self.on_shares(ledger.holders())

    # --- changes -----------------------------------------------------------------------------------------------------

    def on_booking(self, old: BookingObject | None, new: BookingObject | None) -> None:
        """One that cannot be read entitles to nothing."""
        if booking := new or old:
            try:
                entitlement = read_entitlement(booking) if new is not None else None
            except Malformed as malformed:
                log.warning("booking_unreadable name=%s why=%r", booking.metadata.name, str(malformed))
                entitlement = None
            self.set_booking(booking.metadata.name, entitlement)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and not _matters(old, new):
            return
        for pod in filter(None, (old, new)):
            uid, others = pod.metadata.uid, self._gpu_holders.used_by(pod)
            if person := person_of(pod):
                self._set_waiting(person, uid, waits=pod is new and is_waiting(pod))
            self._on_holders((uid, *others), [pod, *filter(None, map(self._gpu_holders.pod_of, others))])

    def on_other_holder(self, uid: HolderId, users: Collection[Pod]) -> None:
        """A ResourceClaim has changed, or is used by other pods than before; these use it, or did."""
        if users or self._ledger.shares_of(uid):  # else nobody's, or a shadow claim: most of them are
            self._on_holders((uid,), users)

    def on_shares(self, uids: Iterable[HolderId]) -> None:
        """These pods hold other shares than before, or their GPUs are reported differently."""
        for uid in uids:
            pod = self._gpu_holders.pod_of(uid)
            self._on_holders((uid,), () if pod is None else (pod,), is_room_changed=False)

    def _on_holders(self, uids: Sequence[HolderId], pods: Iterable[Pod], *, is_room_changed: bool = True) -> None:
        """These may hold GPUs, for these pods. What is gone counts for the bookings that its Leases record, whoever's
        it was."""
        for uid in uids:
            shares = self._ledger.shares_of(uid).values()
            now = {share.coverage.booking for share in shares if share.coverage is not None}
            before = self._recorded.pop(uid, set())
            for booking in before - now:
                discard(self._recorded_for, booking, uid)
            for booking in now:
                self._recorded_for.setdefault(booking, set()).add(uid)
            if now:
                self._recorded[uid] = now
            for running in filter(None, map(self._running.get, before | now)):
                self._changed(running.people)
        for pod in pods:  # what it asks for is less by those of its claims that hold something
            theirs = self._unbound_of.get(person_of(pod), {})
            if pod.metadata.uid in theirs:
                theirs[pod.metadata.uid] = None
        is_room_changed = is_room_changed and any(map(self._ledger.shares_of, uids))
        self._changed(filter(None, map(person_of, pods)), is_room_changed=is_room_changed)

    def on_node(self, old: NodeObject | None, new: NodeObject | None) -> None:
        """Pods may run on other nodes than before."""
        if not takes_the_same_pods(old, new):
            self.on_requests()

    def on_requests(self) -> None:
        """Pods that wait may ask for something else than before: what they refer to has changed."""
        self._changed(())
        for theirs in self._unbound_of.values():
            theirs.update(dict.fromkeys(theirs))

    def on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if has_exemption(old) != has_exemption(new):
            self.on_requests()
            self._changed(self._bookings_of, is_room_changed=True)
            self._next_turn = PAST

    # --- answers -----------------------------------------------------------------------------------------------------

    def of(self, uid: HolderId) -> Covered | None:
        """None: no booking covers the pod."""
        self.update()
        if not self._running:
            return None
        pod, found = self._gpu_holders.pod_of(uid), self._holders.get(uid)
        if pod is None or pod.metadata.uid != uid:
            return found
        if found is None and person_of(pod) not in self._bookings_of:
            return None  # most pods: for these nothing has to be worked out
        used = [claim for claim in self._gpu_holders.used_by(pod) if self._ledger.shares_of(claim)]
        if found is not None:
            # Who also uses a claim of another pod which no booking covers may lose that one, and ends with it.
            return found if all(claim in self._holders for claim in used) else None
        return self._as_guest(pod, used) if used else self.covered_waiting().get(uid)

    def _as_guest(self, pod: Pod, claims: Sequence[HolderId]) -> Covered | None:
        """A pod whose claims are another pod's is covered with them, if that booking is for its own person too."""
        found = [self._holders.get(uid) for uid in claims]
        whose = (person_of(pod), namespace_named(pod.metadata.namespace))
        return found[0] if all(each is not None and each.entitlement.is_for(*whose) for each in found) else None

    def of_newcomer(self, pod: Pod, person: PersonId, request: Request) -> Covered | None:
        """By what a pod of that person would be covered that is about to be created."""
        if person not in self._bookings_of:
            return None
        newcomer = self._persons_pod(pod, person, request)
        holder = Holder(NO_POD, pod.metadata.namespace)
        return self.cover_of(replace(newcomer, holder=holder, created=FOREVER, others=()))  # after all that exist

    def is_revocable(self, uid: HolderId) -> bool:
        """Whether the pod would have to give its GPUs to a booked pod: it is opportunistic, or gone anyway."""
        self.update()
        return self._is_revocable(uid)

    def tier(self, pod: Pod) -> Tier | None:
        """As it is now; what is written on the pod follows within seconds. None: it has none, and keeps its GPUs."""
        return Tier.BOOKED if self.of(pod.metadata.uid) is not None else self.uncovered_tier(pod)

    def uncovered_tier(self, pod: Pod) -> Tier | None:
        """The tier of a pod that no booking covers. None: it is exempt, or was there before Carrel."""
        has_tier = is_told_a_tier(pod, self._policy) and not self._watches.is_exempt(pod.metadata.namespace)
        return Tier.OPPORTUNISTIC if has_tier else None

    def covered_by(self, booking: BookingId) -> list[Pod]:
        """The pods that hold GPUs and that the booking covers."""
        self.update()
        people = self._running[booking].people if booking in self._running else ()
        uids = {uid for person in people for uid in self._covered_of.get(person, ())}
        here = [uid for uid in uids if self._holders[uid].entitlement.booking == booking]
        found = filter(None, map(self._gpu_holders.pod_of, here))
        pods = {pod.metadata.uid: pod for pod in found}  # one may have several claims
        return sorted(pods.values(), key=lambda pod: holder_of(pod).full_name)

    def users_of(self, booking: BookingId) -> list[Pod]:
        """The same, and those that wait for its GPUs."""
        waiting = (uid for uid, by in self.covered_waiting().items() if by.entitlement.booking == booking)
        return [*self.covered_by(booking), *filter(None, map(self._gpu_holders.pod_of, waiting))]

    # --- the pods ----------------------------------------------------------------------------------------------------

    def _holding(self, person: PersonId) -> Iterable[PersonsPod]:
        for pod in self._watches.pods_of(person):
            if not self._watches.is_exempt(pod.metadata.namespace):
                yield self._persons_pod(pod, person)
        for entitlement in filter(None, map(self._running.get, self._bookings_of.get(person, ()))):
            if person == min(entitlement.people):
                for uid in self._recorded_for.get(entitlement.booking, ()):
                    if self._gpu_holders.pod_of(uid) is None:
                        yield PersonsPod(Holder(uid), person, entitlement.namespace, entitlement.start, None, None)

    def _read(self, uid: HolderId) -> PersonsPod | None:
        pod = self._gpu_holders.pod_of(uid)
        if pod is None:
            return None
        request = (
            request_in(self._requests.as_admitted(pod)) if not self._watches.is_exempt(pod.metadata.namespace) else None
        )
        return self._persons_pod(pod, person_of(pod), request)

    def _is_revocable(self, uid: HolderId) -> bool:
        pod = self._gpu_holders.pod_of(uid)
        if pod is None or is_ending(pod):
            return True
        return uid not in self._holders and self.uncovered_tier(pod) is Tier.OPPORTUNISTIC

    def _persons_pod(self, pod: Pod, person: PersonId, request: Request | None = None) -> PersonsPod:
        return PersonsPod(
            holder=holder_of(pod),
            person=person,
            namespace=namespace_named(pod.metadata.namespace),
            created=created_at(pod),
            bound_at=bound_at(pod),
            request=request,
            nodes=self._eligible_nodes.nodes_for(pod) if request is not None else (),
            nodes_when_open=self._eligible_nodes.nodes_for(pod, when_open=True) if request is not None else (),
            wanted_booking=BookingId(pod.metadata.annotations.get(BOOKING, "")),
            others=tuple(self._gpu_holders.others_of(pod)),
        )


def _matters(old: Pod, new: Pod) -> bool:
    """Whether the pod asks for something else, or is further. Most changes of a pod are about its containers only."""
    before, now = old.metadata, new.metadata
    return (
        (before.uid, before.annotations, before.labels) != (now.uid, now.annotations, now.labels)
        or old.spec != new.spec
        or is_ending(old) != is_ending(new)
        or bound_at(old) != bound_at(new)
        or old.status.resource_claim_statuses != new.status.resource_claim_statuses
    )
