"""Waiting in tests: for a condition, never for a fixed time. The limit is generous: the machine may be busy."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 60.0


async def eventually(condition: Callable[[], T], what: str = "the condition") -> T:
    """Returns the first true result of `condition`."""
    give_up = time.monotonic() + LIMIT_S
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < give_up, f"{what} did not come true within {LIMIT_S:.0f} s"
        await asyncio.sleep(0.005)
