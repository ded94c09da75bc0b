"""Writes bookings as objects into the cluster, where webhook, extender and controller watch them.

Every booking that has not ended has an object; one that was cancelled has none. After its regular end the object stays
for a while (`KEPT_AFTER_END`).

Any number of replicas do this at once, and none is elected. Each writes a booking's object right after it has changed
the booking, and compares all objects with the database every 30 s: so what another replica changed before it crashed,
and what somebody changed or deleted by hand, is repaired. An object is read before the database is, and is written only
if it is still the same: an older version of a booking never replaces a newer one, and only what the database called
cancelled or over is deleted (`cluster.coverage.booking_writer`). A process that stops in between leaves the rest to the
next comparison, its own or another replica's.

A booking that cannot be written does not stop the others, and the service goes on without an API server: bookings are
in the database.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from carrel.bookings.queries import FOREVER, BookingQueries, group_members
from carrel.bookings.records import BookingRecord, StoreUnavailable
from carrel.bookings.rules import Booking
from carrel.bookings.store.bookings import SqlReading
from carrel.cluster.coverage.booking_writer import BookingWriter, Decision, Leave
from carrel.dialects.booking_objects import (
    BOOKINGS,
    KEPT_AFTER_END,
    BookingObject,
    is_from_enquiry,
    namespace_named,
    person_named,
    says_the_same,
    write_booking,
)
from carrel.kubernetes.cluster import Cluster, ClusterError
from carrel.kubernetes.timing import REAL_TIME, Backoff, Timing
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.ledger.coverage import Entitlement


@dataclass(frozen=True, slots=True)
class MirrorTerms:
    """What else the object depends on."""

    now: datetime
    shares_per_gpu: int = 1
    members: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Group → the people who share its bookings."""
    settling_s: int | None = None
    """How long bookings settle before others lose GPUs to them."""


def wanted_object(stored: BookingRecord, terms: MirrorTerms) -> dict[str, Any] | None:
    """None: it should have none, because it was cancelled, or is long over."""
    booking = stored.booking
    if booking.cancelled_at is not None or booking.end <= booking.start or booking.end + KEPT_AFTER_END <= terms.now:
        return None
    group = booking.group
    user = "" if group else booking.user
    people = terms.members.get(group, ()) if group else (user,)
    entitlement = replace(
        entitlement_of(booking, terms.shares_per_gpu),
        people=frozenset(filter(None, map(person_named, people))),
        namespace=namespace_named(stored.namespace),
    )
    return write_booking(entitlement, user, stored.version, settling_s=terms.settling_s)


def entitlement_of(booking: Booking, shares_per_gpu: int) -> Entitlement:
    """Return what the booking entitles to, without the people whom it entitles."""
    return Entitlement(
        booking=booking.id,
        people=frozenset(),
        model=booking.model,
        gpus=booking.gpus,
        start=booking.start,
        ends=booking.ends,
        share_of=shares_per_gpu if booking.share else 1,
        group=booking.group,
    )


def may_delete_unknown(seen: BookingObject) -> bool:
    """Whether an object may go that the database has never heard of. Not if the controller wrote it from the answer of
    another booking service: that one knows it."""
    return not is_from_enquiry(seen)


log = logging.getLogger(__name__)

COMPARE_S = 30.0
"""How long an object may differ that was changed by hand, or a change that no replica lived to write."""
WORKERS = 8
RETRY = Backoff(first_s=0.2, limit_s=30.0)
BREATH = 200
"""After so many comparisons requests get a turn."""


class BookingMirror:
    def __init__(self, cluster: Cluster, queries: BookingQueries, timing: Timing = REAL_TIME) -> None:
        self._cluster = cluster
        self._writer = BookingWriter(cluster, queries.now)
        self._queries = queries
        self._timing = timing
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY, timing=timing)
        self._compared_at = timing.now()
        self.differences = 0
        """Objects that differed from the database when they were last compared; they are written then."""
        self.failures = 0
        """Comparisons and single bookings that failed; each is tried again."""

    @property
    def age_s(self) -> float:
        """Since all objects were last compared with the database; before the first time, since the start."""
        return self._timing.now() - self._compared_at

    def on_change(self, booking: str) -> None:
        """This process has changed the booking, or does not know whether it has."""
        self._due.add(booking)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_comparing())
            for _ in range(WORKERS):
                tasks.create_task(run_worker(self._due, self._write_counted))

    async def compare(self) -> Sequence[str]:
        """The bookings whose objects may differ from the database. Raises `ClusterError`, `StoreUnavailable`."""
        # The objects first: what is in an object and not in the database is then really not there.
        objects = {each.metadata.name: each for each in (await self._cluster.list(BOOKINGS)).items}
        now = self._queries.now()
        async with self._queries.store.reading() as reading:
            records = await reading.within(now - KEPT_AFTER_END, FOREVER)
            terms = await self._terms(reading, now)
        different = []
        for number, record in enumerate(records, start=1):
            if self._differs(objects.pop(record.booking.id, None), record, terms):
                different.append(record.booking.id)
            if number % BREATH == 0:
                await asyncio.sleep(0)
        # What is left belongs to bookings that are over or were cancelled, or to none.
        different += [name for name, each in objects.items() if may_delete_unknown(each)]
        self._compared_at, self.differences = self._timing.now(), len(different)
        return different

    async def write(self, booking: str) -> None:
        """Creates, changes or deletes the object of one booking. Raises `ClusterError`, `StoreUnavailable`."""

        async def decide(seen: BookingObject | None) -> Decision:
            async with self._queries.store.reading() as reading:
                record = await reading.get(booking)
                if record is None:
                    return self._unknown(seen)
                return wanted_object(record, await self._terms(reading, self._queries.now()))

        if await self._writer.write(booking, decide):
            log.info("booking_object_written booking=%s", booking)

    def _unknown(self, seen: BookingObject | None) -> Decision:
        if seen is None or not may_delete_unknown(seen):
            return Leave.AS_IT_IS
        log.warning(
            "booking_object_unknown name=%s user=%s: no such booking was ever made; it is deleted",
            seen.metadata.name, seen.spec.user or seen.spec.group,
        )  # fmt: skip
        return None

    def _differs(self, seen: BookingObject | None, record: BookingRecord, terms: MirrorTerms) -> bool:
        wanted = wanted_object(record, terms)
        if seen is None or wanted is None:
            return (seen is None) != (wanted is None)
        return not says_the_same(seen, wanted)

    async def _terms(self, reading: SqlReading, now: datetime) -> MirrorTerms:
        rules = self._queries.rules
        return MirrorTerms(
            now, rules.shares_per_gpu, await group_members(reading), int(rules.settling_time.total_seconds())
        )

    async def _keep_comparing(self) -> None:
        while True:
            try:
                for booking in await self.compare():
                    self._due.add(booking)
            except Exception as error:
                self.failures += 1
                is_ours = not isinstance(error, ClusterError | StoreUnavailable)
                log.warning("booking_comparison_failed: %s", error, exc_info=is_ours)
            await self._timing.sleep(self._timing.spread(COMPARE_S))

    async def _write_counted(self, booking: str) -> None:
        try:
            await self.write(booking)
        except Exception:
            self.failures += 1
            raise
