"""What the booking service sees of the cluster: ledger, pods, their coverage, and the usage so far. It only reads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.bookings.records import PersonUsage
from carrel.bookings.usage_counter import PodUser, UsageCounter, with_held
from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.cluster.coverage.coverage_words import CoverageWords
from carrel.cluster.gpu_usages import GpuUsages
from carrel.cluster.record.shown_gpus import shown_gpu, shown_gpus
from carrel.cluster.state import ClusterState
from carrel.dialects.tier import person_of
from carrel.ids import GpuUuid, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.ledger import GpuEntry

NOBODY = PodUser("", None)


class ClusterView:
    """To be created before the informers run."""

    def __init__(self, carrel: ClusterState) -> None:
        self.state = carrel
        self.ledger = carrel.ledger
        self.coverage = CoverageReader(carrel)
        self.usage = UsageCounter()
        self.gpu_usages = GpuUsages(carrel.informers, carrel.isolation)
        self.isolation = carrel.isolation
        """A pod that cannot be understood must not take the page away from everybody."""

    def entries(self, node: NodeName) -> Sequence[GpuEntry]:
        """The GPUs of a node with their holders, as people number them: the ledger may have slots instead."""
        return shown_gpus(self.state.cluster_ledger, node)

    def entry(self, uuid: GpuUuid) -> GpuEntry | None:
        """One of them."""
        return shown_gpu(self.state.cluster_ledger, uuid)

    def pod(self, uid: HolderId) -> Pod | None:
        """The pod of that UID; for that of a ResourceClaim, the pod whose GPUs its GPUs are."""
        return self.state.holders.pod_of(uid)

    def count_usage(self, now: datetime) -> None:
        """Call it every few seconds: the usage page shows what was held."""
        self.usage.sample((entry for name in self.ledger.nodes for entry in self.entries(name)), self._user, now)

    def _user(self, uid: HolderId) -> PodUser:
        pod = self.pod(uid)
        if pod is None:
            return NOBODY
        tier = self.state.covered_pods.tier
        return self.isolation.ask("usage", pod, lambda pod: PodUser(person_of(pod), tier(pod)), NOBODY)

    def with_held(self, uses: Iterable[PersonUsage], start: datetime, end: datetime) -> list[PersonUsage]:
        return with_held(uses, self.usage.by_user_and_model(start, end))

    def pods_of(self, email: str) -> list[Pod]:
        """The person's pods, sorted by name."""
        mine = (pod for pod in self.state.pods.store if person_of(pod) == email)
        return sorted(mine, key=lambda pod: (pod.metadata.namespace, pod.metadata.name))


MOST_HOLDERS = 8
"""Who are named for one pod that waits."""


@dataclass(frozen=True, slots=True)
class PodRow:
    name: str
    tier: str
    phase: str
    gpus: str
    coverage: str
    """Which booking covers it and until when, or what it means that none does."""
    is_beyond: bool
    """It runs, and a booking of its person does not cover it."""
    why_waits: str = ""
    holders: tuple[str, ...] = ()
    """For a pod that waits: who holds the GPUs that would do, and until when."""
    more_holders: int = 0
    without_gpu: str = ""
    """For a pod that runs without the GPU that it asked for: why, and when one will be free."""


def pod_rows(cluster: ClusterView | None, email: str, words: CoverageWords) -> list[PodRow]:
    if cluster is None:
        return []
    return cluster.isolation.found("page", cluster.pods_of(email), lambda pod: _pod_row(cluster, pod, words))


def _pod_row(cluster: ClusterView, pod: Pod, words: CoverageWords) -> PodRow:
    told = cluster.coverage.of(pod)
    uuids = dict.fromkeys(share.gpu for share in cluster.state.pod_facts.shares_of(pod))
    entries = [cluster.ledger.entry(uuid) for uuid in uuids]
    why_waits = str(cluster.state.waiting_reason.why(pod) or "") if told.waits and told.held_for is None else ""
    holders = cluster.coverage.holders(pod) if why_waits else []
    without_gpu = cluster.coverage.why_without_gpu(pod, words)
    return PodRow(
        name=f"{pod.metadata.namespace}/{pod.metadata.name}",
        tier=told.tier.value if told.tier else "no tier",
        phase="Terminating" if pod.metadata.deletion_timestamp else pod.status.phase or "Pending",
        gpus=", ".join(str(entry.gpu) for entry in entries if entry),
        coverage="" if without_gpu else words.about(told),
        is_beyond=told.asks and not told.waits and told.beyond is not None,
        why_waits=why_waits,
        holders=tuple(words.holder(each) for each in holders[:MOST_HOLDERS]),
        more_holders=max(len(holders) - MOST_HOLDERS, 0),
        without_gpu=without_gpu,
    )
