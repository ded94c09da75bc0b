"""Runs simulations on several cores, and says how far they are."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

_shared: list[Any] = []
"""In each worker: what all its runs need, sent once."""


def run_all(work: Callable[[Any, Job], Result], shared: Any, jobs: Sequence[Job], processes: int = 0) -> list[Result]:
    """The results in the order of the jobs, however many processes there are."""
    processes = min(processes or os.cpu_count() or 1, len(jobs))
    progress = _Progress(len(jobs))
    if processes <= 1:
        return [progress.after(work(shared, job)) for job in jobs]
    with ProcessPoolExecutor(processes, initializer=_share, initargs=(shared,)) as pool:
        futures = [pool.submit(_work, work, job) for job in jobs]
        for _ in as_completed(futures):
            progress.after(None)
        return [future.result() for future in futures]


def _share(shared: Any) -> None:
    _shared[:] = [shared]


def _work(work: Callable[[Any, Any], Any], job: Any) -> Any:
    return work(_shared[0], job)


class _Progress:
    """On stderr, if that is a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._shown = sys.stderr.isatty()

    def after(self, result: Any) -> Any:
        self._done += 1
        if self._shown:
            passed = time.monotonic() - self._start
            left = passed / self._done * (self._total - self._done)
            end = "\n" if self._done == self._total else ""
            sys.stderr.write(f"\r{self._done} of {self._total} runs, about {left:.0f} s left \x1b[K{end}")
            sys.stderr.flush()
        return result
