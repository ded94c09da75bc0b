"""Runs the extender until a signal comes: then it is no longer ready, finishes its binds, and ends."""

import asyncio
import gc
import logging

from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.leases.cluster_state import ClusterState
from carrel.scheduling.app import extender_app
from carrel.scheduling.assembly import handlers_on, scheduler_on
from carrel.scheduling.scheduler import Scheduler
from carrel.scheduling.settings import ExtenderSettings
from carrel.settings import serve_door

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 5.0
"""How often silent agents and gangs whose time is up are looked for."""


def run(settings: ExtenderSettings) -> None:
    serve_door("extender", settings, lambda client, stop: _serve(client, settings, stop))


async def _serve(client: Client, settings: ExtenderSettings, stop: asyncio.Event) -> None:
    carrel = ClusterState(client, settings.options())
    scheduler = scheduler_on(carrel, settings.scheduler_options())
    handlers = handlers_on(carrel, scheduler)
    address = Address(settings.bind_address, settings.port)
    async with serving(extender_app(handlers), address) as url:
        log.info("listening url=%s namespace=%s", url, settings.carrel_namespace)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(carrel.informers.run()), tasks.create_task(_keep_house(carrel, scheduler))]
            await stop.wait()
            await handlers.wait_left()
            for task in running:
                task.cancel()
    log.info("left")


async def _keep_house(carrel: ClusterState, scheduler: Scheduler) -> None:
    await carrel.informers.wait_synced()
    # The first copy of the cluster stays: the garbage collector need not walk through it while somebody waits.
    gc.collect()
    gc.freeze()
    log.info("ready nodes=%d leases=%d", len(carrel.ledger.nodes), len(carrel.leases.store))
    while True:
        carrel.cluster_ledger.look_for_silent_agents(carrel.options.now())
        scheduler.expire_gangs()
        await asyncio.sleep(HOUSEKEEPING_S)
