"""The time by the API server: this machine's clock, corrected by the `Date` of the server's answers.

Bookings end, pods are warned and Leases are written by the API server's time. A process whose own clock is wrong would
end pods too early or too late. A `Date` says only the second, and an answer takes time; so an answer tells between
which two bounds the difference of the clocks lies. Within the bounds, and a little beyond, the own clock is believed.

The median counts, with one voice for each watch and one for all other calls together: of several API servers, one
whose clock is wrong decides nothing, even if most calls go to it. Every watch opens a connection of its own, to
whichever API server the cluster chooses. If as many say one thing as another, the one nearer to the own clock is
believed.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from statistics import median_high, median_low

log = logging.getLogger(__name__)

ZERO = timedelta()
TOLERATED = timedelta(seconds=3)
"""A smaller difference is neither corrected nor reported: nothing that Carrel decides depends on it."""
RESOLUTION = timedelta(seconds=1)
SLOWEST = timedelta(seconds=10)
"""An answer that took longer says too little."""
VOICES = 5
"""The last answer of each of the last so many voices counts."""


def machine_time() -> datetime:
    return datetime.now(UTC)


class ServerClock:
    def __init__(
        self, machine: Callable[[], datetime] = machine_time, monotonic: Callable[[], float] | None = None
    ) -> None:
        """`monotonic`: seconds that never jump. None: nor does the machine's clock."""
        self.machine = machine
        """The clock of this machine."""
        self._monotonic = monotonic or (lambda: self.machine().timestamp())
        self._ahead: dict[str, timedelta] = {}  # by voice, the latest answer at the end
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
        self._forget_if_jumped(received)
        said_before = self._ahead.pop(voice, None)
        self._ahead[voice] = ahead = server_ahead(at, sent, received)
        if said_before == ahead:
            return
        if len(self._ahead) > VOICES:
            del self._ahead[next(iter(self._ahead))]
        said = self._ahead.values()
        before, after = self._correction, min(median_low(said), median_high(said), key=abs)
        self._correction = after if abs(after) > TOLERATED else ZERO
        if self._correction and not before:
            log.warning("clock_skew seconds=%.0f: the API server's time counts", self.skew.total_seconds())
        elif before and not self._correction:
            log.info("clock_skew_over")

    def _forget_if_jumped(self, now: datetime) -> None:
        """What was seen before the machine's clock was set says nothing any more."""
        before, self._steadily = self._steadily, timedelta(seconds=now.timestamp() - self._monotonic())
        if abs(self._steadily - before) > TOLERATED:
            self._ahead.clear()


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
