"""A person's own pods as rows: why each waits, what it holds, and which booking covers it."""

from dataclasses import dataclass

from carrel.bookings.cluster_view import ClusterView
from carrel.cluster.coverage.coverage_words import CoverageWords
from carrel.dialects.without_gpu import read_without_gpu
from carrel.kubernetes.objects.kinds import Pod

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
    entries = [cluster.ledger.entry(uuid) for uuid in dict.fromkeys(share.gpu for share in cluster.shares_of(pod))]
    why_waits = cluster.why_waits(pod) if told.waits and told.held_for is None else ""
    holders = cluster.coverage.holders(pod) if why_waits else []
    return PodRow(
        name=f"{pod.metadata.namespace}/{pod.metadata.name}",
        tier=told.tier.value if told.tier else "no tier",
        phase="Terminating" if pod.metadata.deletion_timestamp else pod.status.phase or "Pending",
        gpus=", ".join(str(entry.gpu) for entry in entries if entry),
        coverage=words.about(told),
        is_beyond=told.asks and not told.waits and told.beyond is not None,
        why_waits=why_waits,
        holders=tuple(words.holder(each) for each in holders[:MOST_HOLDERS]),
        more_holders=max(len(holders) - MOST_HOLDERS, 0),
        without_gpu=_without_gpu(cluster, pod, words),
    )


def _without_gpu(cluster: ClusterView, pod: Pod, words: CoverageWords) -> str:
    mark = read_without_gpu(pod)
    if mark is None:
        return ""
    return f"{mark.sentence}. Now: {words.free_again(cluster.coverage.next_free(pod, mark), can_start_again=True)}."
