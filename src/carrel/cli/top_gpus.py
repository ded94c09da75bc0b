"""What `carrel top` says about each GPU: what it does now, and which pods hold it.

What a GPU measures is of the GPU, and is never divided among the pods that share it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from carrel.cli.cluster_reader import ReadCluster
from carrel.cluster.coverage.coverage_reader import CoverageReader
from carrel.cluster.coverage.coverage_words import GpuHolder
from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpu_activity import FRESH, ActivityState, GpuActivity
from carrel.ledger.gpu_usage import NOTHING_KNOWN, GpuSample
from carrel.ledger.ledger import GpuEntry
from carrel.parsing.time import seconds


@dataclass(frozen=True, slots=True)
class TopPod:
    """A pod that holds a GPU, or a part of it."""

    pod: str
    user: str
    tier: str
    mib: int
    booked_until: datetime | None
    activity: GpuActivity | None


@dataclass(frozen=True, slots=True)
class TopGpu:
    uuid: GpuUuid
    node: NodeName
    index: int
    model: str
    mib: int
    remark: str
    """Why nobody gets what is free of it; empty: it can be had."""
    latest: GpuSample
    """Its last sample, if that is not old."""
    activity: GpuActivity | None
    """None: nobody holds it."""
    pods: tuple[TopPod, ...]

    @property
    def idle_since(self) -> datetime | None:
        """None: it is not idle."""
        return self.activity.since if self.activity is not None and self.activity.is_idle else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which GPUs are looked at."""

    node: str = ""
    model: str = ""
    """A part of its name."""
    user: str = ""
    """A part of the name of a person who holds it."""

    def has_model(self, model: str) -> bool:
        return self.model.lower() in model.lower()

    def has_user(self, pods: Sequence[TopPod]) -> bool:
        return not self.user or any(self.user.lower() in pod.user.lower() for pod in pods)


def nodes_wanted(carrel: ReadCluster, wanted: Wanted) -> list[NodeName]:
    return [name for name in sorted(carrel.ledger.nodes) if wanted.node in ("", name)]


def gpus_of(carrel: ReadCluster, node: NodeName, wanted: Wanted) -> Iterator[TopGpu]:
    """The GPUs of a node that are wanted, as people number them."""
    known = carrel.ledger.node(node)
    if known is None:
        return
    reader = CoverageReader(carrel, carrel.activities)
    for entry in shown_gpus(carrel.cluster_ledger, node):
        if wanted.has_model(entry.gpu.model):
            found = (_pod(entry.held(entry.shares[uid]), holder) for uid, holder in reader.holders_of(entry))
            pods = tuple(sorted(found, key=lambda pod: pod.pod))
            if wanted.has_user(pods):
                yield _gpu(carrel, entry, pods, known.out_of_use)


def _gpu(carrel: ReadCluster, entry: GpuEntry, pods: tuple[TopPod, ...], closed: str) -> TopGpu:
    gpu = entry.gpu
    usage = carrel.activities.usages.of_gpu(gpu.node, gpu.uuid)
    is_fresh = usage is not None and abs(carrel.options.now() - usage.until) <= FRESH
    return TopGpu(
        uuid=gpu.uuid,
        node=gpu.node,
        index=gpu.index,
        model=gpu.model,
        mib=int(gpu.memory),
        remark=gpu.unusable or closed or (f"kept for {entry.kept_for}" if entry.kept_for else ""),
        latest=usage.latest if usage is not None and is_fresh else NOTHING_KNOWN,
        activity=carrel.activities.of(entry),
        pods=pods,
    )


def _pod(mib: int, holder: GpuHolder) -> TopPod:
    tier = holder.tier.value if holder.tier is not None else ""
    return TopPod(holder.pod, holder.user, tier, mib, holder.until, holder.activity)


# --- for programs ----------------------------------------------------------------------------------------------------


def as_data(gpus: Iterable[TopGpu]) -> list[dict[str, Any]]:
    """For programs: their fields do not change without notice."""
    return [_gpu_as_data(gpu) for gpu in gpus]


def _gpu_as_data(gpu: TopGpu) -> dict[str, Any]:
    latest = gpu.latest
    return {
        "node": gpu.node,
        "gpu": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "of_mib": gpu.mib,
        "remark": gpu.remark,
        "utilisation_percent": round(100 * latest.utilisation) if latest.utilisation is not None else None,
        "used_mib": latest.used,
        "power_watts": round(latest.power_watts) if latest.power_watts is not None else None,
        "temperature_celsius": latest.temperature_celsius,
        **_activity(gpu.activity),
        "pods": [
            {
                "pod": pod.pod,
                "user": pod.user,
                "tier": pod.tier or None,
                "mib": pod.mib,
                "booked_until": seconds(pod.booked_until) if pod.booked_until is not None else None,
                **_activity(pod.activity),
            }
            for pod in gpu.pods
        ],
    }


def _activity(activity: GpuActivity | None) -> Mapping[str, str | None]:
    since = activity.since if activity is not None and activity.is_idle else None
    return {
        "activity": activity.state.value if activity is not None else None,
        "idle_since": seconds(since) if since is not None else None,
    }


# --- sums ------------------------------------------------------------------------------------------------------------


def summary(gpus: Sequence[TopGpu]) -> str:
    """`16 GPUs of 2 nodes: 12 held (5 booked), 9 active, 2 idle, 1 unknown; 4 free`."""
    held = [gpu for gpu in gpus if gpu.pods]
    booked = sum(any(pod.booked_until is not None for pod in gpu.pods) for gpu in held)
    states = [gpu.activity.state for gpu in held if gpu.activity is not None]
    counts = [f"{states.count(state)} {state.value}" for state in ActivityState if state in states]
    nodes = len({gpu.node for gpu in gpus})
    free = sum(not gpu.pods and not gpu.remark for gpu in gpus)
    of = f"{len(gpus):,} GPU{'s' * (len(gpus) != 1)} of {nodes:,} node{'s' * (nodes != 1)}"
    return f"{of}: {', '.join([f'{len(held):,} held ({booked:,} booked)', *counts])}; {free:,} free"
