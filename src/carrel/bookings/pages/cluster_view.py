"""What the pages see of the cluster: the ledger, the pods, and the usage so far. It only reads."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from carrel.bookings.pages.cluster_map import PodOnMap
from carrel.bookings.pages.usage_counter import UsageCounter
from carrel.bookings.people import normal
from carrel.dialects import carrel
from carrel.dialects.tier import tier_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class ClusterView:
    ledger: Ledger
    pod: Callable[[str], Pod | None]
    """By UID."""
    pods: Callable[[], Iterable[Pod]]
    why_waits: Callable[[Pod], str]
    """Empty if the pod does not wait."""
    is_synced: Callable[[], bool]
    usage: UsageCounter = field(default_factory=UsageCounter)

    def count_usage(self, now: datetime) -> None:
        """Call it every few seconds: the usage page shows what was held."""
        self.usage.sample(self.ledger, lambda uid: self.pod_on_map(uid).user, now)

    def pod_on_map(self, uid: str) -> PodOnMap:
        pod = self.pod(uid)
        return PodOnMap(tier_of(pod), pod.metadata.annotations.get(carrel.USER, "")) if pod else PodOnMap(None)

    def pods_of(self, email: str) -> list[Pod]:
        """The person's pods, sorted by name."""
        mine = (pod for pod in self.pods() if normal(pod.metadata.annotations.get(carrel.USER, "")) == email)
        return sorted(mine, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))
