"""Limits how often a caller may send requests: a token bucket per caller, in bounded memory."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    burst: float


class RateLimiter:
    """One bucket per caller. The bucket that was not used for the longest time is dropped first; it would be full."""

    def __init__(self, rate: Rate, clock: Callable[[], float], most: int = 10_000) -> None:
        self._rate = rate
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> float:
        """Takes one token. Returns 0, or the seconds to wait if the bucket is empty."""
        now = self._clock()
        level, then = self._buckets.pop(caller, (self._rate.burst, now))
        level = min(self._rate.burst, level + (now - then) * self._rate.per_second)
        is_allowed = level >= 1
        self._buckets[caller] = (level - is_allowed, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1 - level) / self._rate.per_second

    def __len__(self) -> int:
        return len(self._buckets)
