"""What was measured: a table for people, and a line in a file that is kept."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.end_to_end.rounds import SCHEDULER, VARIANTS, Outcome
from benchmarks.measuring import Figure

KEPT = Path(__file__).parents[1] / "results" / "end_to_end.jsonl"
LEAST_RATIO, MOST_EXTENDER_MS, MOST_SCHEDULER_RATIO = 0.6, 4.0, 1.3
"""The goals: pods per second beside kube-scheduler without an extender, CPU of the extender for one pod, and
kube-scheduler's own CPU beside what it takes without an extender."""


def figures(nodes: int, rounds: Mapping[str, Sequence[Outcome]]) -> list[Figure]:
    """Medians, with Carrel beside without. Goals are of the largest cluster."""
    found, without = [], _median(rounds["without"])
    for key, outcomes in rounds.items():
        typical, name = _median(outcomes), f"{nodes:,} nodes, {VARIANTS[key].name}"
        found.append(Figure(f"{name}: pods per second", typical.pods_per_s, "/s"))
        found += [Figure(f"  {process}: CPU for one pod", cpu, "ms") for process, cpu in sorted(typical.cpu_ms.items())]
        if key == "without":
            continue
        found += [
            Figure("  pods per second without / with", without.pods_per_s / typical.pods_per_s, "×", 1 / LEAST_RATIO),
            Figure("  pods per second with / without", typical.pods_per_s / without.pods_per_s, "×"),
            Figure("  extender: CPU for one pod", typical.cpu_ms["extender 1"], "ms", MOST_EXTENDER_MS),
            Figure(
                "  kube-scheduler: CPU with / without",
                typical.cpu_ms[SCHEDULER] / without.cpu_ms[SCHEDULER],
                "×",
                MOST_SCHEDULER_RATIO,
            ),
        ]
    return found


def growth(by_nodes: Mapping[int, Mapping[str, Sequence[Outcome]]]) -> list[Figure]:
    """How much more a pod costs in the largest cluster than in the smallest."""
    if len(by_nodes) < 2:
        return []
    few, many = min(by_nodes), max(by_nodes)
    found = []
    for key in by_nodes[few]:
        small, large = _median(by_nodes[few][key]), _median(by_nodes[many][key])
        for process in sorted(small.cpu_ms):
            name = f"{VARIANTS[key].name}, {process}: CPU for one pod, {many:,} / {few:,} nodes"
            found.append(Figure(name, large.cpu_ms[process] / max(small.cpu_ms[process], 0.01), "×"))
    return found


def keep(by_nodes: Mapping[int, Mapping[str, Sequence[Outcome]]], pods: int, start: Sequence[Figure] = ()) -> None:
    line: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "load": round(os.getloadavg()[0], 1),
        "commit": _commit(),
        "pods": pods,
        "rounds": {
            str(nodes): {
                key: [{"pods_per_s": round(each.pods_per_s, 1), "cpu_ms": _rounded(each.cpu_ms)} for each in outcomes]
                for key, outcomes in rounds.items()
            }
            for nodes, rounds in by_nodes.items()
        },
        "start": {figure.name: round(figure.value, 1) for figure in start},
    }
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as kept:
        kept.write(json.dumps(line) + "\n")


def _median(outcomes: Sequence[Outcome]) -> Outcome:
    names = outcomes[0].cpu_ms
    return Outcome(
        statistics.median(each.pods_per_s for each in outcomes),
        {name: statistics.median(each.cpu_ms[name] for each in outcomes) for name in names},
    )


def _rounded(cpu_ms: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in cpu_ms.items()}


def _machine() -> str:
    described = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{len(models)} × {models[0] if models else platform.machine()}, {system}"


def _commit() -> str:
    command, here = ["git", "describe", "--always", "--dirty"], Path(__file__).parent
    found = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
