"""Puts the parts of the controller together, for one process. Tests use the same parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Protocol

from carrel.bookings.client import BookingService
from carrel.cluster.holders import HolderEnds
from carrel.cluster.state import ClusterState
from carrel.kubernetes.cluster import Cluster
from carrel.lifecycle.booking_enquiries import BookingEnquiries
from carrel.lifecycle.freeing.collection import LeaseCollector
from carrel.lifecycle.freeing.expiry import Expiry
from carrel.lifecycle.freeing.left_shadows import LeftShadows
from carrel.lifecycle.freeing.slow_endings import SlowEndings
from carrel.lifecycle.freeing.terminator import ANSWER_WITHIN_S, Terminator
from carrel.lifecycle.handing_over.cpu_after_wait import CpuAfterWait
from carrel.lifecycle.handing_over.hand_over import HandOvers
from carrel.lifecycle.handing_over.notices import Notices
from carrel.lifecycle.reporting.coverage_correction import CoverageCorrection
from carrel.lifecycle.revoking.revocation import Revoker
from carrel.lifecycle.revoking.unplaced_pods import UnplacedPods
from carrel.lifecycle.tier_options import LONGEST_GRACE, TierOptions


class Leading(Protocol):
    """What runs while this process leads."""

    async def run(self) -> None: ...


class AfterRevocation(Protocol):
    """What follows a round of revocation."""

    async def round(self) -> Sequence[str]: ...


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
    after_revocation: tuple[AfterRevocation, ...] = ()
    """What follows each round of revocation."""
    enquiries: BookingEnquiries | None = None
    """None: Carrel's own booking service writes its bookings into the cluster."""


def tier_parts_on(state: ClusterState, options: TierOptions, elsewhere: BookingService | None = None) -> TierParts:
    """`elsewhere`: a booking service that cannot write its bookings into the cluster."""
    hand_overs = hand_overs_on(state, state.cluster, options.longest_grace)
    revoker = Revoker(state, hand_overs, options)
    return TierParts(
        hand_overs=hand_overs,
        expiry=Expiry(state, hand_overs, options.at_end),
        revoker=revoker,
        correction=CoverageCorrection(state, options.at_end),
        notices=Notices(state, options.at_end),
        cpu_after_wait=CpuAfterWait(state, hand_overs, options),
        slow_endings=SlowEndings(state, options.longest_grace),
        unplaced=UnplacedPods(state, revoker),
        after_revocation=after_revocation_on(state),
        enquiries=BookingEnquiries(state, elsewhere) if elsewhere is not None else None,
    )


def hand_overs_on(state: ClusterState, cluster: Cluster, longest_grace: timedelta = LONGEST_GRACE) -> HandOvers:
    hand_overs = HandOvers(state, cluster, longest_grace)
    state.pods.on_change(lambda _, pod: hand_overs.observe(pod) if pod is not None else None)
    return hand_overs


def terminator_on(state: ClusterState, cluster: Cluster, answer_within_s: float = ANSWER_WITHIN_S) -> Terminator:
    """Any replica may be called: it writes the hand-over with `cluster`, and the leader does the rest."""
    hand_overs = hand_overs_on(state, cluster)
    return Terminator(state, Expiry(state, hand_overs), hand_overs, answer_within_s)


def collector_on(state: ClusterState) -> LeaseCollector:
    """Also where ResourceClaims are not counted any more, Leases may still name some: then their code is loaded."""

    @cache
    def claim_ends() -> HolderEnds:
        from carrel.resource_claims.allocation.claim_ends import ClaimEnds

        return ClaimEnds(state)

    if state.holders.driver is not None:
        claim_ends()  # it sees which allocations are stored
    return LeaseCollector(state, claim_ends)


def resource_claims_on(state: ClusterState) -> Sequence[Leading]:
    """Return what the leader does about ResourceClaims besides."""
    if state.holders.driver is None:
        return (LeftShadows(state),)
    from carrel.resource_claims.allocation.unrecorded_claims import UnrecordedClaims
    from carrel.resource_claims.holders import claims_in
    from carrel.resource_claims.shadows.shadow_claims import ShadowClaims

    return ShadowClaims(state, claims_in(state)), UnrecordedClaims(state, claims_in(state))


def after_revocation_on(state: ClusterState) -> tuple[AfterRevocation, ...]:
    if state.holders.driver is None:
        return ()
    from carrel.resource_claims.allocation.claim_allocator import ClaimAllocator
    from carrel.resource_claims.holders import claims_in

    return (ClaimAllocator(state, claims_in(state)),)
