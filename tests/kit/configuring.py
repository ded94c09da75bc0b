"""A lab with a configuration, and a controller that decides about it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from carrel.cluster.configuration_record import APPLIED, CHANGES, Record, find, record_of
from carrel.lifecycle.configuring import Configuring
from carrel.lifecycle.metrics import ControllerMetrics
from tests.kit.configuration import configure
from tests.kit.lab import OURS, Lab, Replica


async def change(lab: Lab, text: str, by: str = "ada", reason: str = "why not") -> None:
    """Write what people change."""
    await configure(lab.client, text, CHANGES, changed_by=by, reason=reason)


async def recorded(lab: Lab) -> Record:
    found = await find(lab.client, APPLIED, OURS)
    assert found is not None
    return record_of(found)


def configuring_on(replica: Replica) -> Configuring:
    return Configuring(replica, ControllerMetrics(lambda: True))


@contextlib.asynccontextmanager
async def deciding(lab: Lab) -> AsyncIterator[asyncio.Future[None]]:
    """While the block runs, a controller leads; until what it is given is cancelled."""
    async with lab.replica() as replica:
        running = asyncio.ensure_future(configuring_on(replica).run())
        try:
            yield running
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError, ExceptionGroup):
                await running
