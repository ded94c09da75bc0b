"""Runs the booking service until it is told to stop: then requests under way are finished, and the process ends."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import aiohttp

from carrel.bookings.app import booking_app
from carrel.bookings.inventory import ClusterInventory, FileInventory
from carrel.bookings.mirror import BookingMirror
from carrel.bookings.notifications.notifier import Notifier
from carrel.bookings.notifications.overbooked_watch import OverbookedWatch
from carrel.bookings.notifications.revocation_watch import RevocationWatch
from carrel.bookings.notifications.settings import DeliveryContext, channels_of, keep_sending
from carrel.bookings.pages import ClusterView
from carrel.bookings.queries import BookingContext
from carrel.bookings.records import StoreUnavailable
from carrel.bookings.service import ServiceContext
from carrel.bookings.settings import BookingSettings
from carrel.bookings.sign_in import Authenticator
from carrel.bookings.sign_in.settings import SignInContext, authenticator_from
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import SqlOutbox
from carrel.bookings.store.people import SqlPeople
from carrel.cluster_file import read_cluster
from carrel.command_errors import UNAVAILABLE, USAGE, command_failed
from carrel.http.serving import Address, serving
from carrel.kubernetes.api_calls import ApiCalls
from carrel.kubernetes.client import Client
from carrel.leases.cluster_options import utc_now
from carrel.leases.cluster_state import ClusterState
from carrel.leases.coverage_reader import CoverageReader
from carrel.leases.shown_cards import shown_card, shown_cards
from carrel.ledger.gpus import Node
from carrel.parsing import Malformed
from carrel.process import connect, only_installation, run_until_signal, stop_if_unsupported

log = logging.getLogger(__name__)

FINISH_S = 20
"""How long requests under way may take when the process ends: a live map would never end by itself."""
HOUSEKEEPING_S = 5.0
FORGET_S = 600.0
"""How often expired sessions and old notifications are deleted."""


@dataclass(frozen=True, slots=True)
class _Resources:
    """The settings, the database, and the GPUs of a file; None: the service has a cluster."""

    settings: BookingSettings
    database: Database
    nodes: Sequence[Node] | None


def run(settings: BookingSettings) -> None:
    problems = settings.wrong()
    try:
        database = Database(settings.database)
        nodes = read_cluster(settings.inventory.read_text(), settings.inventory.name) if settings.inventory else None
    except Malformed as malformed:
        problems.append(str(malformed))
    if problems:
        raise command_failed("The settings cannot be used", "\n  ".join(problems), "carrel booking --help", USAGE)
    resources = _Resources(settings, database, nodes)
    client = connect(settings, settings.field_validation) if nodes is None else None
    try:
        run_until_signal("booking", settings, lambda stop: _serve(resources, client, stop))
    except StoreUnavailable as error:
        raise command_failed("The database cannot be used", str(error), "carrel booking --help", UNAVAILABLE) from None


async def _serve(resources: _Resources, client: Client | None, stop: asyncio.Event) -> None:
    settings, database = resources.settings, resources.database
    async with contextlib.AsyncExitStack() as closing:
        await closing.enter_async_context(contextlib.aclosing(database))
        if client is not None:
            await closing.enter_async_context(contextlib.aclosing(client))
            await closing.enter_async_context(stop_if_unsupported(client, stop))
            only = only_installation(client, settings.carrel_namespace, stop)
            client = await closing.enter_async_context(only)
        http = await closing.enter_async_context(aiohttp.ClientSession())
        await database.migrate()
        # One clock for everything: replicas must agree on what has ended, also if the machine of one is a day ahead.
        now = client.clock.now if client is not None else utc_now
        carrel = ClusterState(client, replace(settings.options(), now=now)) if client is not None else None
        people = SqlPeople(database)
        authenticator = authenticator_from(settings, SignInContext(people, http, client, now))
        service = replace(_service(resources, carrel, authenticator), migration=await database.level())
        delivery = DeliveryContext(http, service.context.zone, now, authenticator.options.link)
        notifier = Notifier(service.outbox, service.context.store, channels_of(settings, delivery), now)
        address = Address(settings.bind_address, settings.port)
        async with serving(booking_app(service), address, finish_s=FINISH_S) as url:
            where = database.url.render_as_string(hide_password=True)
            log.info("listening url=%s database=%s zone=%s", url, where, settings.zone)
            async with _tasks(_forget(people, notifier, now), keep_sending(notifier), *_watching(carrel, service)):
                await stop.wait()
                service.stopping.set()
    log.info("stopped")


def _service(resources: _Resources, carrel: ClusterState | None, authenticator: Authenticator) -> ServiceContext:
    settings = resources.settings
    store = SqlBookings(resources.database)
    context = BookingContext(
        store=store,
        inventory=cluster_inventory_of(carrel) if carrel is not None else FileInventory(resources.nodes or ()),
        rules=replace(settings.rules(), settling_s=settings.settling_seconds),
        zone=ZoneInfo(settings.zone),
        clock=authenticator.now,
        new_id=lambda: uuid4().hex,
        is_used=(lambda booking: bool(carrel.covered_pods.covered_by(booking))) if carrel else (lambda booking: False),
    )
    mirror = BookingMirror(carrel.cluster, context) if carrel is not None else None
    if mirror is not None:
        store.on_change = mirror.on_change
    return ServiceContext(
        context,
        authenticator,
        SqlOutbox(resources.database),
        settings.maia_token,
        settings.zone,
        cluster_view_of(carrel) if carrel is not None else None,
        settings.limits(),
        mirror=mirror,
        api_calls=carrel.cluster.calls if carrel is not None else ApiCalls(),
        hub_people=settings.hub_people(),
    )


def cluster_inventory_of(carrel: ClusterState) -> ClusterInventory:
    def keeps_its_gpus(uid: str) -> bool:
        pod = carrel.claim_users.pod_of(uid)
        return pod is not None and carrel.covered_pods.tier(pod) is None

    def covered_until(uid: str) -> datetime | None:
        covered = carrel.covered_pods.of(uid)
        return covered.entitlement.ends if covered is not None else None

    return ClusterInventory(
        carrel.ledger, lambda: carrel.informers.is_synced, keeps_its_gpus, covered_until=covered_until
    )


def cluster_view_of(carrel: ClusterState) -> ClusterView:
    pods = carrel.pods.store
    return ClusterView(
        ledger=carrel.ledger,
        cards=lambda node: shown_cards(carrel.cluster_ledger, node),
        card=lambda uuid: shown_card(carrel.cluster_ledger, uuid),
        pod=carrel.claim_users.pod_of,
        shares_of=carrel.pod_facts.shares_of,
        pods=pods.snapshot,
        why_waits=lambda pod: str(carrel.waiting_reason.why(pod) or ""),
        is_synced=lambda: carrel.informers.is_synced,
        coverage=CoverageReader(carrel),
        isolation=carrel.isolation,
    )


def _watching(carrel: ClusterState | None, service: ServiceContext) -> Sequence[Coroutine[Any, Any, None]]:
    """The tasks that need a cluster."""
    if carrel is None:
        return ()
    revocations = RevocationWatch(carrel, service.outbox)
    watches = carrel.nodes, carrel.node_statuses
    overbooked = OverbookedWatch(service.context, service.outbox, lambda: not any(each.failures for each in watches))
    mirror = [service.mirror.run()] if service.mirror is not None else []
    observe = _observe_cluster(carrel, service.cluster_view)
    return (carrel.informers.run(), observe, revocations.run(), overbooked.run(), *mirror)


@contextlib.asynccontextmanager
async def _tasks(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Tasks that run beside the requests."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(each) for each in coroutines]
        yield
        for task in running:
            task.cancel()


async def _observe_cluster(carrel: ClusterState, cluster_view: ClusterView | None) -> None:
    while True:
        now = carrel.options.now()
        carrel.isolation.attempt("silent_agents", partial(carrel.cluster_ledger.mark_silent_agents, now))
        if cluster_view is not None:
            carrel.isolation.attempt("usage", partial(cluster_view.count_usage, now))
        await asyncio.sleep(HOUSEKEEPING_S)


async def _forget(people: SqlPeople, notifier: Notifier, now: Callable[[], datetime]) -> None:
    while True:
        try:
            await people.forget_expired(now())
            await notifier.forget()
        except StoreUnavailable as error:
            log.warning("store_unavailable: %s", error)
        await asyncio.sleep(FORGET_S)
