"""Which of the GPUs that pods hold are active or idle: their reports and their holders, put together.

What a GPU did in the last hour is remembered by the process that shows it, in a few sums of each GPU. A process that
has just started, or has just seen other holders, says since when it knows it.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from carrel.cluster.gpu_usages import GpuUsages
from carrel.cluster.pod_progress import NEWEST, bound_at, created_at
from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.cluster.state import ClusterState
from carrel.ids import GpuUuid, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpu_activity import (
    ActivePart,
    ActivityState,
    GpuActivity,
    RecentSums,
    UnknownWhy,
    activity_of,
    for_one_of_several,
    of_all,
    unknown,
)
from carrel.ledger.gpu_usage import GpuUsage
from carrel.ledger.ledger import GpuEntry

LOWEST_EVERY = timedelta(minutes=1)
"""How often it is looked what the GPUs of a model draw at least."""


class GpuActivities:
    """To be created before the informers run."""

    def __init__(self, carrel: ClusterState, usages: GpuUsages | None = None) -> None:
        self._carrel = carrel
        self.usages = usages or GpuUsages(carrel.informers, carrel.isolation)
        self._lowest: dict[str, float] = {}
        self._lowest_at: datetime | None = None

    def of(self, entry: GpuEntry) -> GpuActivity | None:
        """Return what the GPU does for those who hold it; None: nobody does."""
        if not entry.shares:
            return None
        since = [self._held_since(uid) for uid in entry.shares]
        return self._activity(entry, min(filter(None, since), default=None))

    def of_holder(self, entry: GpuEntry, uid: HolderId) -> GpuActivity:
        """Return what one of its holders does, as far as that is known."""
        activity = self.of(entry) or unknown(UnknownWhy.NO_REPORT)
        if len(entry.shares) == 1:
            return activity
        return for_one_of_several(activity, self._held_since(uid), self._carrel.options.now())

    def of_pod(self, pod: Pod) -> GpuActivity | None:
        """Return what a pod does with all its GPUs, in one; None: it holds none."""
        found = []
        for entry in self.entries_of(pod):
            own = next((uid for uid in self._carrel.holders.held_by(pod) if uid in entry.shares), None)
            found += [self.of_holder(entry, own)] if own is not None else []
        return of_all(found)

    def entries_of(self, pod: Pod) -> list[GpuEntry]:
        """Return the GPUs of a pod, as people number them."""
        own, node = self._carrel.holders.held_by(pod), NodeName(pod.spec.node_name)
        shown = shown_gpus(self._carrel.cluster_ledger, node) if node and self._carrel.ledger.node(node) else ()
        return [entry for entry in shown if any(uid in entry.shares for uid in own)]

    def _activity(self, entry: GpuEntry, held_since: datetime | None) -> GpuActivity:
        gpu = entry.gpu
        usage = self.usages.of_gpu(gpu.node, gpu.uuid)
        if gpu.unusable:
            return unknown(UnknownWhy.UNUSABLE, usage.until if usage is not None else None)
        now = self._carrel.options.now()
        recent = self._recent(entry, usage) if usage is not None else None
        return activity_of(usage, now, held_since, self.lowest_watts(gpu.model, usage, now), recent)

    def _recent(self, entry: GpuEntry, usage: GpuUsage) -> ActivePart | None:
        """Return what its holders did in the last hour, which only a process that remembers knows."""
        return None

    def _held_since(self, uid: HolderId) -> datetime | None:
        """None: nobody knows since when it holds its GPUs."""
        pod = self._carrel.holders.pod_of(uid)
        since = (bound_at(pod) or created_at(pod)) if pod is not None else NEWEST
        return since if since != NEWEST else None

    def lowest_watts(self, model: str, usage: GpuUsage | None, now: datetime) -> float | None:
        """Return what the GPU of this model draws that draws least, as far as this process has seen. `usage`: of one of
        them, which may be the first."""
        if self._lowest_at is None or not timedelta() <= now - self._lowest_at < LOWEST_EVERY:
            self._lowest_at = now
            for name in self._carrel.ledger.nodes:
                watts, reported = self.usages.watts(name), self._carrel.cluster_ledger.reported(name)
                for gpu in reported.gpus if reported is not None else ():
                    if gpu.uuid in watts:
                        drawn = float(watts[gpu.uuid])
                        self._lowest[gpu.model] = min(drawn, self._lowest.get(gpu.model, drawn))
        own = usage.latest.power_watts if usage is not None else None
        return min((watts for watts in (self._lowest.get(model), own) if watts is not None), default=None)


LOOK_EVERY = timedelta(minutes=1)
"""How soon a GPU that has become idle is shown as such."""


class RememberedActivities(GpuActivities):
    """Remembers the last hour, and which nodes look different since."""

    def __init__(self, carrel: ClusterState, usages: GpuUsages | None = None) -> None:
        super().__init__(carrel, usages)
        self._sums: dict[NodeName, dict[GpuUuid, RecentSums]] = {}
        self._looked: dict[NodeName, datetime] = {}
        self._seen: dict[NodeName, list[tuple[ActivityState, UnknownWhy | None, datetime | None]]] = {}
        self._changed_at: dict[NodeName, int] = {}
        self.version = 0
        """Another number once a GPU is active that was idle, or the other way round."""
        self.usages.on_report(self._on_report)

    def changed_since(self, version: int) -> Collection[NodeName]:
        return [node for node, at in self._changed_at.items() if at > version]

    def counts(self) -> Counter[ActivityState]:
        """Count the GPUs that pods hold by what they do, as it was when this process last looked."""
        counted = Counter[ActivityState]()
        for node, seen in self._seen.items():
            is_silent = bool(self._carrel.cluster_ledger.why_silent(node))
            counted.update(ActivityState.UNKNOWN if is_silent else state for state, _, _ in seen)
        return counted

    def _on_report(self, node: NodeName, is_there: bool) -> None:
        if not is_there:
            self._sums.pop(node, None)
            self._looked.pop(node, None)
            self._seen.pop(node, None)
            return
        now = self._carrel.options.now()
        looked = self._looked.get(node)
        if looked is not None and timedelta() <= now - looked < LOOK_EVERY:
            return
        if entries := shown_gpus(self._carrel.cluster_ledger, node):
            self._remember(node, entries)
            if self.usages.of_node(node):
                self._looked[node] = now  # of a node without a sample, the first one is shown at once

    def _remember(self, node: NodeName, entries: Iterable[GpuEntry]) -> None:
        sums, before = dict[GpuUuid, RecentSums](), self._sums.get(node, {})
        usages = self.usages.of_node(node)
        for entry in entries:
            uuid, holders = entry.gpu.uuid, frozenset(entry.shares)
            usage = usages.get(uuid)
            if usage is not None and holders:
                known = before.get(uuid)
                if known is None or not known.continues(holders, usage):
                    known = RecentSums(holders, usage) if self._is_theirs(usage, entry) else None
                if known is not None:
                    known.add(usage)
                    sums[uuid] = known
        self._sums[node] = sums
        seen = [(each.state, each.why, each.since if each.is_idle else None) for each in map(self.of, entries) if each]
        if seen != self._seen.get(node):
            self._seen[node] = seen
            self.version += 1
            self._changed_at[node] = self.version

    def _is_theirs(self, usage: GpuUsage, entry: GpuEntry) -> bool:
        """Whether what comes after these sums is of the present holders alone: activity is counted in whole minutes."""
        newest = max(filter(None, map(self._held_since, entry.shares)), default=None)
        return newest is None or usage.until - newest >= timedelta(minutes=1)

    def _recent(self, entry: GpuEntry, usage: GpuUsage) -> ActivePart | None:
        known = self._sums.get(entry.gpu.node, {}).get(entry.gpu.uuid)
        return known.until(usage) if known is not None and known.continues(frozenset(entry.shares), usage) else None
