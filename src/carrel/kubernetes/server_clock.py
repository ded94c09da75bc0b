"""The time by the API server: this machine's clock, corrected by the `Date` of the server's answers.

Bookings end, pods are warned and Leases are written by the API server's time. A process whose own clock is wrong would
end pods too early or too late. A `Date` says only the second, and an answer takes time; so an answer tells between
which two bounds the difference of the clocks lies. Within the bounds, and a little beyond, the own clock is believed.

The median counts, with one voice for each watch and one for all other calls together: of several API servers, one
whose clock is wrong decides nothing, even if most calls go to it. Every watch opens a connection of its own, to
whichever API server the cluster chooses. If as many say one thing as another, the one nearer to the own clock is
believed. What was said some minutes ago does not count any more: the clock of the API server itself may have been set,
and a watch stays open for half an hour.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from statistics import median_high, median_low
from typing import NamedTuple

log = logging.getLogger(__name__)

MACHINE_TIME = partial(datetime.now, UTC)
ZERO = timedelta()
TOLERATED = timedelta(seconds=3)
"""A smaller difference is neither corrected nor reported: nothing that Carrel decides depends on it."""
RESOLUTION = timedelta(seconds=1)
SLOWEST = timedelta(seconds=10)
"""An answer that took longer says too little."""
VOICES = 5
"""The last answer of each of the last so many voices counts."""
COUNTS_FOR_S = 300.0
"""How long an answer counts. So late at most the time is right after the API server's own clock was set; and so long
one API server whose clock is wrong decides nothing, although all calls go to it."""


class _HeardTime(NamedTuple):
    ahead: timedelta
    at: float
    """By the steady clock."""


class ServerClock:
    def __init__(
        self, machine: Callable[[], datetime] = MACHINE_TIME, monotonic: Callable[[], float] | None = None
    ) -> None:
        """`monotonic`: seconds that never jump. None: nor does the machine's clock."""
        self.machine = machine
        """The clock of this machine."""
        self._monotonic = monotonic or (lambda: self.machine().timestamp())
        self._answers: dict[str, _HeardTime] = {}  # by voice, the latest at the end
        self._correction = ZERO
        self._steadily = ZERO  # how far the machine's clock was ahead of the steady one

    def now(self) -> datetime:
        return self.machine() + self._correction

    @property
    def skew(self) -> timedelta:
        """How far the clock of this machine is ahead of the API server's; zero if by no more than is tolerated."""
        return -self._correction

    def observe(self, date: str, sent: datetime, voice: str = "") -> None:
        """`date`: the header of an answer that has just arrived, to a call that was sent then; `voice`: who says so."""
        received = self.machine()
        at = _read_date(date)
        if at is None or not ZERO <= received - sent <= SLOWEST:
            return
        steady = self._monotonic()
        self._forget_if_jumped(received, steady)
        self._answers.pop(voice, None)
        self._answers[voice] = _HeardTime(server_ahead(at, sent, received), steady)
        while len(self._answers) > VOICES or next(iter(self._answers.values())).at < steady - COUNTS_FOR_S:
            del self._answers[next(iter(self._answers))]
        said = [answer.ahead for answer in self._answers.values()]
        before, after = self._correction, min(median_low(said), median_high(said), key=abs)
        self._correction = after if abs(after) > TOLERATED else ZERO
        if self._correction and not before:
            log.warning("clock_skew seconds=%.0f: the API server's time counts", self.skew.total_seconds())
        elif before and not self._correction:
            log.info("clock_skew_over")

    def _forget_if_jumped(self, now: datetime, steady: float) -> None:
        """What was seen before the machine's clock was set says nothing any more."""
        before, self._steadily = self._steadily, timedelta(seconds=now.timestamp() - steady)
        if abs(self._steadily - before) > TOLERATED:
            self._answers.clear()


@lru_cache(maxsize=4)
def _read_date(text: str) -> datetime | None:
    """None: it is no date, or one without a zone. Hundreds of answers come in one second and say the same."""
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def server_ahead(date: datetime, sent: datetime, received: datetime) -> timedelta:
    """How far the server's clock is ahead of the machine's, at least in amount; zero if they may be equal."""
    least, most = date - received, date + RESOLUTION - sent
    return least if least > ZERO else min(most, ZERO)
