"""A queue of keys to process, for the loops of controllers.

Promises: a key is in the queue at most once; no two workers have the same key at the same time; a key that is added
while it is processed is processed again afterwards; one that failed is tried again with growing delays. `close` ends
every waiting worker and drops delayed keys.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from carrel.kubernetes.cluster import ClusterError
from carrel.kubernetes.leader_election import LeadershipLost
from carrel.kubernetes.timing import REAL_TIME, Backoff, Timing

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)

DEFAULT_BACKOFF = Backoff(first_s=0.1, limit_s=60.0)


class WorkQueue(Generic[K]):
    def __init__(self, *, backoff: Backoff = DEFAULT_BACKOFF, timing: Timing = REAL_TIME) -> None:
        self._backoff = backoff
        self._timing = timing
        self._ready: deque[K] = deque()
        self._wanted: set[K] = set()
        """Every key that is due: ready, or being processed and added again."""
        self._working: set[K] = set()
        self._delayed: dict[K, tuple[float, asyncio.Task[None]]] = {}
        self._failures: dict[K, int] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        """How many keys are ready for a worker."""
        return len(self._ready)

    def add(self, key: K) -> None:
        if self._is_closed or key in self._wanted:
            return
        self._wanted.add(key)
        if key not in self._working:
            self._make_ready(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Of several delays the earliest counts."""
        if self._is_closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self._timing.now() + seconds
        if key in self._delayed:
            earlier, timer = self._delayed[key]
            if earlier <= due:
                return
            timer.cancel()
        self._delayed[key] = due, asyncio.create_task(self._add_later(key, seconds))

    def retry(self, key: K) -> float:
        """The key failed: it is added again after a delay, which doubles with each failure in a row. Returns it."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = self._timing.spread(self._backoff.after(self._failures[key]))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure counts as the first."""
        self._failures.pop(key, None)

    async def wait_next(self) -> K | None:
        """The next key. No other worker gets it until `done` is called. None: the queue is closed."""
        while not self._ready and not self._is_closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # Woken and cancelled at the same time: the key must wake another worker.
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()
                raise
        if self._is_closed:
            return None
        key = self._ready.popleft()
        self._wanted.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._wanted and not self._is_closed:
            self._make_ready(key)

    def close(self) -> None:
        self._is_closed = True
        for _, timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        while self._waiters:
            self._wake_one()

    async def _add_later(self, key: K, seconds: float) -> None:
        await self._timing.sleep(seconds)
        del self._delayed[key]
        self.add(key)

    def _make_ready(self, key: K) -> None:
        self._ready.append(key)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return


async def run_worker(
    queue: WorkQueue[K],
    process: Callable[[K], Awaitable[None]],
    failed: Callable[[K], None] = lambda key: None,
    name: Callable[[K], str] = str,
) -> None:
    """One worker, until the queue is closed. If `process` raises, that is logged and the key is tried again later.

    `failed` counts it; `name` is what the log calls the key's object.
    """
    while (key := await queue.wait_next()) is not None:
        try:
            await process(key)
        except Exception as error:
            failed(key)
            delay = queue.retry(key)
            # An answer of the API server needs no stack trace; a mistake in our code does.
            is_ours = not isinstance(error, ClusterError | LeadershipLost)
            log.warning("work_failed key=%s again_in_s=%.1f: %s", name(key), delay, error, exc_info=is_ours)
        else:
            queue.forget(key)
        finally:
            queue.done(key)
