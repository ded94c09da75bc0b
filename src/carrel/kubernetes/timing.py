"""Clock, sleep and random numbers of everything that waits and retries. They are passed in, so that tests fake them."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

# Unlike `time.monotonic` on Linux, it counts while the machine is suspended: a leader must notice that.
_SECONDS_SINCE_BOOT: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


@dataclass(frozen=True, slots=True)
class Timing:
    now: Callable[[], float] = _SECONDS_SINCE_BOOT
    """Seconds on a clock that never goes back; only differences mean something."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random
    """From 0 up to 1. Spreads retries, so that callers that failed together do not try again together."""

    def spread(self, seconds: float) -> float:
        """A random time between half of it and all of it."""
        return seconds * (0.5 + self.chance() / 2)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait after the n-th failure in a row: doubled each time, up to a limit."""

    first_s: float = 0.5
    limit_s: float = 30.0

    def after(self, failures: int) -> float:
        # The exponent is bounded so that a thousand failures do not overflow.
        return min(self.limit_s, self.first_s * 2.0 ** min(failures - 1, 60))


REAL_TIME = Timing()
