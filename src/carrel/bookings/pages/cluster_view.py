"""What the pages see of the cluster: the ledger, the pods, their coverage, and the usage so far. It only reads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from carrel.bookings.pages.cluster_map import PodOnMap
from carrel.bookings.pages.usage_counter import PodUser, UsageCounter, with_held
from carrel.bookings.records import PersonUsage
from carrel.dialects.tier import person_of
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.coverage_reader import CoverageReader
from carrel.leases.coverage_words import CoverageWords
from carrel.ledger.ledger import Card, Ledger
from carrel.ledger.shares import Share

NOBODY = PodUser("", None)


@dataclass(frozen=True, slots=True)
class ClusterView:
    ledger: Ledger
    cards: Callable[[str], Sequence[Card]]
    """The GPUs of a node with their holders, as people number them: the ledger may have slots instead."""
    card: Callable[[str], Card | None]
    """One of them, by its UUID."""
    pod: Callable[[str], Pod | None]
    """By UID; of a ResourceClaim, the pod whose GPUs its GPUs are."""
    shares_of: Callable[[Pod], Sequence[Share]]
    """What a pod holds, by itself and by its claims."""
    pods: Callable[[], Iterable[Pod]]
    why_waits: Callable[[Pod], str]
    """Empty if the pod does not wait."""
    is_synced: Callable[[], bool]
    coverage: CoverageReader
    usage: UsageCounter = field(default_factory=UsageCounter)
    isolation: Isolation = field(default_factory=Isolation)
    """A pod that cannot be understood must not take the page away from everybody."""

    def count_usage(self, now: datetime) -> None:
        """Call it every few seconds: the usage page shows what was held."""
        self.usage.sample((card for name in self.ledger.nodes for card in self.cards(name)), self._user, now)

    def _user(self, uid: str) -> PodUser:
        pod = self.pod(uid)
        if pod is None:
            return NOBODY
        return self.isolation.ask("usage", pod, lambda pod: PodUser(person_of(pod), self.coverage.tier(pod)), NOBODY)

    def with_held(self, uses: Iterable[PersonUsage], start: datetime, end: datetime) -> list[PersonUsage]:
        return with_held(uses, self.usage.by_user_and_model(start, end))

    def pod_on_map(self, uid: str, words: CoverageWords) -> PodOnMap:
        pod = self.pod(uid)
        if pod is None:
            return PodOnMap(None)

        def shown(pod: Pod) -> PodOnMap:
            told = self.coverage.of(pod)
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            return PodOnMap(told.tier, person_of(pod), words.for_others(told), name)

        return self.isolation.ask("map", pod, shown, PodOnMap(None, person_of(pod)))

    def pods_of(self, email: str) -> list[Pod]:
        """The person's pods, sorted by name."""
        mine = (pod for pod in self.pods() if person_of(pod) == email)
        return sorted(mine, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))
