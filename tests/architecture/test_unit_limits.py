"""The limits of unit tests hold: one that computes too long, or sleeps, fails."""

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.kit import unit_limits


def run(test: Callable[[], object]) -> None:
    """As pytest runs a test."""
    limited = unit_limits.pytest_runtest_call()
    next(limited)
    test()
    with pytest.raises(StopIteration):
        limited.send(None)


def compute() -> None:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass


def test_a_unit_test_that_computes_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_limits, "CPU_S", 0.05)
    with pytest.raises(AssertionError, match=r"it took 0\.\d s of CPU time; a unit test has 0\.05 s"):
        run(compute)


@pytest.mark.parametrize(
    "sleep",
    [
        pytest.param(lambda: time.sleep(0.6), id="in a thread"),
        pytest.param(lambda: asyncio.run(asyncio.sleep(0.6)), id="in an event loop"),
    ],
)
def test_a_unit_test_that_sleeps_fails(sleep: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match=r"it slept for 0\.\d s: pass the time in, or wait for a condition"):
        run(sleep)


def test_a_unit_test_may_wait_for_what_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_limits, "CPU_S", 60.0)

    async def wait() -> None:
        happened = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, happened.set)
        async with asyncio.timeout(60):
            await happened.wait()

    run(lambda: asyncio.run(wait()))
