"""What is known of a pod at the moment of a question: worked out once, and handed to all who decide about the pod."""

from dataclasses import dataclass, replace

from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.pod_progress import holder_of, is_ending
from carrel.cluster.pod_requests import Asked, PodRequests
from carrel.cluster.watches import Watches
from carrel.dialects.interface import PodRequest
from carrel.dialects.tier import is_told_a_tier, tier_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.coverage import Covered
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import keeper_of
from carrel.ledger.shares import Holder, Share
from carrel.ledger.tiers import Tier, TierPolicy


@dataclass(frozen=True, slots=True)
class PodFacts:
    pod: Pod
    holder: Holder
    asked: Asked
    """Of a pod that waits and that a booking covers, only the booked GPUs are asked for."""
    covered: Covered | None
    """By which booking; None: by none."""
    tier: Tier | None
    """As it is now; what is written on the pod follows within seconds. None: it has none, and keeps its GPUs."""
    keeper: str
    """In whose name it gets what is kept for it."""

    @property
    def leaves_room(self) -> bool:
        """Whether it leaves room for booked pods that wait."""
        return self.tier is Tier.OPPORTUNISTIC


class PodFactsLookup:
    def __init__(
        self, watches: Watches, ledger: Ledger, requests: PodRequests, covered_pods: CoveredPods, policy: TierPolicy
    ) -> None:
        self._gpu_holders = watches.holders
        self._ledger = ledger
        self._requests = requests
        self._covered_pods = covered_pods
        self._policy = policy

    def __call__(self, pod: Pod) -> PodFacts:
        uid, covered = pod.metadata.uid, self._covered_pods.of(pod.metadata.uid)
        return PodFacts(
            pod=pod,
            holder=holder_of(pod),
            asked=self._narrowed(pod, covered),
            covered=covered,
            tier=Tier.BOOKED if covered is not None else self._covered_pods.uncovered_tier(pod),
            keeper=keeper_of(self._ledger, uid, covered.entitlement.booking if covered is not None else ""),
        )

    def asked(self, pod: Pod) -> Asked:
        """That fact alone."""
        return self._narrowed(pod, self._covered_pods.of(pod.metadata.uid))

    def _narrowed(self, pod: Pod, covered: Covered | None) -> Asked:
        asked = self._requests.as_admitted(pod)
        if covered is None or pod.spec.node_name or not isinstance(asked, PodRequest):
            return asked
        return replace(asked, request=covered.narrowed(asked.request))

    # --- what it holds, and may lose ---------------------------------------------------------------------------------

    def shares_of(self, pod: Pod) -> list[Share]:
        """What the pod holds, by itself and by its claims."""
        return [share for uid in self._gpu_holders.held_by(pod) for share in self._ledger.shares_of(uid).values()]

    def may_lose_gpus(self, pod: Pod) -> bool:
        """A pod that was told that it is booked first learns that no booking covers it any more."""
        return self._covered_pods.tier(pod) is Tier.OPPORTUNISTIC and tier_of(pod) is not Tier.BOOKED

    def is_written_opportunistic(self, pod: Pod) -> bool:
        """The same by what is written on the pod alone, whatever bookings and its namespace say."""
        return is_told_a_tier(pod, self._policy) and tier_of(pod) is not Tier.BOOKED

    def holder_may_lose_gpus(self, uid: str) -> bool:
        """The same of what holds GPUs: a pod, or a ResourceClaim, whose pods all end with it."""
        if self._covered_pods.of(uid) is not None:
            return False
        pods = [pod for pod in self._gpu_holders.pods_of(uid) if not is_ending(pod)]
        return bool(pods) and all(map(self.may_lose_gpus, pods))
