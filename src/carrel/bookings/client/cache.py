"""Asks the booking service, no more often than needed, and remembers its answers for a while.

- An answer is fresh for some seconds: a notebook server that starts ten pods asks once.
- Of several callers that ask the same question at once, one asks the service.
- After a failure nobody asks for a moment, so that a service that is down does not slow down the creation of pods.
  Meanwhile the last answer is used, but not for longer than `usable_s`.
- A declined question only delays itself: otherwise one bad question would cost everybody else their booking.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from carrel.bookings.client.interface import BookingService, CachedAnswer, Declined, NoAnswer
from carrel.bookings.client.status import BookingStatus

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

MAX_CACHED = 10_000
"""More than there are people in a lab: invented names must not fill the memory."""


@dataclass(frozen=True, slots=True)
class CacheTiming:
    fresh_s: float = 5.0
    """A new booking counts after this time at the latest."""
    usable_s: float = 300.0
    """How old an answer may be while the service does not answer."""
    pause_s: float = 5.0
    """How long nobody asks after a failure."""


class BookingCache:
    """Implements `bookings.client.interface.BookingLookup`."""

    def __init__(self, service: BookingService, clock: Callable[[], float], timing: CacheTiming | None = None) -> None:
        times = timing or CacheTiming()
        self._statuses = _Cache[tuple[str, str], BookingStatus](lambda whose: service.status(*whose), clock, times)

    async def status(self, user: str, namespace: str) -> CachedAnswer[BookingStatus]:
        return await self._statuses.get((user, namespace))

    @property
    def failures(self) -> int:
        return self._statuses.failures

    @property
    def oldest_s(self) -> float:
        """The age of the oldest answer that was used since the service last answered."""
        return self._statuses.oldest_s


class _CachedEntry(NamedTuple, Generic[T]):
    answer: T
    at: float


class _Pause(NamedTuple):
    until: float = float("-inf")
    why: str = ""
    was_answered: bool = False


class _Cache(Generic[K, T]):
    """The answers to one kind of question."""

    def __init__(self, ask: Callable[[K], Awaitable[T]], clock: Callable[[], float], timing: CacheTiming) -> None:
        self._ask = ask
        self._clock = clock
        self._timing = timing
        self._answers: OrderedDict[K, _CachedEntry[T]] = OrderedDict()
        self._under_way: dict[K, asyncio.Future[None]] = {}
        self._declined: OrderedDict[K, _Pause] = OrderedDict()
        self._pause = _Pause()
        self.failures = 0
        self.oldest_s = 0.0

    async def get(self, question: K) -> CachedAnswer[T]:
        # In a loop: the caller that asked for all of us may have been cancelled.
        while self._age(question) > self._timing.fresh_s and self._clock() >= self._pause_of(question).until:
            await self._ask_once(question)
        age, pause = self._age(question), self._pause_of(question)
        if age <= self._timing.fresh_s:
            return CachedAnswer(self._answers[question].answer, age)
        if age <= self._timing.usable_s:
            self.oldest_s = max(self.oldest_s, age)
            return CachedAnswer(self._answers[question].answer, age, pause.why, pause.was_answered)
        return CachedAnswer(None, failure=pause.why, was_answered=pause.was_answered)

    async def _ask_once(self, question: K) -> None:
        if (asked := self._under_way.get(question)) is not None:
            await asyncio.shield(asked)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[question] = done
        try:
            answer = await self._ask(question)
        except NoAnswer as no_answer:
            self._note_failure(question, no_answer)
        else:
            self.oldest_s = 0.0
            _remember(self._answers, question, _CachedEntry(answer, self._clock()))
        finally:
            del self._under_way[question]
            done.set_result(None)

    def _note_failure(self, question: K, no_answer: NoAnswer) -> None:
        self.failures += 1
        pause = _Pause(self._clock() + self._timing.pause_s, str(no_answer), no_answer.was_answered)
        if isinstance(no_answer, Declined):
            _remember(self._declined, question, pause)
        else:
            self._pause = pause
        log.warning("booking_service_failed why=%r", pause.why)

    def _pause_of(self, question: K) -> _Pause:
        """The longer of the two."""
        return max(self._pause, self._declined.get(question, _Pause()))

    def _age(self, question: K) -> float:
        return self._clock() - self._answers[question].at if question in self._answers else float("inf")


def _remember(kept: OrderedDict[K, V], question: K, what: V) -> None:
    kept[question] = what
    kept.move_to_end(question)
    while len(kept) > MAX_CACHED:
        kept.popitem(last=False)
