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
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from carrel.bookings.client.interface import BookingService, CachedAnswer, Declined, NoAnswer
from carrel.bookings.client.status import BookingStatus

log = logging.getLogger(__name__)

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


class Question(NamedTuple):
    user: str
    namespace: str


class _CachedEntry(NamedTuple):
    answer: BookingStatus
    at: float


class _Pause(NamedTuple):
    until: float = float("-inf")
    why: str = ""
    was_answered: bool = False


class BookingCache:
    """Implements `bookings.client.interface.BookingLookup`."""

    def __init__(self, service: BookingService, clock: Callable[[], float], timing: CacheTiming | None = None) -> None:
        self._service = service
        self._clock = clock
        self._timing = timing or CacheTiming()
        self._answers: OrderedDict[Question, _CachedEntry] = OrderedDict()
        self._under_way: dict[Question, asyncio.Future[None]] = {}
        self._declined: OrderedDict[Question, _Pause] = OrderedDict()
        self._pause = _Pause()
        self.failures = 0
        self.oldest_s = 0.0
        """The age of the oldest answer that was used since the service last answered."""

    async def status(self, user: str, namespace: str) -> CachedAnswer:
        question = Question(user, namespace)
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

    async def _ask_once(self, question: Question) -> None:
        if (asked := self._under_way.get(question)) is not None:
            await asyncio.shield(asked)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[question] = done
        try:
            answer = await self._service.status(question.user, question.namespace)
        except NoAnswer as no_answer:
            self._note_failure(question, no_answer)
        else:
            self.oldest_s = 0.0
            _remember(self._answers, question, _CachedEntry(answer, self._clock()))
        finally:
            del self._under_way[question]
            done.set_result(None)

    def _note_failure(self, question: Question, no_answer: NoAnswer) -> None:
        self.failures += 1
        pause = _Pause(self._clock() + self._timing.pause_s, str(no_answer), no_answer.was_answered)
        if isinstance(no_answer, Declined):
            _remember(self._declined, question, pause)
        else:
            self._pause = pause
        log.warning("booking_service_failed why=%r", pause.why)

    def _pause_of(self, question: Question) -> _Pause:
        """The longer of the two."""
        return max(self._pause, self._declined.get(question, _Pause()))

    def _age(self, question: Question) -> float:
        return self._clock() - self._answers[question].at if question in self._answers else float("inf")


def _remember(kept: OrderedDict[Question, V], question: Question, what: V) -> None:
    kept[question] = what
    kept.move_to_end(question)
    while len(kept) > MAX_CACHED:
        kept.popitem(last=False)
