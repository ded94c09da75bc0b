"""Waiting in tests: for a condition, never for a fixed time. The limit is generous: the machine may be busy."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 300
FIRST_S, LONGEST_S = 0.001, 0.1


async def eventually(condition: Callable[[], T], what: str = "the condition") -> T:
    """Returns the first true result of `condition`."""
    begin = time.monotonic()
    while True:
        answer = condition()
        if answer:
            return answer
        waited = time.monotonic() - begin
        assert waited < LIMIT_S, f"{what} did not come true within {LIMIT_S} s"
        # The longer it takes, the less often it is looked at: others need the CPU.
        await asyncio.sleep(min(max(waited / 10, FIRST_S), LONGEST_S))
