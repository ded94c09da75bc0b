"""The time by the API server: this machine's clock, corrected by the `Date` of the server's answers.

Bookings end, pods are warned and Leases are written by the API server's time. A process whose own clock is wrong would
end pods too early or too late. A `Date` says only the second, and an answer takes time; so an answer tells between
which two bounds the difference of the clocks lies. Within the bounds, and a little beyond, the own clock is believed.
The median of the last answers counts: of several API servers, one whose clock is wrong decides nothing.
"""

import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from statistics import median_low

log = logging.getLogger(__name__)

ZERO = timedelta()
TOLERATED = timedelta(seconds=3)
"""A smaller difference is neither corrected nor reported: nothing that Carrel decides depends on it."""
RESOLUTION = timedelta(seconds=1)
SLOWEST = timedelta(seconds=10)
"""An answer that took longer says too little."""
ANSWERS = 5


def machine_time() -> datetime:
    return datetime.now(UTC)


class ServerClock:
    def __init__(self, machine: Callable[[], datetime] = machine_time) -> None:
        self.machine = machine
        """The clock of this machine."""
        self._ahead: deque[timedelta] = deque(maxlen=ANSWERS)  # of the last answers
        self._correction = ZERO

    def now(self) -> datetime:
        return self.machine() + self._correction

    @property
    def skew(self) -> timedelta:
        """How far the clock of this machine is ahead of the API server's; zero if by no more than is tolerated."""
        return -self._correction

    def observe(self, date: str, sent: datetime) -> None:
        """`date`: the header of an answer that has just arrived, to a call that was sent then."""
        received = self.machine()
        try:
            at = parsedate_to_datetime(date)
        except ValueError:
            return
        if at.tzinfo is None or not ZERO <= received - sent <= SLOWEST:
            return
        self._ahead.append(server_ahead(at, sent, received))
        before, after = self._correction, median_low(self._ahead)
        self._correction = after if abs(after) > TOLERATED else ZERO
        if self._correction and not before:
            log.warning("clock_skew seconds=%.0f: the API server's time counts", self.skew.total_seconds())
        elif before and not self._correction:
            log.info("clock_skew_over")


def server_ahead(date: datetime, sent: datetime, received: datetime) -> timedelta:
    """How far the server's clock is ahead of the machine's, at least in amount; zero if they may be equal."""
    least, most = date - received, date + RESOLUTION - sent
    return least if least > ZERO else min(most, ZERO)
