"""Runs the extender until a signal comes: then it is no longer ready, finishes its binds, and ends."""

import asyncio
import contextlib
import gc
import logging
import signal

import uvloop

from carrel.adapters.extender import extender_app
from carrel.adapters.kube import Client
from carrel.adapters.web import Address, serving
from carrel.doors.extender.settings import ExtenderSettings
from carrel.settings import UNAVAILABLE, complain, connected, log_to_stderr
from carrel.wiring import Carrel, desk_of

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 5.0
"""How often silent agents and gangs whose time is up are looked for."""


def run(settings: ExtenderSettings) -> None:
    log_to_stderr(settings.log_level)
    client = connected(settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(client, settings))
    except OSError as error:
        where = f"{settings.bind_address}:{settings.port}"
        raise complain(f"Cannot listen on {where}", str(error), "carrel extender --port 0", UNAVAILABLE) from None


async def _serve(client: Client, settings: ExtenderSettings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    carrel = Carrel(client, settings.house())
    desk = desk_of(carrel)
    address = Address(settings.bind_address, settings.port)
    async with contextlib.aclosing(client), serving(extender_app(desk), address) as url:
        log.info("listening url=%s namespace=%s", url, settings.carrel_namespace)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(carrel.mirror.run()), tasks.create_task(_keep_house(carrel))]
            await stop.wait()
            await desk.wait_left()
            for task in running:
                task.cancel()
    log.info("left")


async def _keep_house(carrel: Carrel) -> None:
    await carrel.mirror.wait_synced()
    # The first copy of the cluster stays: the garbage collector need not walk through it while somebody waits.
    gc.collect()
    gc.freeze()
    log.info("ready nodes=%d leases=%d", len(carrel.books.ledger.nodes), len(carrel.leases.store))
    while True:
        carrel.books.look_for_silent_agents(carrel.house.now())
        carrel.musters.expire()
        await asyncio.sleep(HOUSEKEEPING_S)
