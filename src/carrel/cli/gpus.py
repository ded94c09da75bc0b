"""`carrel gpus`: who holds what, GPU by GPU."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from carrel.cli.options import ClusterQuerySettings, ListFormat
from carrel.command_errors import NOT_FOUND, command_failed
from carrel.ids import NO_NODE, NodeName
from carrel.option_fields import argument, option

if TYPE_CHECKING:
    from carrel.cli.cluster_reader import ReadCluster
    from carrel.cluster.coverage.coverage_words import GpuHolder


@dataclass(frozen=True)
class GpusSettings(ClusterQuerySettings):
    node: NodeName = argument(NO_NODE, "One node; default: all.")
    output: ListFormat = option(ListFormat.TABLE, "Output format.", "--output", "-o")  # type: ignore[assignment] # CSV too
    """JSON, YAML and CSV are for programs: their fields do not change without notice."""


def gpus(settings: GpusSettings) -> None:
    """Show who holds what: for each GPU its pods, their people, until when, whether they use it, and how much is free.

    A GPU is idle if its pod has not computed on it for half an hour. What is not known is said to be unknown.

    Examples:

      carrel gpus

      carrel gpus dgx-1

      carrel gpus -o csv
    """
    from carrel.cli.cluster_reader import read_cluster
    from carrel.cli.output import Column, print_list, rows_of
    from carrel.ledger.gpus import label_of, memory_text
    from carrel.settings import cluster_access

    carrel = read_cluster(settings, cluster_access(settings))
    if settings.node and carrel.ledger.node(settings.node) is None:
        why = "No node with this name has reported GPUs."
        raise command_failed(f"No GPUs on {settings.node}", why, "carrel gpus", NOT_FOUND)
    items = [
        item for name in sorted(carrel.ledger.nodes) if settings.node in (NO_NODE, name) for item in _on(carrel, name)
    ]
    columns: list[Column] = [
        ("NODE", True, lambda item: item["node"]),
        ("GPU", True, lambda item: label_of(int(item["gpu"]))),
        ("MODEL", True, lambda item: item["model"]),
        ("MEMORY", True, lambda item: f"{memory_text(item['mib'])} of {memory_text(item['of_mib'])}"),
        ("POD", True, lambda item: item["pod"] or ("nobody" if item["remark"] else "free")),
        ("PERSON", True, lambda item: item["user"] or "–"),
        ("HOW LONG", True, lambda item: item["remark"] or "–"),
        ("USE", True, lambda item: item["use"] or "–"),
    ]
    print_list(items, settings.output, rows_of(items, columns))


def _on(carrel: "ReadCluster", node: NodeName) -> Iterator[dict[str, Any]]:
    """What each pod holds, and what is free."""
    from carrel.cluster.coverage.coverage_reader import CoverageReader
    from carrel.cluster.record.shown_gpus import shown_gpus
    from carrel.parsing.time import seconds

    reader, known = CoverageReader(carrel, carrel.activities), carrel.ledger.node(node)
    closed = known.out_of_use if known is not None else ""
    for entry in shown_gpus(carrel.cluster_ledger, node):
        gpu = entry.gpu
        about = {"node": node, "gpu": gpu.index, "model": gpu.model, "of_mib": int(gpu.memory)}
        for uid, holder in reader.holders_of(entry):
            held = {"mib": entry.held(entry.shares[uid]), "pod": holder.pod, "user": holder.user}
            until = seconds(holder.until) if holder.until is not None else None
            yield about | held | {"booked_until": until, "remark": carrel.words.until(holder)} | _use(carrel, holder)
        kept = f"kept for {entry.kept_for}" if entry.kept_for else ""
        if entry.free > 0 or gpu.unusable:
            nobody = {"mib": max(entry.free, 0), "pod": "", "user": "", "booked_until": None}
            yield about | nobody | {"remark": gpu.unusable or closed or kept} | NO_USE


NO_USE = {"activity": None, "idle_since": None, "use": ""}


def _use(carrel: "ReadCluster", holder: "GpuHolder") -> dict[str, Any]:
    from carrel.parsing.time import seconds

    activity = holder.activity
    if activity is None:
        return NO_USE
    since = seconds(activity.since) if activity.is_idle and activity.since is not None else None
    return {"activity": activity.state.value, "idle_since": since, "use": carrel.activity_words.brief(activity)}
