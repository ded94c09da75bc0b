"""Runs the booking service until it is told to stop: then requests under way are finished, and the process ends."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import aiohttp

from carrel.bookings.app import booking_app
from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.health import BookingMetrics
from carrel.bookings.inventory import ClusterInventory, GpuInventory
from carrel.bookings.lab_configuration import LabConfiguration
from carrel.bookings.mirror import BookingMirror
from carrel.bookings.notifications.channels import POSTS, Channel, Channels, LabWebhook, MatrixChannel, OwnChannel
from carrel.bookings.notifications.choices import LAB, MAIL, MATRIX
from carrel.bookings.notifications.destinations import checked_session
from carrel.bookings.notifications.mail import MailChannel, mail_server
from carrel.bookings.notifications.notifier import Notifier
from carrel.bookings.notifications.watches import OVERBOOKED_S, OverbookedWatch, RevocationWatch
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import StoreUnavailable
from carrel.bookings.service import ServiceParts
from carrel.bookings.settings import BookingSettings
from carrel.bookings.sign_in.assembly import authenticator_from, request_limits
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import SqlOutbox
from carrel.bookings.store.people import SqlPeople
from carrel.bookings.store.usage import SqlUsage
from carrel.bookings.usage.recorder import UsageRecorder
from carrel.cluster.configuration_record import Reads
from carrel.cluster.options import utc_now
from carrel.cluster.state import ClusterState
from carrel.cluster_file import read_cluster
from carrel.command_errors import UNAVAILABLE, USAGE, command_failed
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.schema import Configuration
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.ledger.gpus import Node
from carrel.parsing import Malformed
from carrel.process import (
    configuration_in,
    connect,
    following_configuration,
    only_installation,
    run_until_signal,
    stop_if_unsupported,
)
from carrel.settings import cluster_options, moved_settings

log = logging.getLogger(__name__)

READS = Reads(
    ("lab", "memory", "dialects", "pods", "hubs", "tiers", "resourceClaims", "bookings", "notifications"),
    when_it_starts=("hubs", "pods"),
)
"""Of the configuration. Who people are is settled when the service starts, also for the tokens that it remembers."""
FINISH_S = 20
"""How long requests under way may take when the process ends: a live map would never end by itself."""
HOUSEKEEPING_S = 5.0
FORGET_S = 600.0
"""How often expired sessions and old notifications are deleted."""


def run(settings: BookingSettings) -> None:
    known = configuration_in(settings.config) if settings.config else Configuration() if settings.inventory else None
    problems = [*moved_settings(), *settings.wrong(known)]
    try:
        database = Database(settings.database)
        nodes = read_cluster(settings.inventory.read_text(), settings.inventory.name) if settings.inventory else None
    except Malformed as malformed:
        problems.append(str(malformed))
    if problems:
        raise command_failed("The settings cannot be used", "\n  ".join(problems), "carrel booking --help", USAGE)
    client = connect(settings) if nodes is None else None
    try:
        run_until_signal("booking", settings, partial(_serve, settings, database, nodes, client))
    except StoreUnavailable as error:
        raise command_failed("The database cannot be used", str(error), "carrel booking --help", UNAVAILABLE) from None


async def _serve(
    settings: BookingSettings,
    database: Database,
    nodes: Sequence[Node] | None,
    client: Client | None,
    stop: asyncio.Event,
) -> None:
    """`nodes` are those of a file; without one, the service has a cluster."""
    async with contextlib.AsyncExitStack() as closing:
        await closing.enter_async_context(contextlib.aclosing(database))
        if client is not None:
            await closing.enter_async_context(contextlib.aclosing(client))
            await closing.enter_async_context(stop_if_unsupported(client, stop))
            only = only_installation(client, settings.carrel_namespace, stop)
            client = await closing.enter_async_context(only)
            following = following_configuration("booking", settings, client, READS, stop)
            current = await closing.enter_async_context(following)
        else:
            current = CurrentConfiguration(configuration_in(settings.config) if settings.config else Configuration())
        if current is None:
            return
        configuration = current.value
        if wrong := settings.wrong(configuration):
            why = "\n  ".join(wrong)
            raise command_failed("The settings cannot be used", why, "carrel booking --help", USAGE)
        http = await closing.enter_async_context(aiohttp.ClientSession())
        await database.migrate()
        # One clock for everything: replicas must agree on what has ended, also if the machine of one is a day ahead.
        now = client.clock.now if client is not None else utc_now
        carrel = _state(settings, current, client, now) if client is not None else None
        people = SqlPeople(database)
        authenticator = authenticator_from(configuration, settings, people, http, client, now)
        store = SqlBookings(database)
        queries = BookingQueries(
            store=store,
            inventory=ClusterInventory(carrel) if carrel is not None else GpuInventory(nodes or ()),
            rules=configuration.bookings.rules,
            zone=configuration.lab.zone,
            clock=now,
        )
        current.on_change(lambda new: queries.take_rules(new.bookings.rules))
        view = ClusterView(carrel) if carrel is not None else None
        outbox, hub_people = SqlOutbox(database), configuration.hubs.people()
        lab = LabConfiguration(current, client if settings.config is None else None, settings.carrel_namespace)
        usage = SqlUsage(database) if view is not None else None
        service = ServiceParts(
            queries,
            authenticator,
            outbox,
            settings.maia_token,
            view,
            hub_people=hub_people,
            configuration=lab,
            elsewhere=settings.bookings_elsewhere,
            usage=usage,
            channels=Channels(configuration.lab.zone, authenticator.options.link),
        )
        mirror = _mirror(client, service)
        if mirror is not None:
            store.on_change = mirror.on_change
        recorder = UsageRecorder(usage, view.looks, service.lab_zone, now) if usage and view else None
        calls = client.calls if client is not None else None
        metrics = BookingMetrics(mirror, await database.level(), calls, recorder)
        own = await closing.enter_async_context(checked_session(lambda: service.channels.hosts))
        take = partial(_take_channels, service.channels, settings, http, own, now)
        take(configuration)
        current.on_change(take)
        notifier = Notifier(service.outbox, store, service.channels, now)
        address = Address(settings.bind_address, settings.port)
        async with serving(
            booking_app(service, request_limits(configuration.bookings.sign_in), metrics), address, finish_s=FINISH_S
        ) as url:
            where = database.url.render_as_string(hide_password=True)
            log.info("listening url=%s database=%s zone=%s", url, where, queries.zone)
            async with _tasks(
                _every(FORGET_S, lambda: people.forget_expired(now())),
                _every(FORGET_S, notifier.forget),
                notifier.run(),
                *_watching(carrel, service, mirror, recorder),
                *_keeping(usage, recorder, current, now),
            ):
                await stop.wait()
                service.stopping.set()
    log.info("stopped")


def _state(
    settings: BookingSettings, current: CurrentConfiguration, client: Client, now: Callable[[], datetime]
) -> ClusterState:
    options = cluster_options(current, settings.carrel_namespace, reads_makers=False)
    return ClusterState(client, replace(options, now=now))


def _take_channels(
    channels: Channels,
    settings: BookingSettings,
    http: aiohttp.ClientSession,
    own: aiohttp.ClientSession,
    now: Callable[[], datetime],
    configuration: Configuration,
) -> None:
    """The channels that this configuration has. `own` is for addresses of people."""
    of, found = configuration.notifications, dict[str, Channel]()
    if settings.smtp_url and of.mail_from:
        found[MAIL] = MailChannel(mail_server(settings.smtp_url), of.mail_from)
    if of.allowed_hosts:
        found |= {name: OwnChannel(request, own, of.allowed_hosts) for name, request in POSTS.items()}
    if of.matrix_url and settings.matrix_token:
        found[MATRIX] = MatrixChannel(of.matrix_url, settings.matrix_token, http)
    if of.webhook_url and settings.webhook_secret:
        found[LAB] = LabWebhook(of.webhook_url, settings.webhook_secret, http, now)
    channels.take(found, of.allowed_hosts)


def _mirror(client: Client | None, service: ServiceParts) -> BookingMirror | None:
    """None: there is no cluster, or bookings are made elsewhere, and the controller writes their objects."""
    return None if client is None or service.elsewhere else BookingMirror(client, service.queries)


def _watching(
    carrel: ClusterState | None,
    service: ServiceParts,
    mirror: BookingMirror | None,
    recorder: UsageRecorder | None,
) -> Sequence[Coroutine[Any, Any, None]]:
    """The tasks that need a cluster."""
    if carrel is None:
        return ()
    revocations = RevocationWatch(carrel, service.outbox)
    watches = carrel.nodes, carrel.node_statuses
    overbooked = OverbookedWatch(service.queries, service.outbox, lambda: not any(each.failures for each in watches))
    observe = _observe_cluster(carrel, recorder)
    mirroring = [mirror.run()] if mirror is not None else []
    return (
        *(carrel.informers.run(), observe, revocations.run(), _every(OVERBOOKED_S, overbooked.round)),
        *mirroring,
    )


def _keeping(
    usage: SqlUsage | None,
    recorder: UsageRecorder | None,
    current: CurrentConfiguration,
    now: Callable[[], datetime],
) -> Sequence[Coroutine[Any, Any, None]]:
    """The tasks that count usage, and forget what is old."""
    if usage is None or recorder is None:
        return ()

    async def forget() -> None:
        lab = current.value
        await usage.forget(now(), lab.lab.zone, lab.bookings.usage_names_kept)

    return recorder.run(), _every(FORGET_S, forget)


@contextlib.asynccontextmanager
async def _tasks(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Tasks that run beside the requests."""
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(each) for each in coroutines]
        yield
        for task in running:
            task.cancel()


async def _observe_cluster(carrel: ClusterState, recorder: UsageRecorder | None) -> None:
    while True:
        now = carrel.options.now()
        carrel.isolation.attempt("silent_agents", partial(carrel.cluster_ledger.mark_silent_agents, now))
        if recorder is not None:
            carrel.isolation.attempt("usage", recorder.observe)
        await asyncio.sleep(HOUSEKEEPING_S)


async def _every(pause_s: float, act: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await act()
        except StoreUnavailable as error:
            log.warning("store_unavailable: %s", error)
        await asyncio.sleep(pause_s)
