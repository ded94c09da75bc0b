"""A clock that advances only when the test says so."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from carrel.kubernetes.timing import Timing

_TURNS = 25
"""Turns of the event loop after which most tasks that do not wait for time have finished."""
_ATTEMPTS = 100
"""How often to settle again while no task waits for time, before the test fails."""


class FakeTime:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []
        """Every sleep that was asked for, in order."""
        self._order = count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def timing(self) -> Timing:
        """Without randomness: every wait has its full length."""
        return Timing(now=lambda: self.now, sleep=self.sleep, chance=lambda: 1.0)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + max(seconds, 0.0), next(self._order), waiting))
        await waiting

    async def settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Lets time pass; each sleeper is woken at its own time."""
        end = self.now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            await self._wake_next()
        self.now = end
        await self.settle()

    async def pause(self, seconds: float) -> None:
        """The process is stopped: time passes, no task runs, and then all due sleepers wake at once."""
        self.now += seconds
        while self._sleepers and self._sleepers[0][0] <= self.now:
            _, _, waiting = heapq.heappop(self._sleepers)
            if not waiting.done():
                waiting.set_result(None)
        await self.settle()

    async def until(self, condition: Callable[[], object], limit_s: float = 3600.0) -> None:
        """Lets time pass until the condition holds."""
        end = self.now + limit_s
        await self.settle()
        while not condition():
            await self._wait_sleeper(condition)
            if self._sleepers:
                assert self._sleepers[0][0] <= end, f"not within {limit_s} s"
                await self._wake_next()

    async def _wait_sleeper(self, condition: Callable[[], object]) -> None:
        for _ in range(_ATTEMPTS):
            if self._sleepers or condition():
                return
            await self.settle()
        raise AssertionError("no task waits for time, and the condition does not hold")

    async def _wake_next(self) -> None:
        due, _, waiting = heapq.heappop(self._sleepers)
        if waiting.done():
            return
        self.now = max(self.now, due)
        waiting.set_result(None)
        await self.settle()
