"""A booking service that counts what pods hold and use, while the clock of the test goes on."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from carrel.bookings.usage.recorder import UsageRecorder
from tests.kit.booking import Opened

LOOK = timedelta(seconds=10)
Passes = Callable[[timedelta], Awaitable[None]]


@asynccontextmanager
async def usage_counted(opened: Opened) -> AsyncIterator[Passes]:
    """Counts while the block runs; at its end all of it is written. The block says how time passes."""
    view, clock = opened.service.cluster_view, opened.clock
    assert view is not None
    recorder = UsageRecorder(opened.usage, view.looks, opened.service.lab_zone, clock, clock.seconds)
    await recorder.round()
    recorder.observe()

    async def passes(length: timedelta) -> None:
        for _ in range(length // LOOK):
            clock.now += LOOK
            recorder.observe()

    yield passes
    await recorder.round(is_last=True)
