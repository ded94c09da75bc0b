"""How the benchmarks measure and print: CPU time of the best of several runs, beside a goal."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number and what it must reach. A figure above its goal is shown, and makes `make bench` fail."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    """At most this. None: only shown."""

    @property
    def reached(self) -> bool:
        return self.goal is None or self.value <= self.goal

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"goal ≤ {self.goal:g} {self.unit}"
        mark = " " if self.goal is None else ("✓" if self.reached else "✗")
        return f"{mark} {self.name:<64} {self.value:>10.3f} {self.unit:<6} {goal}"


def cpu_seconds(work: Callable[[], object], runs: int = 7) -> float:
    """The least CPU time of several runs: what the work costs when nothing else runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best
