"""Asks the booking service, not more often than needed, and remembers what it said for a while.

- An answer counts as fresh for some seconds: a notebook server that starts ten pods asks once.
- Of several who ask the same at once, one asks.
- A service that fails is left alone for a moment, so that pods are not made slowly because of it; meanwhile what it
  said last counts, but not for longer than `believed_s`.
- Nobody's question silences another's: one that is declined is only itself put off, and who cannot count free cards may
  still know bookings. Else a pod that is asked about in vain would cost everybody else their booking.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from carrel.bookings.client.interface import BookingService, Declined, Heard, NoAnswer
from carrel.dialects.maia import Verdict

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")

MAX_CACHED = 10_000
"""People in a lab are fewer; who invents names does not get our memory."""


@dataclass(frozen=True, slots=True)
class Memory:
    fresh_s: float = 5.0
    """Whoever has just booked does not wait longer than this until it counts."""
    believed_s: float = 300.0
    """How old an answer may be while the service is silent."""
    pause_s: float = 5.0
    """After a failure nobody asks for so long."""


class Desk:
    """The booking desk of one webhook process."""

    def __init__(self, service: BookingService, clock: Callable[[], float], memory: Memory | None = None) -> None:
        settled = memory or Memory()
        self._bookings = _Answers[tuple[str, str], Verdict](lambda whose: service.verdict(*whose), clock, settled)
        self._cards = _Answers[None, Mapping[str, int]](lambda _: service.free(), clock, settled)

    async def verdict(self, user: str, namespace: str) -> Heard[Verdict]:
        return await self._bookings.heard((user, namespace))

    async def free(self) -> Heard[Mapping[str, int]]:
        return await self._cards.heard(None)

    @property
    def failures(self) -> int:
        return self._bookings.failures + self._cards.failures

    @property
    def oldest_s(self) -> float:
        """The age of the oldest answer that was used since the service last answered."""
        return max(self._bookings.oldest_s, self._cards.oldest_s)


class _Said(NamedTuple, Generic[T]):
    answer: T
    at: float


class _Silence(NamedTuple):
    until: float = float("-inf")
    why: str = ""


class _Answers(Generic[K, T]):
    """Those to one kind of question."""

    def __init__(self, ask: Callable[[K], Awaitable[T]], clock: Callable[[], float], memory: Memory) -> None:
        self._ask = ask
        self._clock = clock
        self._memory = memory
        self._said: OrderedDict[K, _Said[T]] = OrderedDict()
        self._under_way: dict[K, asyncio.Future[None]] = {}
        self._declined: OrderedDict[K, _Silence] = OrderedDict()
        self._silence = _Silence()
        self.failures = 0
        self.oldest_s = 0.0

    async def heard(self, question: K) -> Heard[T]:
        # Again and again: whoever asked for all of us may have given up.
        while self._age(question) > self._memory.fresh_s and self._clock() >= self._silent(question).until:
            await self._ask_once(question)
        age, why = self._age(question), self._silent(question).why
        if age <= self._memory.fresh_s:
            return Heard(self._said[question].answer, age)
        if age <= self._memory.believed_s:
            self.oldest_s = max(self.oldest_s, age)
            return Heard(self._said[question].answer, age, why)
        return Heard(None, silence=why)

    async def _ask_once(self, question: K) -> None:
        if (asked := self._under_way.get(question)) is not None:
            await asyncio.shield(asked)
            return
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way[question] = answered
        try:
            answer = await self._ask(question)
        except NoAnswer as no_answer:
            self._put_off(question, no_answer)
        else:
            self.oldest_s = 0.0
            _remember(self._said, question, _Said(answer, self._clock()))
        finally:
            del self._under_way[question]
            answered.set_result(None)

    def _put_off(self, question: K, no_answer: NoAnswer) -> None:
        self.failures += 1
        silence = _Silence(self._clock() + self._memory.pause_s, str(no_answer))
        if isinstance(no_answer, Declined):
            _remember(self._declined, question, silence)
        else:
            self._silence = silence
        log.warning("booking_service_silent why=%r", silence.why)

    def _silent(self, question: K) -> _Silence:
        """The longer one."""
        return max(self._silence, self._declined.get(question, _Silence()))

    def _age(self, question: K) -> float:
        return self._clock() - self._said[question].at if question in self._said else float("inf")


def _remember(book: OrderedDict[K, V], question: K, what: V) -> None:
    book[question] = what
    book.move_to_end(question)
    while len(book) > MAX_CACHED:
        book.popitem(last=False)
