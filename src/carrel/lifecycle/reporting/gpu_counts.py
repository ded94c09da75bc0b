"""How many GPUs of each model are in use, and by whom; how much of their memory; and how much is booked.

Counted whenever Prometheus asks.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric

from carrel.dialects.booking_objects import is_maias
from carrel.ledger.coverage import Entitlement
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.shares import ShareState

BYTES_PER_MIB = 1024 * 1024
GPU_STATES = ("covered", "opportunistic", "kept", "free", "unusable")
MEMORY_STATES = ("free", *(state.value for state in ShareState if state is not ShareState.GONE))
UNKNOWN = "unknown"
"""A GPU whose model nobody reports, and slots of a node with several models."""
ANY_MODEL = "any"
"""A booking that names no model."""

Counts = Counter[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Count:
    gpus: Counts = field(default_factory=Counter)
    """By model and state."""
    memory: Counts = field(default_factory=Counter)
    """MiB, by model and state."""
    free: Counts = field(default_factory=Counter)
    """MiB that a new pod could have, by model and whether the whole GPU is free."""


def gpu_counts(ledger: Ledger, running: Iterable[Entitlement]) -> Iterable[Metric]:
    """`running`: the bookings that run now."""
    total = _counted(ledger)
    models = sorted({model for model, _ in total.gpus})
    gpus = GaugeMetricFamily(
        "carrel_gpus",
        "GPUs by what they are used for: by pods that a booking covers, only by others (opportunistic), kept for a"
        " booked pod, free; or unusable, for whatever reason.",
        labels=["model", "state"],
    )
    healthy = GaugeMetricFamily("carrel_gpus_healthy", "GPUs that pods can have or use.", labels=["model"])
    memory = GaugeMetricFamily(
        "carrel_gpu_memory_bytes",
        "Memory of GPUs that is free, or held by shares in that state.",
        labels=["model", "state"],
    )
    fragmentation = GaugeMetricFamily(
        "carrel_gpu_fragmentation_ratio",
        "The part of the free memory that is on GPUs of which pods hold a part: no pod can have such a GPU whole.",
        labels=["model"],
    )
    for model in models:
        for state in GPU_STATES:
            gpus.add_metric([model, state], total.gpus[model, state])
        healthy.add_metric([model], sum(total.gpus[model, state] for state in GPU_STATES if state != "unusable"))
        for state in MEMORY_STATES:
            memory.add_metric([model, state], total.memory[model, state] * BYTES_PER_MIB)
        part, whole = total.free[model, "part"], total.free[model, "whole"]
        fragmentation.add_metric([model], part / (part + whole) if part else 0.0)
    yield from (gpus, healthy, memory, fragmentation)
    yield _booked(models, running)


def _booked(models: Iterable[str], running: Iterable[Entitlement]) -> GaugeMetricFamily:
    booked = dict.fromkeys(models, 0.0)
    for each in running:
        model = each.model or ANY_MODEL
        gpus = 1 if is_maias(each.booking) else each.gpus
        booked[model] = booked.get(model, 0.0) + gpus / each.share_of
    gauge = GaugeMetricFamily(
        "carrel_gpus_booked", "GPUs of the bookings that run now; a part of a GPU counts as such.", labels=["model"]
    )
    for model, count in booked.items():
        gauge.add_metric([model], count)
    return gauge


def _counted(ledger: Ledger) -> _Count:
    count = _Count()
    for name in ledger.nodes:
        node = ledger.node(name)
        is_usable = node is not None and not node.out_of_use
        for entry in ledger.entries(name):
            model, state = entry.gpu.model or UNKNOWN, _state(entry, is_node_usable=is_usable)
            count.gpus[model, state] += 1
            count.memory[model, "free"] += max(entry.free, 0)
            for share in entry.shares.values():
                count.memory[model, share.state.value] += entry.held(share)
            if state != "unusable" and entry.kept_for is None:
                count.free[model, "part" if entry.shares else "whole"] += max(entry.free, 0)
    return count


def _state(entry: GpuEntry, *, is_node_usable: bool) -> str:
    if entry.gpu.unusable or not is_node_usable:
        return "unusable"
    if not entry.shares:
        return "free" if entry.kept_for is None else "kept"
    return "covered" if any(share.coverage for share in entry.shares.values()) else "opportunistic"
