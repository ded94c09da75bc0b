"""What one process knows of the cluster: its caches, its own ledger, and what pods asked for."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from carrel.dialects import dra
from carrel.dialects.booking_objects import BOOKINGS, BookingObject
from carrel.dialects.carrel import EXEMPT, TIER
from carrel.dialects.dra import DraDriver
from carrel.dialects.gang_makers import pod_of_template
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES, GpuClaim, GpuNodeStatus
from carrel.dialects.interface import Dialect, PodRequest
from carrel.dialects.kai_objects import POD_GROUPS, PodGroup
from carrel.dialects.kai_reservation import is_reservation
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.dialects.registry import dialects_of, gang_name, request_of
from carrel.dialects.seal import ADMITTED, Seal
from carrel.dialects.tier import counts_as, person_of, tier_of
from carrel.kubernetes.cluster import Cluster, NotFound, Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.isolation import RETRY, Isolation
from carrel.kubernetes.objects.kinds import Namespace, NodeObject, Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resource_claims import ResourceClaim
from carrel.kubernetes.objects.resources import LEASES, NAMESPACES, NODES, PODS
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, Reflector, WatchTiming
from carrel.kubernetes.timing import Backoff
from carrel.leases.claim_users import NAMES_CLAIM, ClaimUsers, claims_named_by
from carrel.leases.closed_nodes import ClosedNodes
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.coverage_context import CoverageContext
from carrel.leases.covered_pods import CoveredPods
from carrel.leases.device_claims import DeviceClaims
from carrel.leases.eligible_nodes import NOWHERE, Eligibility, EligibleNodes
from carrel.leases.gang_members import GangMemberLookup
from carrel.leases.gang_sizes import GangSizeContext, GangSizes, claim_key, gang_keys, group_key, may_name_gang
from carrel.leases.gone_holders import GoneHolders
from carrel.leases.lease_writer import LeaseContext, LeaseWriter
from carrel.leases.nominations import Nominations
from carrel.leases.pod_progress import is_ending, slot_of
from carrel.leases.reservation_wait import RESERVE_S, ReservationWaiter
from carrel.leases.waiting_booked import WaitingBooked
from carrel.leases.waiting_reason import Waiting, WaitingContext, WaitingReason
from carrel.leases.wake import SchedulerWaker
from carrel.ledger.coverage import Covered
from carrel.ledger.placement import keeper_of
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Gang, Request
from carrel.ledger.shares import Share
from carrel.ledger.tiers import DEFAULT_TIER_POLICY, Tier, TierPolicy
from carrel.parsing import Malformed

NAMESPACE = "carrel"
"""Where Carrel's own Leases are, unless the setting says otherwise."""

NAMESPACE_OF, GANG_OF, SLOT_OF, SEAL_OF = "namespace", "gang", "slot", "seal"
PERSON_OF, COUNTS_AS = "person", "counts as"
"""The indexes of the caches."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the cluster's admin has decided, and the clocks."""

    namespace: str = NAMESPACE
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS
    reserve_s: float = RESERVE_S
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    watch_timing: WatchTiming = DEFAULT_WATCH_TIMING
    retry: Backoff = RETRY
    """How long an object for which a step failed waits for the next try."""
    seal: Seal | None = None
    """With it, only pods that came through the webhook get a GPU."""
    tier_policy: TierPolicy = DEFAULT_TIER_POLICY
    dra: bool = False
    """Whether ResourceClaims are read: see `device_claims`."""
    dra_driver: DraDriver = DraDriver.CARREL
    reads_makers: bool = True
    """Whether what made the pods of a gang is read, to learn its size: only who places pods, or says why they wait."""


DEFAULT_CLUSTER_OPTIONS = ClusterOptions()


class ClusterState:
    """The informers have to be run."""

    def __init__(self, cluster: Cluster, options: ClusterOptions = DEFAULT_CLUSTER_OPTIONS) -> None:
        self.cluster = cluster
        self.options = options
        self.isolation = Isolation(options.clock, options.retry)
        self.informers = Informers(cluster, options.watch_timing, isolation=self.isolation)
        self.pods: Reflector[Pod] = self.informers.watch(
            PODS,
            indexes={
                NAMESPACE_OF: lambda pod: [pod.metadata.namespace],
                PERSON_OF: lambda pod: filter(None, [person_of(pod)]),
                COUNTS_AS: lambda pod: [counts_as(pod)],
                SLOT_OF: lambda pod: filter(None, [slot_of(pod)]),
                GANG_OF: gang_keys,
                SEAL_OF: lambda pod: filter(None, [pod.metadata.annotations.get(ADMITTED)]),
                NAMES_CLAIM: claims_named_by,
            },
        )
        self.claims: Reflector[GpuClaim] = self.informers.watch(
            GPU_CLAIMS, indexes={GANG_OF: lambda claim: [f"{claim.metadata.namespace}/{claim.spec.gang_ref}"]}
        )
        self.pod_groups: Reflector[PodGroup] = self.informers.watch(POD_GROUPS, optional=True)
        self.nodes: Reflector[NodeObject] = self.informers.watch(NODES)
        self.leases = self.informers.watch(LEASES, Selection(options.namespace), after=(self.pods,))
        drivers = (options.dra_driver.value,)
        self.device_claims = DeviceClaims(self.informers, drivers, options.namespace) if options.dra else None
        self.claim_users = ClaimUsers(self.pods.store, self.device_claims)
        closed_nodes = ClosedNodes(self.pods, self.nodes, options.namespace)
        unit, by_uid = options.dialect_options.memory_unit, self.pods.store.by_uid
        self.cluster_ledger = ClusterLedger(by_uid, unit, self._asked_in_pod, self.isolation, closed_nodes.why)
        self.cluster_ledger.pod_of_holder = self.claim_users.pod_of
        self.cluster_ledger.claims_used_by = self.claim_users.used_by
        if self.device_claims is not None:
            self.cluster_ledger.name_of_claim = self.device_claims.name_of
        self.ledger = self.cluster_ledger.ledger
        counted: tuple[Reflector[Any], ...] = (self.pods, self.claims, self.leases)
        self.cluster_ledger.is_complete = lambda: (
            self.leases.is_synced and self.pods.is_synced and self.claims.is_synced
        )
        for each in counted:
            each.on_synced(self.cluster_ledger.on_complete)
        # Last, so that each node is summed up once, and not again with each of its Leases and pods.
        before: tuple[Reflector[Any], ...] = (*counted, self.nodes)
        self.node_statuses: Reflector[GpuNodeStatus] = self.informers.watch(GPU_NODE_STATUSES, after=before)
        self.node_statuses.on_change(self.cluster_ledger.on_node_status)
        read: tuple[Reflector[Any], ...] = (*before, self.node_statuses)
        self.cluster_ledger.is_all_read = lambda: all(each.is_synced for each in read)
        self.nodes.on_change(self.cluster_ledger.on_node)
        self.eligible_nodes = EligibleNodes(self.nodes.store.snapshot, closed_nodes.is_usual)
        self.nodes.on_change(self.eligible_nodes.on_node)
        self.leases.on_change(self.cluster_ledger.on_lease)
        self.pods.on_change(self.cluster_ledger.on_pod)
        self.bookings: Reflector[BookingObject] = self.informers.watch(BOOKINGS, optional=True)
        self.namespaces: Reflector[Namespace] = self.informers.watch(NAMESPACES)
        self.gone_holders = GoneHolders(self.ledger.shares_of)
        self.pods.on_change(self.gone_holders.on_pod)
        self.covered_pods = CoveredPods(self.ledger, self._coverage_context())
        self.bookings.on_change(self.covered_pods.on_booking)
        self.pods.on_change(self.covered_pods.on_pod)
        self.nodes.on_change(self.covered_pods.on_node)
        if self.device_claims is not None:
            self._watch_device_claims(self.device_claims)
        self.claims.on_change(self._on_request_part)
        self.pod_groups.on_change(self._on_request_part)
        self.namespaces.on_change(self._on_namespace)
        self.cluster_ledger.on_shares = self.covered_pods.on_shares
        self.gang_sizes = GangSizes(self._gang_size_context())
        self.pods.on_change(self._on_gang_pod)

        lease_context = LeaseContext(cluster, options.namespace, options.now, options.clock, lambda: token_hex(6))
        reservation_waiter = ReservationWaiter(self.cluster_ledger, options.reserve_s)
        self.leases.on_change(reservation_waiter.on_lease)
        self.lease_writer = LeaseWriter(self.cluster_ledger, lease_context, reservation_waiter)
        self.wake = SchedulerWaker(cluster, options.now)
        self.nominations = Nominations(cluster, options.now, self.wake.touch)
        self.gang_members = GangMemberLookup(self._pods_that_may_name, self.read_request)
        self.booked_waiting = WaitingBooked(self.covered_pods, self.pods, self.gang_members, options.now)
        context = WaitingContext(
            self.requested_by,
            self.gang_members,
            self.booked_waiting,
            self.keeper,
            self.leaves_room,
            self.why_over_limit,
            self._eligible,
        )
        self.waiting_reason = WaitingReason(self.cluster_ledger.ledger, context)

    # --- what a pod asks for -----------------------------------------------------------------------------------------

    def read_request(self, pod: Pod) -> PodRequest | Refusal | None:
        """None if the pod asks for no GPU. Raises `Malformed` if the request cannot be read.

        Of a pod that waits and is covered by a booking, only the booked GPUs are asked for.
        """
        asked = self._request_of(pod)
        if not isinstance(asked, PodRequest) or pod.spec.node_name:
            return asked
        covered = self.covered(pod)
        return replace(asked, request=covered.narrowed(asked.request)) if covered is not None else asked

    def _request_of(self, pod: Pod) -> PodRequest | Refusal | None:
        """As the pod says it."""
        if is_reservation(pod):
            return None  # its GPU is for other pods, which are on the slot's Lease
        asked = self.request_of_newcomer(pod)
        if not isinstance(asked, PodRequest) or pod.spec.node_name:
            return asked  # a pod that has its GPU keeps it
        return self.why_not_sealed(pod) or asked.not_recorded_on(pod) or asked

    def why_not_sealed(self, pod: Pod) -> Refusal | None:
        """Why a pod that was not admitted by Carrel's webhook gets no GPU; None if it was."""
        seal = self.options.seal
        return seal.missing_on(pod, self.sealed_with(pod.metadata.annotations.get(ADMITTED, ""))) if seal else None

    def sealed_with(self, seal: str) -> Sequence[Pod]:
        """The pods that carry this seal."""
        return self.pods.store.find(SEAL_OF, seal) if seal else ()

    def request_of_newcomer(self, pod: Pod, spoken: tuple[Dialect, ...] | None = None) -> PodRequest | Refusal | None:
        """Return what a pod asks for that is about to be created: nothing is recorded on it yet.
        `spoken`: its dialects, if known. Raises only `Malformed`: one pod must not stop a question about others."""
        try:
            return self._asked_in_pod(pod, spoken) or self._asked_by_claims(pod)
        except Malformed:
            raise
        except Exception as error:
            self.isolation.failed("request", subject(pod.metadata), error)
            return Refusal(f"what {subject(pod.metadata)} asks for cannot be understood; Carrel's log says why")

    def _asked_in_pod(self, pod: Pod, spoken: tuple[Dialect, ...] | None = None) -> PodRequest | Refusal | None:
        """In one of the dialects in which Carrel places pods."""
        return request_of(pod, self._claim_named, self._gang_of, self.options.dialect_options, spoken)

    def _asked_by_claims(self, pod: Pod) -> PodRequest | Refusal | None:
        """By ResourceClaims, which any scheduler allocates. Of a pod that waits: by those that have no GPUs yet."""
        if self.device_claims is None or not self.device_claims.may_be_asked_by(pod):
            return None
        waits = bool(pod.metadata.uid) and not pod.spec.node_name
        claims, held = self.device_claims, self.ledger.shares_of
        request = claims.wanted_by(pod, lambda uid: bool(held(uid))) if waits else claims.request_of(pod)
        return PodRequest(dra.DIALECT, request) if request is not None else None

    def placed_request(self, pod: Pod) -> PodRequest | Refusal | None:
        """Return the request of a pod that Carrel's extender places; None if it asks only by ResourceClaims."""
        asked = self.requested_by(pod)
        return None if isinstance(asked, PodRequest) and asked.dialect is dra.DIALECT else asked

    def requested_by(self, pod: Pod) -> PodRequest | Refusal | None:
        """The same; a request that cannot be read is refused."""
        try:
            return self.read_request(pod)
        except Malformed as malformed:
            return Refusal(str(malformed))

    def _claim_named(self, namespace: str, name: str) -> GpuClaim | None:
        return self.claims.store.get(name, namespace)

    # --- gangs whose size neither pod nor claim says -----------------------------------------------------------------

    def _gang_of(self, pod: Pod, name: str) -> Gang | None:
        """As KAI's PodGroup of this name says, else as `gang_sizes` finds out."""
        group = self.pod_groups.store.get(name, pod.metadata.namespace)
        says_size = group is not None and (group.spec.sub_groups or group.spec.min_member > 0)
        return self.gang_sizes.of_group(pod, group) if group and says_size else self.gang_sizes(pod, name)

    def _gang_size_context(self) -> GangSizeContext:
        return GangSizeContext(
            cluster=self.cluster,
            pods_naming=self._pods_naming,
            gang_of_template=self._gang_of_template,
            clock=self.options.clock,
            settle_s=self.options.dialect_options.gang_settle_s,
            changed=self._on_requests,
            reads_makers=self.options.reads_makers,
            isolation=self.isolation,
        )

    def _pods_naming(self, namespace: str, gang: str) -> list[Pod]:
        found = (pod for pod in self._pods_that_may_name(namespace, gang) if self._gang_name(pod) == gang)
        return list({pod.metadata.uid: pod for pod in found}.values())

    def _pods_that_may_name(self, namespace: str, gang: str) -> Iterator[Pod]:
        """Some twice; and those whose claim names another gang, which goes before what they say themselves."""
        yield from self.pods.store.find(GANG_OF, group_key(namespace, gang))
        for claim in self.claims.store.find(GANG_OF, f"{namespace}/{gang}"):
            yield from self.pods.store.find(GANG_OF, claim_key(namespace, claim.metadata.name))

    def _gang_name(self, pod: Pod) -> str:
        try:
            return gang_name(pod, self._claim_named)
        except Malformed:
            return ""  # its own filter call returns the error

    def _gang_of_template(self, template: Mapping[str, Any], namespace: str) -> str:
        name = gang_name(pod_of_template(template, namespace), self._claim_named)
        return f"{namespace}/{name}" if name else ""

    def _on_gang_pod(self, old: Pod | None, new: Pod | None) -> None:
        if (new is not None and may_name_gang(new)) or (old is not None and may_name_gang(old)):
            self.gang_sizes.on_pod(old, new)

    # --- bookings ----------------------------------------------------------------------------------------------------

    async def reread(self) -> bool:
        """Reads Leases and bookings past the caches. False: that of bookings is old, and takes nothing away."""
        await self.lease_writer.reread_all()
        try:
            found = (await self.cluster.list(BOOKINGS)).items
        except NotFound:
            found = []  # the kind is not installed
        there = {booking.metadata.name: booking.spec for booking in found}
        return there == {booking.metadata.name: booking.spec for booking in self.bookings.store}

    def pods_of(self, person: str) -> Sequence[Pod]:
        return self.pods.store.find(PERSON_OF, person)

    def covered(self, pod: Pod) -> Covered | None:
        """By which booking; None: by none."""
        return self.covered_pods.of(pod.metadata.uid)

    def tier(self, pod: Pod) -> Tier | None:
        """As it is now; what is written on the pod follows within seconds. None: it has none, and keeps its GPUs."""
        if self.covered(pod) is not None:
            return Tier.BOOKED
        return Tier.OPPORTUNISTIC if self._has_tier(pod) else None

    def _has_tier(self, pod: Pod) -> bool:
        """A pod without one is exempt, or was there before Carrel."""
        return self._is_told(pod) and not self.covered_pods.is_exempt(pod)

    def _is_told(self, pod: Pod) -> bool:
        older_are = self.options.tier_policy.older_pods_are_revocable
        return tier_of(pod) is not None or (older_are and TIER not in pod.metadata.annotations)

    def keeper(self, pod: Pod) -> str:
        """In whose name it gets what is kept for it."""
        covered = self.covered(pod)
        return keeper_of(self.ledger, pod.metadata.uid, covered.entitlement.booking if covered is not None else "")

    def may_lose_gpus(self, pod: Pod) -> bool:
        """A pod that was told that it is booked first learns that no booking covers it any more."""
        return self.tier(pod) is Tier.OPPORTUNISTIC and tier_of(pod) is not Tier.BOOKED

    def is_written_opportunistic(self, pod: Pod) -> bool:
        """The same by what is written on the pod alone, whatever bookings and its namespace say."""
        return self._is_told(pod) and tier_of(pod) is not Tier.BOOKED

    def is_exempt(self, namespace: str) -> bool:
        return _is_exempt(self.namespaces.store.get(namespace))

    def holder_may_lose_gpus(self, uid: str) -> bool:
        """The same of what holds GPUs: a pod, or a ResourceClaim, whose pods all end with it."""
        if self.covered_pods.of(uid) is not None:
            return False
        pods = [pod for pod in self.claim_users.pods_of(uid) if not is_ending(pod)]
        return bool(pods) and all(map(self.may_lose_gpus, pods))

    def holder_uids(self, pod: Pod) -> tuple[str, ...]:
        """By what the pod holds GPUs: by itself, and by its claims."""
        return (pod.metadata.uid, *self.claim_users.claims_of(pod))

    def shares_of(self, pod: Pod) -> Sequence[Share]:
        """What the pod holds, by itself and by its claims."""
        return [share for uid in self.holder_uids(pod) for share in self.ledger.shares_of(uid).values()]

    def asks_by_claims(self, pod: Pod) -> bool:
        """Whether it asks for GPUs by ResourceClaims, readably or not; a pod that waits: by those without GPUs yet."""

        def asks(pod: Pod) -> bool:
            try:
                return self._asked_by_claims(pod) is not None
            except Malformed:
                return True  # it waits, and is told why

        return self.isolation.ask("request", pod, asks, False)

    def is_understood(self, pod: Pod) -> bool:
        """Whether Carrel knows which GPUs would do for a pod: the selectors of claims may say more."""
        claims = self.device_claims
        return claims is None or self.isolation.ask("request", pod, claims.is_understood, False)

    def leaves_room(self, pod: Pod) -> bool:
        """Whether it leaves room for booked pods that wait."""
        return self.tier(pod) is Tier.OPPORTUNISTIC

    def why_over_limit(self, pod: Pod, request: Request) -> Refusal | None:
        """Why its person may hold no more GPUs without a booking; None if it may have what it asks for."""
        if not self.leaves_room(pod) or self.ledger.shares_of(pod.metadata.uid):
            return None  # what was promised to it, with its gang for example, counts as held already
        return self.why_person_over_limit(counts_as(pod), request)

    def why_person_over_limit(self, person: str, request: Request) -> Refusal | None:
        """The same of a pod of whom it counts as (`dialects.tier.counts_as`). A gang counts as a whole."""
        limit = self.options.tier_policy.opportunistic_gpus
        if not limit:
            return None
        held = self.covered_pods.uncovered_gpus(person)
        is_first = request.gang is not None and not self.gang_members(request.gang).bound
        pods = request.gang.size if request.gang is not None and is_first else 1
        asked = request.cards * pods if request.amount == WHOLE else 0
        if held + asked <= limit and held < limit:
            return None
        return Refusal(
            f"{person} holds {float(held):.4g} GPU{'s' * (held != 1)} without a booking;"
            f" more than {limit} are not given to one person"
        )

    def _coverage_context(self) -> CoverageContext:
        return CoverageContext(
            pods_of=self.pods_of,
            pods_counted_as=lambda person: [
                *self.pods.store.find(COUNTS_AS, person),
                *self.gone_holders.counted_as(person),
            ],
            pod_by_uid=self.claim_users.pod_of,
            request_of=self.asked_request,
            nodes_for=self.nodes_for,
            nodes_when_open=lambda pod: self.nodes_for(pod, when_open=True),
            has_tier=self._has_tier,
            is_exempt=self.is_exempt,
            now=self.options.now,
            claims_of=self.claim_users.claims_of,
            claims_used_by=self.claim_users.used_by,
        )

    def _watch_device_claims(self, device_claims: DeviceClaims) -> None:
        def on_claim(old: ResourceClaim | None, new: ResourceClaim | None) -> None:
            found = [claim for claim in (old, new) if claim is not None]
            users = {pod.metadata.uid: pod for claim in found for pod in self._concerned_by(claim)}
            self.cluster_ledger.on_claim(found[0].metadata.uid)
            self.covered_pods.on_claim(found[0].metadata.uid, users.values())

        device_claims.claims.on_change(on_claim)
        device_claims.templates.on_change(lambda old, new: self.covered_pods.on_requests())
        device_claims.classes.on_change(lambda old, new: self.covered_pods.on_requests())

    def _concerned_by(self, claim: ResourceClaim) -> Iterator[Pod]:
        """The pods that use the claim, and those that wait for it."""
        yield from self.claim_users.users_of(claim)
        yield from self.pods.store.find(NAMES_CLAIM, f"{claim.metadata.namespace}/{claim.metadata.name}")

    def asked_request(self, pod: Pod) -> Request | None:
        """As the pod says it, whatever its booking covers; None: for no GPU, or it is refused or cannot be read."""
        try:
            asked = self._request_of(pod)
        except Malformed:
            return None
        return asked.request if isinstance(asked, PodRequest) else None

    def _on_request_part(self, old: GpuClaim | PodGroup | None, new: GpuClaim | PodGroup | None) -> None:
        """A part of what pods ask for is in other objects, which may come after the pods."""
        if old is None or new is None or old.spec != new.spec:
            self.gang_sizes.on_claims()
            self._on_requests()

    def _on_requests(self) -> None:
        self.covered_pods.on_requests()
        self.booked_waiting.on_gangs()

    def _on_namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if _is_exempt(old) != _is_exempt(new):
            self.covered_pods.on_exemption()

    # --- where it may go, and why it waits ---------------------------------------------------------------------------

    def nodes_for(self, pod: Pod, *, when_open: bool = False) -> tuple[str, ...]:
        """Also where it may get its ResourceClaims, and use those that it has. `when_open`: if no node were closed."""
        eligible, claims = self._eligible(pod), self.device_claims
        nodes = eligible.when_open if when_open else eligible.nodes
        if claims is None or not claims.may_be_asked_by(pod):
            return nodes
        nodes = claims.with_slices(nodes) if not dialects_of(pod) and self.asks_by_claims(pod) else nodes
        return claims.within_reach(pod, nodes, self.ledger.nodes_held_by)

    def _eligible(self, pod: Pod) -> Eligibility:
        """Nowhere, if its demands on nodes cannot be understood: kube-scheduler understands them neither."""
        return self.isolation.ask("eligible", pod, self.eligible_nodes.of, NOWHERE)

    def why(self, pod: Pod) -> Refusal | None:
        """Why a pod waits for its GPUs; None if it need not wait."""
        waiting = self.waiting(pod)
        return waiting.refusal if waiting is not None else None

    def waiting(self, pod: Pod) -> Waiting | None:
        """The same, with its cause as one of a few words."""
        return self.waiting_reason.why(pod, self.nodes_for(pod))

    def why_none_free(self, pod: Pod, request: Request) -> Refusal | None:
        """Why an opportunistic pod that is about to be created could not be placed now; None if it could."""
        return self.waiting_reason.why_never(pod, request) or self.waiting_reason.why_none_free(
            request, self.nodes_for(pod), leaves_room=True, eligible=self._eligible(pod)
        )

    def gang_runs(self, pod: Pod) -> bool:
        """Whether a member of the pod's gang is bound."""
        asked = self.requested_by(pod)
        gang = asked.request.gang if isinstance(asked, PodRequest) else None
        return gang is not None and self.gang_members(gang).bound > 0


def _is_exempt(namespace: Namespace | None) -> bool:
    return namespace is not None and namespace.metadata.annotations.get(EXEMPT) == "true"
