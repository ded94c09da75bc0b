"""Runs the controller until a signal. Then it gives up the leadership, and ends."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from uuid import uuid4

from carrel.bookings.client import BookingAddress, BookingStatusClient
from carrel.cluster.configuration_record import Reads
from carrel.cluster.gpu_activities import GpuActivities
from carrel.cluster.record.adoption import Adoption
from carrel.cluster.runtime_class import RuntimeClasses
from carrel.cluster.state import ClusterState
from carrel.configuration.current import CurrentConfiguration
from carrel.configuration.schema import ReservationNaming
from carrel.dialects.kai_reservation import BEFORE_KAI_0_17, KAI_0_17
from carrel.http.health import health_app
from carrel.http.serving import Address, serving
from carrel.kubernetes.client import Client
from carrel.kubernetes.leader_election import Candidate, Election, Leadership, LeadershipLost, OwnLoop
from carrel.lifecycle.assembly import Leading, resource_claims_on, terminator_on, tier_parts_on
from carrel.lifecycle.configuring import Configuring
from carrel.lifecycle.freeing.adoption_loop import AdoptionLoop
from carrel.lifecycle.freeing.renumbered_gpus import RenumberedGpus
from carrel.lifecycle.freeing.terminator import Terminator
from carrel.lifecycle.freeing.terminator_api import terminator_app
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.lifecycle.reconciler import Reconciler
from carrel.lifecycle.reporting.gpu_counts import gpu_counts
from carrel.lifecycle.reporting.gpu_use import GpuUse
from carrel.lifecycle.reporting.invariant_check import InvariantCheck
from carrel.lifecycle.reservations.reservation_pods import ReservationOptions, ReservationPods
from carrel.lifecycle.reservations.slot_reconciler import SlotReconciler
from carrel.lifecycle.settings import ControllerSettings
from carrel.lifecycle.tier_options import tier_options
from carrel.lifecycle.tier_reconciler import TierReconciler
from carrel.process import connect, run_with_cluster
from carrel.settings import cluster_options

log = logging.getLogger(__name__)

READS = Reads(("lab", "memory", "dialects", "nodes", "pods", "tiers", "resourceClaims", "reservations"))


LEASE = "carrel-controller"
REBUILDING = "the ledger is being rebuilt from the cluster"


class WriteFence:
    """Lets this process write only while it leads."""

    def __init__(self) -> None:
        self._leadership: Leadership | None = None

    @contextmanager
    def open_with(self, leadership: Leadership) -> Iterator[None]:
        self._leadership = leadership
        try:
            yield
        finally:
            self._leadership = None

    def require(self) -> None:
        if self._leadership is None:
            raise LeadershipLost("this process does not lead")
        self._leadership.require()

    def is_leading(self) -> bool:
        return self._leadership is not None and self._leadership.holds()


def run(settings: ControllerSettings) -> None:
    run_with_cluster("controller", settings, partial(_serve, settings), READS)


async def _serve(
    settings: ControllerSettings, client: Client, current: CurrentConfiguration, stop: asyncio.Event
) -> None:
    fence, configuration = WriteFence(), current.value
    options = cluster_options(current, settings.carrel_namespace, seal=settings.seal())
    state = ClusterState(client.guarded(fence.require), replace(options, now=client.clock.now))
    metrics = ControllerMetrics(fence.is_leading, client.clock)
    metrics.show_api_calls(client.calls)
    metrics.show_failures(state.isolation.failures)
    agents, why_silent = state.node_statuses.store, state.cluster_ledger.why_silent
    metrics.show_agents(lambda: [bool(why_silent(each.metadata.name)) for each in agents])
    metrics.read_on_scrape(lambda: gpu_counts(state.ledger, state.covered_pods.running()))
    metrics.read_on_scrape(GpuUse(state, GpuActivities(state)).read)
    pods_and_leases = Reconciler(state, frozenset(configuration.pods.schedulers), metrics)
    elsewhere = (
        BookingStatusClient(
            BookingAddress(settings.api_url, settings.api_token),
            maia_gpus=lambda: current.value.dialects.maia_booking_gpus,
        )
        if settings.api_url
        else None
    )
    tiers = TierReconciler(state, tier_parts_on(state, current.follow(tier_options), elsewhere), metrics)
    runtime_class = RuntimeClasses(state.informers, configuration.nodes.runtime_class)
    is_old = configuration.reservations.names is ReservationNaming.OLD_KAI
    spelling = BEFORE_KAI_0_17 if is_old else KAI_0_17
    reservations = ReservationPods(
        state, ReservationOptions(settings.reservation_image, spelling, runtime_class.chosen)
    )
    slots = SlotReconciler(state, reservations, lambda node: pods_and_leases.on_room({node}), metrics)
    invariants = InvariantCheck(state, metrics)
    reconcilers: list[Leading] = [pods_and_leases, tiers, slots, invariants, RenumberedGpus(state)]
    reconcilers += resource_claims_on(state)
    if settings.config is None:
        reconcilers.append(Configuring(state, metrics))
    if settings.adopt:
        reconcilers.append(AdoptionLoop(Adoption(state)))
    identity = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
    candidate = Candidate(settings.carrel_namespace, LEASE, identity)
    app = health_app(lambda: "" if state.informers.is_synced else REBUILDING, metrics.text)
    async with (
        _election(settings, candidate) as election,
        serving(app, Address(settings.bind_address, settings.port)) as url,
        _serving_terminator(terminator_on(state, client), settings),
        aclosing(elsewhere) if elsewhere else nullcontext(),
    ):
        log.info("listening url=%s namespace=%s identity=%s", url, settings.carrel_namespace, identity)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(state.informers.run()), tasks.create_task(state.watch_agents())]
            leading = tasks.create_task(_lead(election, fence, state, reconcilers))
            await stop.wait()
            # First the leadership, so that another replica can take over at once.
            leading.cancel()
            await asyncio.wait([leading])
            for task in watching:
                task.cancel()
    log.info("stopped")


@asynccontextmanager
async def _election(settings: ControllerSettings, candidate: Candidate) -> AsyncIterator[Election]:
    """On a loop and with a connection of its own: the Lease is renewed also while victims are being chosen."""
    with OwnLoop("election") as own_loop:
        client = connect(settings)
        try:
            yield Election(client, candidate, own_loop=own_loop)
        finally:
            await own_loop.start(client.aclose())


@asynccontextmanager
async def _serving_terminator(terminator: Terminator, settings: ControllerSettings) -> AsyncIterator[None]:
    """The pod terminator, if it is enabled."""
    if not settings.serves_terminator():
        yield
        return
    token = "" if settings.terminator_for_all else settings.terminator_token
    address = Address(settings.bind_address, settings.terminator_port)
    async with serving(terminator_app(terminator, token), address) as url:
        log.info("terminator url=%s for_all=%s", url, settings.terminator_for_all)
        yield


async def _lead(
    election: Election,
    fence: WriteFence,
    state: ClusterState,
    reconcilers: Sequence[Leading],
) -> None:
    """Runs the reconcilers whenever this process is elected."""
    await state.informers.wait_synced()
    log.info("ready nodes=%d leases=%d", len(state.ledger.nodes), len(state.leases.store))
    while True:
        try:
            async with election.leading() as leadership:
                with fence.open_with(leadership):
                    async with asyncio.TaskGroup() as tasks:
                        for reconciler in reconcilers:
                            tasks.create_task(reconciler.run())
        except* LeadershipLost as lost:
            log.warning("leadership_lost: %s", lost.exceptions[0])
