"""Runs the extender until a signal. Then it is no longer ready, finishes its binds, and ends."""

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from carrel.cluster.configuration_record import Reads
from carrel.cluster.placement_rules import LEASE, PlacementRules, report_rules
from carrel.cluster.state import ClusterState
from carrel.command_errors import USAGE, command_failed
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.schema import PlacementStyle
from carrel.http.callers import CallerRules, known_callers_only
from carrel.http.health import health_app
from carrel.http.limits import ServerLimits
from carrel.http.serving import Address, TlsContext, serving
from carrel.http.tls_files import tls_of_folder
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError
from carrel.parsing import Malformed
from carrel.process import run_with_cluster
from carrel.scheduling.assembly import ERROR_FIELD, SchedulerOptions, extender_app, handlers_on, scheduler_on
from carrel.scheduling.scheduler import Scheduler
from carrel.scheduling.settings import ExtenderSettings
from carrel.settings import cluster_options

log = logging.getLogger(__name__)

READS = Reads(("lab", "memory", "dialects", "pods", "tiers", "resourceClaims", "scheduling"))

HOUSEKEEPING_S = 5.0
"""How often silent agents and expired gangs are looked for."""


LIMITS = ServerLimits(connections=2048)
"""A gang of a thousand pods holds as many connections: each bind waits for the others."""


def run(settings: ExtenderSettings) -> None:
    callers = settings.caller_rules("extender", settings.bind_address, has_tls=settings.tls_folder is not None)
    try:
        health = settings.health()
        tls = tls_of_folder(settings.tls_folder, settings.client_ca) if settings.tls_folder else None
    except (Malformed, OSError) as error:
        why = str(error) if isinstance(error, Malformed) else f"--tls-folder {settings.tls_folder}: {error}"
        raise command_failed("The settings cannot be used", why, "carrel extender --help", USAGE) from None
    served = _Served(settings, callers, tls, health)
    run_with_cluster("extender", settings, partial(_serve, served), READS)


@dataclass(frozen=True, slots=True)
class _Served:
    settings: ExtenderSettings
    callers: CallerRules
    tls: TlsContext | None
    health: Address | None


async def _serve(served: _Served, client: Client, current: CurrentConfiguration, stop: asyncio.Event) -> None:
    settings, configuration = served.settings, current.value
    known = cluster_options(current, settings.carrel_namespace, seal=settings.seal())
    state = ClusterState(client, replace(known, now=client.clock.now))
    is_spread = configuration.scheduling.placement is PlacementStyle.SPREAD
    options = SchedulerOptions(spread=is_spread, schedulers=frozenset(configuration.pods.schedulers))
    scheduler = scheduler_on(state, options)
    handlers = handlers_on(state, scheduler, options)
    address = Address(settings.bind_address, settings.port)
    for_probes = health_app(handlers.why_not_ready, handlers.metrics_text)
    also = serving(for_probes, served.health) if served.health else nullcontext("")
    app = known_callers_only(extender_app(handlers), served.callers, ERROR_FIELD)
    async with serving(app, address, served.tls, limits=LIMITS) as url, also as health_url:
        log.info("listening url=%s namespace=%s", url, settings.carrel_namespace)
        if health_url:
            log.info("health url=%s", health_url)
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(state.informers.run()),
                tasks.create_task(_housekeeping(state, scheduler)),
                tasks.create_task(_report_rules(state, options)),
            ]
            await stop.wait()
            await handlers.wait_binds_finished()
            for task in running:
                task.cancel()
    log.info("stopped")


async def wait_loaded(state: ClusterState, scheduler: Scheduler) -> None:
    """Until all that is watched is in the ledger, and what pods usually ask for is known."""
    await state.informers.wait_first_copies()
    state.isolation.attempt("learn", partial(scheduler.learn, state.pods.store))


async def _report_rules(state: ClusterState, options: SchedulerOptions) -> None:
    """When this process starts, when the configuration has changed them, and whenever nobody reports any: replicas that
    differ do not take turns."""
    await state.informers.wait_first_copies()
    namespace, reported = state.options.namespace, None
    while True:
        rules = PlacementRules.of(state.options, options.schedulers, spreads=options.spread)
        if rules != reported or state.leases.store.get(LEASE, namespace) is None:
            try:
                await report_rules(state.cluster, namespace, rules)
                reported = rules
            except ClusterError as error:
                log.warning("rules_not_reported: %s", error)
        await asyncio.sleep(HOUSEKEEPING_S)


async def _housekeeping(state: ClusterState, scheduler: Scheduler) -> None:
    await wait_loaded(state, scheduler)
    log.info("ready nodes=%d leases=%d", len(state.ledger.nodes), len(state.leases.store))
    while True:
        attempt = state.isolation.attempt
        attempt("silent_agents", partial(state.cluster_ledger.mark_silent_agents, state.options.now()))
        attempt("expired_promises", scheduler.expire_promises)
        attempt("gang_sizes", state.gang_sizes.refresh)
        await asyncio.sleep(HOUSEKEEPING_S)
