"""What is known of a pod at the moment of a question: worked out once, and handed to all who decide about the pod."""

from dataclasses import dataclass

from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.options import ClusterOptions
from carrel.cluster.pod_progress import holder_of, is_ending
from carrel.cluster.pod_requests import Asked, PodRequests
from carrel.cluster.watches import Watches
from carrel.dialects.tier import is_told_a_tier, tier_of
from carrel.ids import NO_BOOKING, HolderId
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.coverage import Covered
from carrel.ledger.ledger import Ledger
from carrel.ledger.placement import keeper_of
from carrel.ledger.shares import Coverage, Holder, Share
from carrel.ledger.tiers import Tier


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
    keeper: HolderId
    """In whose name it gets what is kept for it."""
    leaves_room: bool
    """Whether it leaves room for booked pods that wait: it is opportunistic."""
    coverage: Coverage | None
    """What is recorded with its shares: which booking covers it, as of now."""


class PodFactsLookup:
    def __init__(
        self,
        watches: Watches,
        ledger: Ledger,
        requests: PodRequests,
        covered_pods: CoveredPods,
        options: ClusterOptions,
    ) -> None:
        self._gpu_holders = watches.holders
        self._ledger = ledger
        self._requests = requests
        self._covered_pods = covered_pods
        self._policy = options.tier_policy
        self._now = options.now

    def __call__(self, pod: Pod) -> PodFacts:
        covered = self._covered_pods.of(pod.metadata.uid)
        tier = Tier.BOOKED if covered is not None else self._covered_pods.uncovered_tier(pod)
        booking = covered.entitlement.booking if covered is not None else NO_BOOKING
        return PodFacts(
            pod=pod,
            holder=holder_of(pod),
            asked=self._requests.as_admitted(pod, covered),
            covered=covered,
            tier=tier,
            keeper=keeper_of(self._ledger, pod.metadata.uid, booking),
            leaves_room=tier is Tier.OPPORTUNISTIC,
            coverage=Coverage(booking, self._now()) if booking else None,
        )

    def asked(self, pod: Pod) -> Asked:
        """That fact alone."""
        return self._requests.as_admitted(pod, self._covered_pods.of(pod.metadata.uid))

    # --- what it holds, and may lose ---------------------------------------------------------------------------------

    def shares_of(self, pod: Pod) -> list[Share]:
        """What the pod holds, by itself and by its claims."""
        return [share for uid in self._gpu_holders.held_by(pod) for share in self._ledger.shares_of(uid).values()]

    def may_lose_gpus(self, pod: Pod) -> bool:
        """A pod that was told that it is booked first learns that no booking covers it any more."""
        return self._covered_pods.tier(pod) is Tier.OPPORTUNISTIC and tier_of(pod) is not Tier.BOOKED

    def is_written_opportunistic(self, pod: Pod) -> bool:
        """Whether it may lose them by what is written on it alone, whatever bookings and its namespace say."""
        return is_told_a_tier(pod, self._policy) and tier_of(pod) is not Tier.BOOKED

    def holder_may_lose_gpus(self, uid: HolderId) -> bool:
        """Whether what holds GPUs may lose them: a pod, or a ResourceClaim, whose pods all end with it."""
        if self._covered_pods.of(uid) is not None:
            return False
        pods = [pod for pod in self._gpu_holders.pods_of(uid) if not is_ending(pod)]
        return bool(pods) and all(map(self.may_lose_gpus, pods))
