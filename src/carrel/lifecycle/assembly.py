"""Puts the parts of the controller together, for one process. Tests use the same parts."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

from carrel.bookings.client.interface import BookingService
from carrel.dialects.booking_objects import is_from_enquiry
from carrel.dialects.dra import NOTHING_CLAIMED
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai_reservation import SPELLINGS, is_reservation
from carrel.dialects.when_full import WhenFull
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.cluster_state import NAMESPACE_OF, SLOT_OF, ClusterState
from carrel.leases.confirmed_ends import confirmed_ends_on
from carrel.ledger.tiers import AtEnd
from carrel.lifecycle.booking_enquiries import BookingEnquiries
from carrel.lifecycle.claim_allocator import ClaimAllocator
from carrel.lifecycle.claim_ends import ClaimEnds
from carrel.lifecycle.collection import CollectionContext, LeaseCollector
from carrel.lifecycle.coverage_correction import CoverageCorrection
from carrel.lifecycle.cpu_after_wait import CpuAfterWait, CpuAfterWaitOptions
from carrel.lifecycle.end_limits import DEFAULT_END_LIMITS, EndLimits
from carrel.lifecycle.expiry import Expiry, ExpiryOptions
from carrel.lifecycle.hand_over import HandOverContext, HandOvers
from carrel.lifecycle.kept_gpus import KeptGpus
from carrel.lifecycle.notices import Notices
from carrel.lifecycle.reservation_pods import (
    DEFAULT_RESERVATION_OPTIONS,
    ReservationContext,
    ReservationOptions,
    ReservationPods,
)
from carrel.lifecycle.revocation import Revoker
from carrel.lifecycle.revocation_context import RevocationContext
from carrel.lifecycle.revocation_grace import RevocationGrace
from carrel.lifecycle.slow_endings import SlowEndings
from carrel.lifecycle.terminator import ANSWER_WITHIN_S, Terminator, TerminatorContext
from carrel.lifecycle.unplaced_pods import UnplacedPods


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What the cluster's admin decides about the tiers."""

    schedulers: frozenset[str]
    """The schedulers that ask Carrel's extender."""
    grace: timedelta = timedelta()
    """Between the announcement of a revocation and the end of the pod."""
    random_victims: bool = False
    """Among the fewest; else as `victims` says."""
    at_end: AtEnd = AtEnd.CPU
    """What happens to a pod whose booking has come to its end."""
    minimum_time: timedelta = timedelta()
    """A pod that has run for less loses its GPU only if nothing else will do."""
    notebook_grace: timedelta = timedelta()
    """As `grace`, for pods of a hub; the longer of the two counts."""
    wait_before_cpu: timedelta = timedelta()
    """After so long a pod that waits goes on without a GPU, where a full cluster means CPU; zero: never."""
    when_full: WhenFull = WhenFull.DEFAULT
    limits: EndLimits = DEFAULT_END_LIMITS
    """How long a pod may take to end."""


@dataclass(frozen=True, slots=True)
class TierParts:
    """What acts on the two tiers."""

    hand_overs: HandOvers
    expiry: Expiry
    revoker: Revoker
    correction: CoverageCorrection
    notices: Notices
    cpu_after_wait: CpuAfterWait
    slow_endings: SlowEndings
    unplaced: UnplacedPods
    claim_allocator: ClaimAllocator | None = None
    """None: ResourceClaims are not read."""
    enquiries: BookingEnquiries | None = None
    """None: Carrel's own booking service writes its bookings into the cluster."""


def tier_parts_on(state: ClusterState, options: TierOptions, elsewhere: BookingService | None = None) -> TierParts:
    """`elsewhere`: a booking service that cannot write its bookings into the cluster."""
    pods, hand_overs = state.pods.store, hand_overs_on(state, state.cluster, options.limits)
    expiry = Expiry(state.cluster, pods.snapshot, hand_overs, _expiry_options(state, options.at_end))
    grace = RevocationGrace(options.grace, options.notebook_grace)
    context = RevocationContext(
        booked=state.booked_waiting,
        pod_by_uid=state.claim_users.pod_of,
        pods=pods.uids,
        pods_of=state.claim_users.pods_of,
        covered=state.covered_pods.holders,
        is_exempt=state.is_exempt,
        is_written_opportunistic=state.is_written_opportunistic,
        may_lose_gpus=state.may_lose_gpus,
        holder_may_lose_gpus=state.holder_may_lose_gpus,
        asks_by_claims=state.asks_by_claims,
        is_understood=state.is_understood,
        why_never=state.waiting_reason.why_never,
        members_of=state.gang_members,
        gone_pod=state.gone_holders.get,
        reread=state.reread,
        now=state.options.now,
        schedulers=options.schedulers,
        grace_of=lambda pod: grace.of(pod, state.namespaces.store.get(pod.metadata.namespace)),
        minimum_time=options.minimum_time,
        limits=options.limits,
        random_for=Random if options.random_victims else None,
        isolation=state.isolation,
    )
    revoker = Revoker(state.cluster, state.cluster_ledger, state.lease_writer, hand_overs, context)
    correction = CoverageCorrection(state, options.at_end)
    enquiries = BookingEnquiries(state, elsewhere) if elsewhere is not None else None
    notices = Notices(state.cluster, pods.snapshot, options.at_end, state.isolation)
    waits = CpuAfterWaitOptions(options.wait_before_cpu, options.when_full, options.schedulers)
    cpu_after_wait = CpuAfterWait(state, hand_overs, waits)
    now, holding = state.options.now, lambda: _pods_with_gpus(state)
    slow = SlowEndings(state.cluster, holding, now, state.may_lose_gpus, options.limits, state.isolation)
    unplaced = UnplacedPods(state, revoker)
    allocator = ClaimAllocator(state, state.device_claims) if state.device_claims is not None else None
    return TierParts(
        hand_overs, expiry, revoker, correction, notices, cpu_after_wait, slow, unplaced, allocator, enquiries
    )


def _pods_with_gpus(state: ClusterState) -> Iterable[Pod]:
    return [pod for uid in tuple(state.ledger.holders()) for pod in state.claim_users.pods_of(uid)]


def _expiry_options(state: ClusterState, at_end: AtEnd = AtEnd.CPU) -> ExpiryOptions:
    def booked_from(pod: Pod) -> datetime | None:
        covered = state.covered(pod)
        booking = state.bookings.store.get(covered.entitlement.booking) if covered is not None else None
        if covered is None or booking is None or is_from_enquiry(booking):
            return None  # a booking service elsewhere does not say when a booking has started
        return covered.entitlement.start

    def is_covered(pod: Pod) -> bool:
        return state.covered(pod) is not None

    def has_claims(pod: Pod) -> bool:
        # A claim that a scheduler made for `nvidia.com/gpu` is not in the pod's spec; its class may be gone, too.
        return state.asks_by_claims(pod) or bool(state.shares_of(pod))

    return ExpiryOptions(state.options.now, is_covered, state.reread, booked_from, at_end, state.isolation, has_claims)


def hand_overs_on(state: ClusterState, cluster: Cluster, limits: EndLimits = DEFAULT_END_LIMITS) -> HandOvers:
    claims = state.device_claims
    context = HandOverContext(
        cluster,
        state.options.namespace,
        state.options.now,
        lambda namespace: state.pods.store.find(NAMESPACE_OF, namespace),
        lambda uid: state.covered_pods.of(uid) is not None,
        KeptGpus(state),
        limits,
        claims.claimed_by_manifest if claims is not None else lambda pod: NOTHING_CLAIMED,
    )
    hand_overs = HandOvers(context)
    state.pods.on_change(lambda _, pod: hand_overs.observe(pod) if pod is not None else None)
    return hand_overs


def terminator_on(state: ClusterState, cluster: Cluster, answer_within_s: float = ANSWER_WITHIN_S) -> Terminator:
    """Any replica may be called: it writes the hand-over with `cluster`, and the leader does the rest."""

    def has_gpus(pod: Pod) -> bool:
        runs_with_gpu = bool(pod.spec.node_name) and isinstance(state.requested_by(pod), PodRequest)
        return runs_with_gpu or bool(state.shares_of(pod))

    hand_overs, pods = hand_overs_on(state, cluster), state.pods.store
    expiry = Expiry(cluster, pods.snapshot, hand_overs, _expiry_options(state))
    context = TerminatorContext(
        pods=pods.snapshot,
        pod_named=pods.get,
        has_gpus=has_gpus,
        may_lose_gpus=state.may_lose_gpus,
        now=state.options.now,
        rng=Random(),  # noqa: S311 - not a secret
        answer_within_s=answer_within_s,
        isolation=state.isolation,
    )
    return Terminator(expiry, hand_overs, context)


def collector_on(state: ClusterState) -> LeaseCollector:
    context = CollectionContext(
        state.cluster,
        state.pods.store.by_uid,
        state.gang_runs,
        KeptGpus(state),
        confirmed_ends_on(state),
        ClaimEnds(state.cluster, state.cluster_ledger, state.device_claims),
        state.options.now,
        state.options.clock,
        state.isolation,
    )
    return LeaseCollector(state.cluster_ledger, state.lease_writer, context)


def reservation_pods_on(
    state: ClusterState, options: ReservationOptions = DEFAULT_RESERVATION_OPTIONS
) -> ReservationPods:
    def reservation_pods() -> Iterable[Pod]:
        namespaces = (spelling.namespace for spelling in SPELLINGS)
        return [pod for name in namespaces for pod in state.pods.store.find(NAMESPACE_OF, name) if is_reservation(pod)]

    context = ReservationContext(
        state.cluster,
        state.options.namespace,
        reservation_pods,
        lambda slot: state.pods.store.find(SLOT_OF, slot),
        state.pods.store.by_uid,
        state.options.clock,
        state.options.now,
        options,
    )
    return ReservationPods(state.cluster_ledger, state.lease_writer, context)
