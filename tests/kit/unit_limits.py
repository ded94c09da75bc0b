"""Limits of unit tests: two seconds of CPU time, and no sleep. A test that exceeds one fails, in every run.

What counts does not depend on how busy the machine is: the CPU time of the call itself, without fixtures, and waits
that were asked for and elapsed, not how long they took.
"""

import os
import selectors
import time
from collections.abc import Generator
from typing import Any

import pytest

CPU_S = 2.0
"""Tests stay well below it, because CPU time grows to the double where cores are shared."""
SLEEP_S = 0.25
"""A time limit that a test lets run out may be so long: one that is much shorter would also end good calls on a busy
machine. Shorter waits let other tasks have their turn, or ask again for what a process does."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    slept: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        _note_sleeps(patch, slept)
        began = os.times()
        result = yield
        ended = os.times()
    used = sum(ended[:4]) - sum(began[:4])
    assert used <= CPU_S, f"it took {used:.1f} s of CPU time; a unit test has {CPU_S:g} s"
    assert not slept, f"it slept for {max(slept):.1f} s: pass the time in, or wait for a condition"
    return result


def _note_sleeps(patch: pytest.MonkeyPatch, slept: list[float]) -> None:
    sleep, select = time.sleep, selectors.DefaultSelector.select

    def noting_sleep(seconds: float) -> None:
        if seconds > SLEEP_S:
            slept.append(seconds)
        sleep(seconds)

    def noting_select(self: selectors.DefaultSelector, timeout: float | None = None) -> Any:
        """An event loop waits here for what comes first: an event, or the next time that a task has asked for."""
        events = select(self, timeout)
        if timeout is not None and timeout > SLEEP_S and not events:
            slept.append(timeout)
        return events

    patch.setattr(time, "sleep", noting_sleep)
    patch.setattr(selectors.DefaultSelector, "select", noting_select)
