"""What the leader does about the two tiers: it ends pods in time, takes cards back for booked pods, and hands over.

Expiry, revocation and each hand-over have a place in one queue: what fails comes again later and keeps nobody else
waiting. Each comes again by itself every few seconds too, so that a change of which nobody heard, a crash half-way, or
what another replica was asked to do, is caught up with.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from carrel.bookings.client.interface import BookingService
from carrel.dialects.tier import tier_of
from carrel.kubernetes.backoff import Backoff
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.leases.cluster_state import NAMESPACE_OF, ClusterState
from carrel.ledger.tiers import Tier
from carrel.lifecycle.expiry import Expiry, ExpiryOptions
from carrel.lifecycle.hand_over import End, HandOverContext, HandOvers
from carrel.lifecycle.metrics import Metrics
from carrel.lifecycle.revocation import RevocationContext, Revoker
from carrel.lifecycle.terminator import Terminator, TerminatorContext

log = logging.getLogger(__name__)

EXPIRY, REVOCATION, RECORDS = "expiry", "revocation", "records"
AGAIN_S = 5.0
"""How often each is looked at, should nobody have told us that something changed."""
SETTLE_S = 0.2
"""A booked pod and the Leases are heard of one after the other."""
TIMES_AS_LONG = 10
"""On a huge cluster to decide takes a second: then not every change of a Lease is a reason to decide again."""
WORKERS = 4
RETRY = Backoff(first_s=0.2, limit_s=10.0)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the cluster's admin decides about the tiers."""

    schedulers: frozenset[str]
    grace: timedelta = timedelta()
    by_lot: bool = False
    go_on_without_gpu: bool = True


class TierReconciler:
    def __init__(self, carrel: ClusterState, rules: Rules, metrics: Metrics, bookings: BookingService | None) -> None:
        self._metrics = metrics
        now, pods = carrel.options.now, carrel.pods.store
        self._hand_overs = _hand_overs(carrel, carrel.cluster)
        manners = ExpiryOptions(now, rules.go_on_without_gpu, bookings)
        self._expiry = Expiry(carrel.cluster, pods.snapshot, self._hand_overs, manners)
        context = RevocationContext(
            pods=pods.snapshot,
            pod_by_uid=pods.by_uid,
            understand=carrel.understand,
            nodes_for=carrel.nodes_for,
            now=now,
            schedulers=rules.schedulers,
            grace=rules.grace,
            lot=Random if rules.by_lot else None,
        )
        self._revoking = Revoker(carrel.cluster, carrel.cluster_ledger, carrel.lease_writer, self._hand_overs, context)
        self._settle_s = SETTLE_S
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        self._due.close()  # until this process leads
        carrel.pods.on_change(self._see_pod)
        carrel.leases.on_change(self._see_lease)

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._due = WorkQueue(backoff=RETRY)
        for key in (EXPIRY, REVOCATION, RECORDS):
            self._due.add(key)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(WORKERS):
                    tasks.create_task(run_worker(self._due, self._look_after))
        finally:
            self._due.close()

    # --- what was heard ----------------------------------------------------------------------------------------------

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None and tier_of(old) is not None:
            self._due.add(RECORDS)  # it may be one that is handed over
        if new is not None and tier_of(new) is Tier.BOOKED and not new.spec.node_name:
            self._due.add_after(REVOCATION, self._settle_s)

    def _see_lease(self, old: Lease | None, new: Lease | None) -> None:
        self._due.add_after(REVOCATION, self._settle_s)

    # --- what is done about it ---------------------------------------------------------------------------------------

    async def _look_after(self, key: str) -> None:
        if key == EXPIRY:
            await self._look_at_the_clock()
        elif key == REVOCATION:
            await self._look_after_the_booked()
        elif key == RECORDS:
            self._hand_over(*await self._hand_overs.under_way())
        else:
            await self._look_after_record(key)
            return
        self._due.add_after(key, AGAIN_S)

    async def _look_at_the_clock(self) -> None:
        for pod in self._expiry.over():
            self._hand_over(await self._expiry.end(pod))
        for warning in self._expiry.warnings():
            await self._expiry.warn(warning)
            self._metrics.told.labels(warning.note.reason).inc()

    async def _look_after_the_booked(self) -> None:
        began = time.monotonic()
        begun = await self._revoking.round()
        self._settle_s = max(SETTLE_S, TIMES_AS_LONG * (time.monotonic() - began))
        self._hand_over(*begun)
        self._metrics.revoked.inc(len(begun))
        if begun:
            self._due.add(REVOCATION)  # perhaps for somebody else too

    async def _look_after_record(self, name: str) -> None:
        step = await self._hand_overs.advance(name)
        if isinstance(step, End):
            self._metrics.handed_over.labels(step.name.lower()).inc()
        else:
            self._due.add_after(name, step.total_seconds())

    def _hand_over(self, *records: str) -> None:
        for name in records:
            if name:
                self._due.add(name)


def terminator(carrel: ClusterState, cluster: Cluster) -> Terminator:
    """Any replica may be asked: what it is asked for it writes with this access, and the leader carries it out."""
    hand_overs, pods = _hand_overs(carrel, cluster), carrel.pods.store
    context = TerminatorContext(
        pods=pods.snapshot,
        pod_named=pods.get,
        has_cards=lambda uid: bool(carrel.ledger.shares_of(uid)),
        now=carrel.options.now,
        chance=Random(),  # noqa: S311 - a lot, not a secret
    )
    return Terminator(
        Expiry(cluster, pods.snapshot, hand_overs, ExpiryOptions(carrel.options.now)), hand_overs, context
    )


def _hand_overs(carrel: ClusterState, cluster: Cluster) -> HandOvers:
    return HandOvers(
        HandOverContext(
            cluster,
            carrel.options.namespace,
            carrel.options.now,
            lambda namespace: carrel.pods.store.find(NAMESPACE_OF, namespace),
        )
    )
