"""Runs simulations on several cores, and says how far they are.

Invariant: however it ends, no process stays. Only the parent hears Ctrl-C and SIGTERM: it kills its workers. A worker
whose parent is gone ends itself.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe, get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from threading import Thread
from types import FrameType
from typing import Any, NoReturn, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")
Work = Callable[[Any, Any], Any]

HEARD_BY_THE_PARENT = (signal.SIGINT, signal.SIGTERM)


class WorkerEnded(Exception):
    """A process of ours was ended by somebody else, or by the kernel because memory was short."""


class RunFailed(Exception):
    """A bug: a run in another process raised. It has the traceback of that process."""


def run_all(work: Callable[[Any, Job], Result], shared: Any, jobs: Sequence[Job], processes: int = 0) -> list[Result]:
    """The results in the order of the jobs, however many processes there are. Raises `WorkerEnded`."""
    processes = min(processes or os.cpu_count() or 1, len(jobs))
    if processes <= 1:
        with _Progress(len(jobs)) as progress:
            return [progress.after(work(shared, job)) for job in jobs]
    results: dict[int, Result] = {}
    waiting = iter(enumerate(jobs))
    with _Progress(len(jobs)) as progress, _started(processes, work, shared) as workers:
        for worker in workers.values():
            worker.give(next(waiting))
        while len(results) < len(jobs):
            for connection in wait(list(workers)):
                worker = workers[connection]  # type: ignore[index] # `wait` returns what it was given
                number, result = worker.result()
                results[number] = progress.after(result)
                if (job := next(waiting, None)) is not None:
                    worker.give(job)
    return [results[number] for number in range(len(jobs))]


@contextmanager
def terminated_by_exception() -> Iterator[None]:
    """Within it SIGTERM raises `SystemExit` with the usual code, so that everything is cleaned up."""

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# --- the workers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Worker:
    process: ForkProcess
    connection: Connection

    def give(self, job: tuple[int, Any]) -> None:
        try:
            self.connection.send(job)
        except OSError:
            raise self._ended() from None

    def result(self) -> tuple[int, Any]:
        try:
            number, result, failure = self.connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if failure:
            raise RunFailed(failure)
        return number, result

    def _ended(self) -> WorkerEnded:
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return WorkerEnded(f"Process {self.process.pid}, which simulated a part of it, {how}.")


@contextmanager
def _started(count: int, work: Work, shared: Any) -> Iterator[dict[Connection, _Worker]]:
    """By the connections to them; fewer than `count` if the system gives no more. They are killed at the end: by then
    they have nothing left to do."""
    workers: dict[Connection, _Worker] = {}
    try:
        with _signals_held():  # workers inherit that, and hold them for ever
            for _ in range(count):
                try:
                    worker = _start(work, shared)
                except OSError as error:
                    if not workers:
                        raise WorkerEnded(f"No process could be started: {error}.") from None
                    break
                workers[worker.connection] = worker
        yield workers
    finally:
        with _signals_held():
            for worker in workers.values():
                worker.process.kill()
            for worker in workers.values():
                worker.process.join()


def _start(work: Work, shared: Any) -> _Worker:
    ours, theirs = Pipe()
    with theirs:  # closed here, so that the end of the worker is the end of the connection
        # A fork, which inherits what was read and which signals are held. There is no other thread yet.
        process = get_context("fork").Process(target=_work, args=(work, shared, theirs), daemon=True)
        process.start()
    return _Worker(process, ours)


@contextmanager
def _signals_held() -> Iterator[None]:
    """A signal is heard at the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD_BY_THE_PARENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Work, shared: Any, connection: Connection) -> None:
    Thread(target=_end_with_parent, daemon=True).start()
    while True:
        number, job = connection.recv()
        try:
            answer = number, work(shared, job), ""
        except Exception:
            answer = number, None, traceback.format_exc()
        connection.send(answer)


def _end_with_parent() -> None:
    """The parent may be killed without a chance to kill its workers."""
    parent = parent_process()
    assert parent is not None, "only workers call it"
    parent.join()
    os._exit(1)


class _Progress:
    """On stderr, if that is a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._shown = sys.stderr is not None and sys.stderr.isatty()  # None: somebody has closed it

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._done:
            sys.stderr.write("\n")

    def after(self, result: Any) -> Any:
        self._done += 1
        if self._shown:
            passed = time.monotonic() - self._start
            left = passed / self._done * (self._total - self._done)
            sys.stderr.write(f"\r{self._done} of {self._total} runs, about {left:.0f} s left \x1b[K")
            sys.stderr.flush()
        return result
