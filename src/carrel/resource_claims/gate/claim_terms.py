"""On which terms a ResourceClaim gets GPUs: on those of the pod for which a scheduler reserves it.

    its pod is booked          it gets GPUs that its booking covers, also those that are kept for it
    its pod is opportunistic   it leaves room for booked pods that wait, and its person may hold so much and no more
    it has no pod              as an opportunistic one, of nobody
    an admin exempts its pod   it gets what is free

A pod that did not come through Carrel's webhook gets nothing. Of several pods the first counts (`holders`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.tier import tier_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.ledger.gpus import Gpu
from carrel.ledger.placement import Placement, why_not_on
from carrel.ledger.precedence import WAITED_FOR, Precedence
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Memory, Request
from carrel.ledger.shares import Coverage, Holder, Share
from carrel.ledger.tiers import Tier


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    pod: Pod | None
    keeper: str
    """In whose name it gets what is kept."""
    coverage: Coverage | None = None
    leaves_room: bool = True


class ClaimTermsLookup:
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._precedence = Precedence(state.ledger, state.booked_waiting)

    def of(self, holder: Holder, pods: Sequence[Pod]) -> ClaimTerms | Refusal:
        """`pods`: for which the claim is reserved, in that order."""
        pod = next((each for each in pods if not is_ending(each)), None)
        if pod is None:
            return ClaimTerms(None, holder.uid)
        if (unsealed := self._state.requests.why_not_sealed(pod)) is not None:
            return unsealed
        if tier_of(pod) is Tier.BOOKED and self._state.pods.store.by_uid(pod.metadata.uid) is None:
            why = "Carrel's webhook has not seen it yet"
            return Refusal(f"{subject(pod.metadata)} may be booked, and {why}; a scheduler tries again by itself")
        facts = self._state.pod_facts(pod)
        booking = facts.covered.entitlement.booking if facts.covered is not None else ""
        coverage = Coverage(booking, self._state.options.now()) if booking else None
        return ClaimTerms(pod, facts.keeper, coverage, facts.leaves_room)

    def why_not(self, terms: ClaimTerms, placement: Placement, new: Sequence[tuple[Gpu, Share]]) -> Refusal | None:
        """Why the claim may not have what it does not hold yet; None if it may."""
        for gpu, share in new:
            if (why := self._why_not_on(terms, gpu, share)) is not None:
                return why
        if not new or not terms.leaves_room:
            return None
        if terms.pod is not None:
            parts = [share.memory for _, share in new if share.memory is not None]
            asked = Request(len(new), Memory(max(parts)) if parts else WHOLE)
            over = self._state.person_limit.why_over(self._state.pod_facts(terms.pod), asked)
            if over is not None:
                return over
        with self._precedence.served(placement.node):
            left = [gpu for gpu, share in new if self._why_not_on(terms, gpu, share) is not None]
        return Refusal(f"{left[0]} has {WAITED_FOR}") if left else None

    def _why_not_on(self, terms: ClaimTerms, gpu: Gpu, share: Share) -> Refusal | None:
        request = Request(1, WHOLE if share.memory is None else Memory(share.memory))
        covered = self._state.covered_pods.of(terms.pod.metadata.uid) if terms.pod is not None else None
        if covered is not None:
            request = covered.narrowed(request)
        return why_not_on(self._state.ledger, gpu, request, terms.keeper)
