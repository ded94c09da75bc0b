"""PURE. How busy a GPU was in each of the last ten minutes, as far as its reports say.

A report has sums. What was between two of them is spread over the time between them: a report that was missed costs
resolution, and no time.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from carrel.ledger.gpu_usage import GpuUsage

MINUTES = 10
MINUTE_S = 60.0
KNOWN_S = 10.0
"""Less of a minute than a sample stands for says nothing about it."""
ROUNDING = timedelta(seconds=1)
"""Reports have whole seconds."""


class RecentMinutes:
    __slots__ = ("_last", "_minutes")

    def __init__(self, usage: GpuUsage) -> None:
        """The first report says when the GPU last computed: since then it did not."""
        self._last = usage
        self._minutes: dict[int, tuple[float, float]] = {}  # minute → seconds that are known, seconds of work
        if usage.sampled_since is not None:
            quiet_since = max(usage.sampled_since, usage.last_active or usage.sampled_since)
            self._add(quiet_since, usage.until, known=1.0, busy=0.0)

    def add(self, usage: GpuUsage) -> None:
        """Take the next report. If its sums do not continue the last ones, nothing is known of the time between."""
        before, self._last = self._last, usage
        length, sampled, busy = usage.until - before.until, usage.sampled - before.sampled, usage.busy - before.busy
        continues = usage.since == before.since and length > timedelta() and timedelta() <= busy <= sampled + ROUNDING
        if continues and sampled > timedelta():
            known = min(sampled / length, 1.0)
            self._add(before.until, usage.until, known, known * min(busy / sampled, 1.0))

    def _add(self, since: datetime, until: datetime, known: float, busy: float) -> None:
        begin, end = since.timestamp(), until.timestamp()
        last = int(end // MINUTE_S)
        for minute in range(max(int(begin // MINUTE_S), last - MINUTES), last + 1):
            seconds = min(end, MINUTE_S * (minute + 1)) - max(begin, MINUTE_S * minute)
            before = self._minutes.get(minute, (0.0, 0.0))
            self._minutes[minute] = before[0] + known * seconds, before[1] + busy * seconds
        for minute in [each for each in self._minutes if each < last - MINUTES]:
            del self._minutes[minute]

    def parts(self, now: datetime) -> Sequence[float | None]:
        """Return how busy it was, from 0 to 1, in each of the last minutes, the present one last; None: unknown."""
        last = int(now.timestamp() // MINUTE_S)
        return [self._part(minute) for minute in range(last - MINUTES + 1, last + 1)]

    def _part(self, minute: int) -> float | None:
        known, busy = self._minutes.get(minute, (0.0, 0.0))
        return busy / known if known >= KNOWN_S else None
