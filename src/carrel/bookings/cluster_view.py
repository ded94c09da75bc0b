"""What the booking service sees of the cluster: ledger, pods, their coverage, and what they do. It only reads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from carrel.bookings.people import Person
from carrel.bookings.usage.looks import ClusterLooks
from carrel.cluster.activity_words import ActivityWords
from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.cluster.coverage.coverage_words import CoverageWords
from carrel.cluster.gpu_activities import RememberedActivities
from carrel.cluster.gpu_usages import GpuUsages
from carrel.cluster.pod_progress import holder_of
from carrel.cluster.record.shown_gpus import shown_gpu, shown_gpus
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import is_maias
from carrel.dialects.tier import person_of
from carrel.ids import BookingId, GpuUuid, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpu_activity import ActivityState, GpuActivity
from carrel.ledger.ledger import GpuEntry


@dataclass(frozen=True, slots=True)
class UseCounts:
    """GPUs of the whole cluster."""

    booked: float
    """Of the bookings that run now; a part of a GPU counts as such."""
    held: Mapping[str, int]
    """By what those that pods hold are used for: active, idle, new or unknown."""


@dataclass(frozen=True, slots=True)
class BookingActivity:
    """What the pods of a booking do with its GPUs."""

    held: int
    """GPUs that they touch."""
    states: Mapping[str, int]
    """GPUs by what they are used for: active, idle, new or unknown."""
    pods: Sequence[tuple[str, str]]
    """Each with what it does."""


class ClusterView:
    """To be created before the informers run."""

    def __init__(self, carrel: ClusterState) -> None:
        self.state = carrel
        self.ledger = carrel.ledger
        self.gpu_usages = GpuUsages(carrel.informers, carrel.isolation)
        self.activities = RememberedActivities(carrel, self.gpu_usages)
        self.coverage = CoverageReader(carrel, self.activities)
        self.looks = ClusterLooks(carrel, self.activities)
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

    def activity(self, entry: GpuEntry, person: Person, uid: HolderId | None = None) -> GpuActivity | None:
        """What a person may see of what a GPU is used for, by all who hold it or by one of them. None: nobody holds
        it."""
        found = self.activities.of(entry) if uid is None else self.activities.of_holder(entry, uid)
        may_see = person.may_see_figures_of({self._person(uid) for uid in entry.shares})
        return found if may_see or found is None else found.without_figures()

    def _person(self, uid: HolderId) -> str:
        pod = self.pod(uid)
        return "" if pod is None else self.isolation.ask("usage", pod, person_of, "")

    def activity_of_pod(self, pod: Pod, person: Person) -> GpuActivity | None:
        """What a person may see of what a pod does with all its GPUs. None: it holds none."""
        found = self.activities.of_pod(pod)
        return found if found is None or person.may_see_figures_of([person_of(pod)]) else found.without_figures()

    def booking_use(self, booking: BookingId, person: Person, zone: tzinfo) -> BookingActivity | None:
        """None: the booking does not run, or the cluster does not know it yet."""
        use, words = self.coverage.use_of(booking), self.words(zone)
        if use is None:
            return None
        covered = self.state.covered_pods.covered_by(booking)
        gpus = {entry.gpu.uuid: entry for pod in covered for entry in self.activities.entries_of(pod)}
        states = Counter(activity.state.value for activity in map(self.activities.of, gpus.values()) if activity)
        seen = self.isolation.found("page", covered, lambda pod: (pod, self.activity_of_pod(pod, person)))
        pods = [(holder_of(pod).full_name, words.line(activity)) for pod, activity in seen if activity is not None]
        return BookingActivity(use.used, {state.value: states[state.value] for state in ActivityState}, pods)

    def use_counts(self) -> UseCounts:
        running = self.state.covered_pods.running()
        booked = sum((1 if is_maias(each.booking) else each.gpus) / each.share_of for each in running)
        counted = self.activities.counts()
        return UseCounts(booked, {state.value: counted[state] for state in ActivityState})

    def words(self, zone: tzinfo) -> ActivityWords:
        return ActivityWords(zone, self.state.options.now())

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
    activity: GpuActivity | None = None
    """What it does with its GPUs; None: it has none."""
    use: str = ""
    """That in words."""


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
    activity = cluster.activities.of_pod(pod)
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
        activity=activity,
        use=cluster.words(words.zone).line(activity) if activity is not None else "",
    )
