"""Asks the booking service, not more often than needed, and remembers what it said for a while.

- An answer counts as fresh for some seconds: a notebook server that starts ten pods asks once.
- Of several who ask the same at once, one asks.
- A service that fails is left alone for a moment, so that pods are not made slowly because of it; meanwhile what it
  said last counts, but not for longer than `believed_s`.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from carrel.ports.booking_desk import BookingService, Heard, NoAnswer
from carrel.protocols.maia import Verdict

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

MOST_REMEMBERED = 10_000
"""People in a lab are fewer; who invents names does not get our memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    fresh_s: float = 5.0
    """Whoever has just booked does not wait longer than this until it counts."""
    believed_s: float = 300.0
    """How old an answer may be while the service is silent."""
    pause_s: float = 5.0
    """After a failure nobody asks for so long."""


@dataclass
class _Said(Generic[T]):
    answer: T
    at: float


class Desk:
    """The booking desk of one webhook process."""

    def __init__(self, service: BookingService, clock: Callable[[], float], memory: Memory | None = None) -> None:
        self._service = service
        self._clock = clock
        self._memory = memory or Memory()
        self._verdicts: OrderedDict[tuple[str, str], _Said[Verdict]] = OrderedDict()
        self._free: OrderedDict[str, _Said[Mapping[str, int]]] = OrderedDict()
        self._under_way: dict[object, asyncio.Future[None]] = {}
        self._silent_until = float("-inf")
        self._silence = ""
        self.failures = 0
        self.oldest_s = 0.0
        """The age of the oldest answer that was used since the service last answered."""

    async def verdict(self, user: str, namespace: str) -> Heard[Verdict]:
        key = (user, namespace)
        return await self._heard(self._verdicts, key, lambda: self._service.verdict(user, namespace))

    async def free(self) -> Heard[Mapping[str, int]]:
        return await self._heard(self._free, "free", self._service.free)

    async def _heard(self, said: OrderedDict[K, _Said[T]], key: K, ask: Callable[[], Awaitable[T]]) -> Heard[T]:
        # Again and again: whoever asked for all of us may have given up.
        while self._age(said, key) > self._memory.fresh_s and self._clock() >= self._silent_until:
            await self._ask_once(said, key, ask)
        age = self._age(said, key)
        if age <= self._memory.fresh_s:
            return Heard(said[key].answer, age)
        if age <= self._memory.believed_s:
            self.oldest_s = max(self.oldest_s, age)
            return Heard(said[key].answer, age, self._silence)
        return Heard(None, silence=self._silence)

    async def _ask_once(self, said: OrderedDict[K, _Said[T]], key: K, ask: Callable[[], Awaitable[T]]) -> None:
        if (asked := self._under_way.get(key)) is not None:
            await asyncio.shield(asked)
            return
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[key] = answered
        try:
            answer = await ask()
        except NoAnswer as no_answer:
            self.failures += 1
            self._silent_until, self._silence = self._clock() + self._memory.pause_s, str(no_answer)
            log.warning("booking_service_silent why=%r", self._silence)
        else:
            self.oldest_s = 0.0
            said[key] = _Said(answer, self._clock())
            said.move_to_end(key)
            while len(said) > MOST_REMEMBERED:
                said.popitem(last=False)
        finally:
            del self._under_way[key]
            answered.set_result(None)

    def _age(self, said: OrderedDict[K, _Said[T]], key: K) -> float:
        return self._clock() - said[key].at if key in said else float("inf")
