"""Puts the parts of the controller together, for one process. Tests use the same parts."""

from dataclasses import dataclass

from carrel.bookings.client import BookingService
from carrel.cluster.state import ClusterState
from carrel.kubernetes.cluster import Cluster
from carrel.lifecycle.booking_enquiries import BookingEnquiries
from carrel.lifecycle.freeing.expiry import Expiry
from carrel.lifecycle.freeing.slow_endings import SlowEndings
from carrel.lifecycle.freeing.terminator import ANSWER_WITHIN_S, Terminator
from carrel.lifecycle.handing_over.cpu_after_wait import CpuAfterWait
from carrel.lifecycle.handing_over.hand_over import HandOvers
from carrel.lifecycle.handing_over.notices import Notices
from carrel.lifecycle.reporting.coverage_correction import CoverageCorrection
from carrel.lifecycle.revoking.revocation import Revoker
from carrel.lifecycle.revoking.unplaced_pods import UnplacedPods
from carrel.lifecycle.tier_options import DEFAULT_END_LIMITS, EndLimits, TierOptions
from carrel.resource_claims.allocation.claim_allocator import ClaimAllocator


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
    hand_overs = hand_overs_on(state, state.cluster, options.limits)
    revoker = Revoker(state, hand_overs, options)
    return TierParts(
        hand_overs=hand_overs,
        expiry=Expiry(state, hand_overs, options.at_end),
        revoker=revoker,
        correction=CoverageCorrection(state, options.at_end),
        notices=Notices(state, options.at_end),
        cpu_after_wait=CpuAfterWait(state, hand_overs, options),
        slow_endings=SlowEndings(state, options.limits),
        unplaced=UnplacedPods(state, revoker),
        claim_allocator=ClaimAllocator(state, state.device_claims) if state.device_claims is not None else None,
        enquiries=BookingEnquiries(state, elsewhere) if elsewhere is not None else None,
    )


def hand_overs_on(state: ClusterState, cluster: Cluster, limits: EndLimits = DEFAULT_END_LIMITS) -> HandOvers:
    hand_overs = HandOvers(state, cluster, limits)
    state.pods.on_change(lambda _, pod: hand_overs.observe(pod) if pod is not None else None)
    return hand_overs


def terminator_on(state: ClusterState, cluster: Cluster, answer_within_s: float = ANSWER_WITHIN_S) -> Terminator:
    """Any replica may be called: it writes the hand-over with `cluster`, and the leader does the rest."""
    hand_overs = hand_overs_on(state, cluster)
    return Terminator(state, Expiry(state, hand_overs), hand_overs, answer_within_s)
