"""Runs the controller until a signal comes: then it lets another lead, and ends."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from uuid import uuid4

from carrel.bookings.client.http_client import BookingAddress, BookingClient
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.kubernetes.leader_election import Candidate, Election, Leadership, LeadershipLost
from carrel.leases.cluster_state import ClusterState
from carrel.lifecycle.assembly import reservations_on
from carrel.lifecycle.metrics import Metrics, health_app
from carrel.lifecycle.reconciler import Reconciler
from carrel.lifecycle.settings import ControllerSettings
from carrel.lifecycle.slot_reconciler import SlotReconciler
from carrel.lifecycle.terminator import Terminator
from carrel.lifecycle.terminator_api import terminator_app
from carrel.lifecycle.tier_reconciler import TierReconciler, terminator
from carrel.settings import serve_door

log = logging.getLogger(__name__)

LEASE = "carrel-controller"
LOOK_S = 5.0
"""How often silent agents are looked for."""


class Office:
    """Who may write: the leader, while it leads."""

    def __init__(self) -> None:
        self.leadership: Leadership | None = None

    def require(self) -> None:
        if self.leadership is None:
            raise LeadershipLost("this process does not lead")
        self.leadership.require()

    def is_held(self) -> bool:
        return self.leadership is not None and self.leadership.holds()


def run(settings: ControllerSettings) -> None:
    serve_door("controller", settings, lambda client, stop: _serve(client, settings, stop))


async def _serve(client: Client, settings: ControllerSettings, stop: asyncio.Event) -> None:
    office = Office()
    carrel = ClusterState(client.fenced(office.require), settings.options())
    metrics = Metrics(office.is_held)
    duties = Reconciler(carrel, settings.scheduler_names(), metrics)
    desk = BookingClient(BookingAddress(settings.api_url, "", settings.api_token)) if settings.api_url else None
    tiers = TierReconciler(carrel, settings.rules(), metrics, desk)
    reservations = reservations_on(carrel, settings.reservations())
    slots = SlotReconciler(carrel, reservations, lambda node: duties.tell_of_room({node}), metrics)
    identity = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
    election = Election(client, Candidate(settings.carrel_namespace, LEASE, identity))
    app = health_app(metrics, lambda: carrel.informers.is_synced)
    async with (
        serving(app, Address(settings.bind_address, settings.port)) as url,
        _serving_maia(terminator(carrel, client), settings),
        aclosing(desk) if desk else nullcontext(),
    ):
        log.info("listening url=%s namespace=%s identity=%s", url, settings.carrel_namespace, identity)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(carrel.informers.run()), tasks.create_task(_look_for_silent_agents(carrel))]
            leading = tasks.create_task(_lead(election, office, carrel, [duties, tiers, slots]))
            await stop.wait()
            # First the leadership, so that another can take over while we tidy up.
            leading.cancel()
            await asyncio.wait([leading])
            for task in watching:
                task.cancel()
    log.info("left")


@asynccontextmanager
async def _serving_maia(maia: Terminator, settings: ControllerSettings) -> AsyncIterator[None]:
    """The pod terminator, if anybody may call it."""
    if not settings.listens_for_maia():
        yield
        return
    token = "" if settings.terminator_for_all else settings.terminator_token
    address = Address(settings.bind_address, settings.terminator_port)
    async with serving(terminator_app(maia, token), address) as url:
        log.info("terminator url=%s for_all=%s", url, settings.terminator_for_all)
        yield


async def _lead(
    election: Election,
    office: Office,
    carrel: ClusterState,
    duties: Sequence[Reconciler | TierReconciler | SlotReconciler],
) -> None:
    """Again and again, whenever this process is elected."""
    await carrel.informers.wait_synced()
    log.info("ready nodes=%d leases=%d", len(carrel.ledger.nodes), len(carrel.leases.store))
    while True:
        try:
            async with election.leading() as leadership:
                office.leadership = leadership
                async with asyncio.TaskGroup() as tasks:
                    for duty in duties:
                        tasks.create_task(duty.run())
        except LeadershipLost as lost:
            log.warning("leadership_lost: %s", lost)
        finally:
            office.leadership = None


async def _look_for_silent_agents(carrel: ClusterState) -> None:
    while True:
        carrel.cluster_ledger.look_for_silent_agents(carrel.options.now())
        await asyncio.sleep(LOOK_S)
