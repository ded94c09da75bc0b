"""How many of the GPUs that pods hold are active or idle, and how busy they are, by model.

Counted whenever Prometheus asks, from a watch of its own: the ledger has no part in it.
"""

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric

from carrel.cluster.gpu_activities import GpuActivities
from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.cluster.state import ClusterState
from carrel.ledger.gpu_activity import ActivityState, UnknownWhy
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.tiers import Tier
from carrel.lifecycle.reporting.gpu_counts import UNKNOWN

BOOKED, OPPORTUNISTIC, NO_TIER = Tier.BOOKED.value, Tier.OPPORTUNISTIC.value, "none"
TIERS = (BOOKED, OPPORTUNISTIC, NO_TIER)


class GpuUse:
    def __init__(self, state: ClusterState, activities: GpuActivities) -> None:
        self._state = state
        self._activities = activities

    def read(self) -> Iterable[Metric]:
        models, states, idle = set[str](), Counter[tuple[str, ActivityState]](), Counter[tuple[str, str]]()
        busy = dict[str, list[float]]()
        for entry in self._held():
            activity, model = self._activities.of(entry), entry.gpu.model or UNKNOWN
            if activity is None:
                continue
            models.add(model)
            states[model, activity.state] += 1
            if activity.is_idle:
                idle[model, self._tier(entry)] += 1
            if activity.latest.utilisation is not None and activity.why is not UnknownWhy.CONTRADICTION:
                busy.setdefault(model, []).append(activity.latest.utilisation)
        ratio = GaugeMetricFamily(
            "carrel_gpu_busy_ratio",
            "How busy the GPUs are that pods hold, from 0 to 1: the mean of their last samples, where it is known.",
            labels=["model"],
        )
        idle_held = GaugeMetricFamily(
            "carrel_gpus_idle_held",
            "GPUs that pods hold and that have not computed for half an hour, by the highest tier of their pods.",
            labels=["model", "tier"],
        )
        active = GaugeMetricFamily(
            "carrel_gpus_active",
            "GPUs that pods hold and that have computed within the last half an hour.",
            labels=["model"],
        )
        unknown = GaugeMetricFamily(
            "carrel_gpus_use_unknown",
            "GPUs that pods hold, of which nobody can say whether they are active: they are not counted as idle.",
            labels=["model"],
        )
        for model in sorted(models):
            if model in busy:
                ratio.add_metric([model], sum(busy[model]) / len(busy[model]))
            for tier in TIERS:
                idle_held.add_metric([model, tier], idle[model, tier])
            active.add_metric([model], states[model, ActivityState.ACTIVE])
            unknown.add_metric([model], states[model, ActivityState.UNKNOWN])
        return ratio, idle_held, active, unknown

    def _held(self) -> Iterable[GpuEntry]:
        for name in self._state.ledger.nodes:
            yield from (entry for entry in shown_gpus(self._state.cluster_ledger, name) if entry.shares)

    def _tier(self, entry: GpuEntry) -> str:
        pods = filter(None, map(self._state.holders.pod_of, entry.shares))
        tiers = {tier.value if (tier := self._state.covered_pods.tier(pod)) else NO_TIER for pod in pods}
        return next((tier for tier in TIERS if tier in tiers), NO_TIER)
