"""Limits how often a caller may send requests: a token bucket per caller, in bounded memory.

What a person changes is stored for ever, and the person is mailed about it. So changes have a limit of their own: one
that people do not notice, and that keeps a program in a loop from filling the database. And what takes long to answer
costs more than the rest: a timeline of 1,000 bookings takes 50 ms, and 20 of them a second would leave nothing for
other people.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    burst: float


PER_PERSON = Rate(per_second=20, burst=200)
LONG_ANSWER = 4.0
"""What a request with a long answer costs: five of them a second, a quarter of one core."""
CHANGES_PER_PERSON = Rate(per_second=0.1, burst=100)


class RateLimiter:
    """One bucket per caller. The bucket that was not used for the longest time is dropped first; it would be full."""

    def __init__(self, rate: Rate, clock: Callable[[], float], most: int = 10_000) -> None:
        self._rate = rate
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str, cost: float = 1.0) -> float:
        """Takes so many tokens. Returns 0, or the seconds to wait if the bucket does not have them."""
        now = self._clock()
        level, then = self._buckets.pop(caller, (self._rate.burst, now))
        level = min(self._rate.burst, level + (now - then) * self._rate.per_second)
        is_allowed = level >= cost
        self._buckets[caller] = (level - cost * is_allowed, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (cost - level) / self._rate.per_second

    def give_back(self, caller: str, cost: float = 1.0) -> None:
        """What was taken for something that should cost nothing."""
        if caller in self._buckets:
            level, then = self._buckets[caller]
            self._buckets[caller] = (min(self._rate.burst, level + cost), then)

    def __len__(self) -> int:
        return len(self._buckets)


class PersonLimiter:
    """For people who are signed in."""

    def __init__(
        self, clock: Callable[[], float], requests: Rate = PER_PERSON, changes: Rate = CHANGES_PER_PERSON
    ) -> None:
        self._requests = RateLimiter(requests, clock)
        self._changes = RateLimiter(changes, clock)

    def wait_s(self, person: str, *, is_change: bool = False, is_long: bool = False) -> float:
        """Return 0, or the seconds to wait. `is_long`: the answer takes long."""
        wait_s = self._requests.wait_s(person, LONG_ANSWER if is_long else 1.0)
        return wait_s or (self._changes.wait_s(person) if is_change else 0.0)
