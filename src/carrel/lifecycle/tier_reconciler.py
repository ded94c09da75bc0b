"""What the leader does about the two tiers: it makes pods follow their bookings, ends them when a booking ends, revokes
GPUs for booked pods, and hands pods over to CPU, also those that have waited too long.

Coverage, expiry, revocation, long waits and each hand-over are keys in one queue: a key that fails is retried later and
does not delay the others. Each comes again by itself every few seconds too. So a change that was missed, a crash, or a
request to another replica is handled then.
"""

import asyncio
import time
from collections.abc import Iterable

from carrel.cluster.pod_progress import is_waiting
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BookingObject
from carrel.dialects.tier import person_of, tier_of
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.lifecycle.assembly import TierParts
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from carrel.lifecycle.metrics import ControllerMetrics

COVERAGE, EXPIRY, REVOCATION, RECORDS, ENQUIRIES = "coverage", "expiry", "revocation", "records", "enquiries"
WAITS, ENDINGS = "waits", "endings"
ROUNDS = (COVERAGE, EXPIRY, REVOCATION, RECORDS, WAITS, ENDINGS, ENQUIRIES)
RESYNC_S = 5.0
"""How often each key is processed if nothing changes."""
SETTLE_S = 0.2
"""The changes of a booked pod and of the Leases arrive one after the other."""
SETTLE_PER_ROUND = 10
"""On a huge cluster one round takes a second: then not every change of a Lease starts a new round."""
ENQUIRIES_S = 1.0
"""How often people are looked for whom a booking service elsewhere was not asked about yet."""
WORKERS = 4
RETRY = Backoff(first_s=0.2, limit_s=10.0)


class TierReconciler:
    def __init__(self, state: ClusterState, parts: TierParts, metrics: ControllerMetrics) -> None:
        self._metrics = metrics
        self._isolation = state.isolation
        self._parts = parts
        metrics.show_hand_overs(parts.hand_overs.closed)
        self._settle_s = dict.fromkeys((COVERAGE, REVOCATION), SETTLE_S)
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        self._due.close()  # until this process leads
        state.pods.on_change(self._on_pod)
        state.leases.on_change(self._on_lease)
        state.bookings.on_change(self._on_booking)

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._due = WorkQueue(backoff=RETRY)
        for key in ROUNDS:
            if key != ENQUIRIES or self._parts.enquiries is not None:
                self._due.add(key)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(WORKERS):
                    tasks.create_task(run_worker(self._due, self._reconcile, self._count_failure))
        finally:
            self._due.close()

    # --- changes -----------------------------------------------------------------------------------------------------

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None and tier_of(old) is not None:
            self._due.add(RECORDS)  # it may be a pod that is handed over
        if new is not None and person_of(new):
            self._soon(COVERAGE)
            if is_waiting(new):
                self._soon(REVOCATION)

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        self._soon(COVERAGE)
        self._soon(REVOCATION)

    def _on_booking(self, old: BookingObject | None, new: BookingObject | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._soon(COVERAGE)
            self._soon(REVOCATION)

    def _soon(self, key: str) -> None:
        self._due.add_after(key, self._settle_s[key])

    # --- work --------------------------------------------------------------------------------------------------------

    async def _reconcile(self, key: str) -> None:
        parts = self._parts
        if key not in ROUNDS:
            result = await parts.hand_overs.advance(key)
            if not isinstance(result, HandOverResult):
                self._due.add_after(key, result.total_seconds())
            return
        if key == COVERAGE:
            await self._follow_bookings()
        elif key == EXPIRY:
            await self._expire()
        elif key == REVOCATION:
            await self._revoke()
        elif key == WAITS:
            self._add_hand_overs(await parts.cpu_after_wait.begin_due())
        elif key == ENDINGS:
            await parts.slow_endings.round()
            await parts.unplaced.round()
        elif key == RECORDS:
            self._add_hand_overs(await parts.hand_overs.record_names())
        elif parts.enquiries is not None:
            await parts.enquiries.round()
        self._due.add_after(key, ENQUIRIES_S if key == ENQUIRIES else RESYNC_S)

    def _count_failure(self, key: str) -> None:
        self._isolation.count(key if key in ROUNDS else "hand_over")

    async def _follow_bookings(self) -> None:
        start = time.monotonic()
        given, taken = await self._parts.correction.round()
        self._settle_s[COVERAGE] = max(SETTLE_S, SETTLE_PER_ROUND * (time.monotonic() - start))
        self._metrics.coverage.labels("given").inc(given)
        self._metrics.coverage.labels("taken").inc(taken)
        if given or taken:
            self._soon(REVOCATION)

    async def _expire(self) -> None:
        ended = await self._parts.expiry.end_expired()
        self._metrics.expired.inc(len(ended))
        self._add_hand_overs(ended)
        for note in await self._parts.expiry.warn_all():
            self._metrics.events.labels(note.reason).inc()
        await self._parts.notices.round()

    async def _revoke(self) -> None:
        start = time.monotonic()
        begun = await self._parts.revoker.revoke_for_next()
        for each in self._parts.after_revocation:
            await each.round()
        self._settle_s[REVOCATION] = max(SETTLE_S, SETTLE_PER_ROUND * (time.monotonic() - start))
        self._add_hand_overs(begun)
        self._metrics.revoked.inc(len(begun))
        if begun:
            self._due.add(REVOCATION)  # perhaps for another booked pod too

    def _add_hand_overs(self, names: Iterable[str]) -> None:
        for name in filter(None, names):
            self._due.add(name)
