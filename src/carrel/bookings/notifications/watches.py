"""Records in the log what people are to be told: that a pod lost its GPU, and that a booking lacks GPUs.

**A pod lost its GPU.** The controller writes a hand-over record into the cluster before it ends the pod, and deletes it
when the pod's successor exists. Every replica sees the record; the pod's uid makes it one log entry. A record that
appears and disappears while no replica runs is missed.

**A booking lacks GPUs**, because some are out of use, and when that is over. A machine that is rebooted is no message:
it is one when it has lasted `LASTS`, and so is its end. Bookings count that run or start within `SOON`: nobody knows
for how long a node is cordoned. Maintenance that an admin has announced is no message either, so only bookings are
compared with the GPUs that there are. Every replica looks. That a booking's person was told is a mark in the database,
so it is told once. A replica that sees another picture than the others waits for `LASTS` after each of their messages.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta

from carrel.bookings.calendar import Calendar
from carrel.bookings.capacity import ModelCapacity
from carrel.bookings.notifications.messages import Occasion, facts_of
from carrel.bookings.queries import REVOKED, BookingQueries
from carrel.bookings.records import LogEntry
from carrel.bookings.rules import Booking
from carrel.bookings.store.outbox import SqlOutbox
from carrel.cluster.state import ClusterState
from carrel.dialects.hand_over_record import LABEL, HandOver, Why, read_record
from carrel.dialects.notice import what_follows
from carrel.dialects.tier import person_of
from carrel.ids import BookingId
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import ConfigMap
from carrel.kubernetes.objects.resources import CONFIG_MAPS
from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

CONTROLLER = "the controller"
RETRY = Backoff(first_s=1.0, limit_s=60.0)


class RevocationWatch:
    """To be created before the informers run."""

    def __init__(self, carrel: ClusterState, outbox: SqlOutbox) -> None:
        self._carrel = carrel
        self._outbox = outbox
        self._records: dict[str, tuple[HandOver, int]] = {}
        """uid → the record, and how many GPUs its person held without a booking when it appeared."""
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        ours = Selection(carrel.options.namespace, labels=LABEL)
        carrel.informers.watch(CONFIG_MAPS, ours).on_change(self._on_change)

    async def run(self) -> None:
        await run_worker(self._due, self._note)

    def _on_change(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is None or old is not None:
            return
        try:
            record = read_record(new)
        except Malformed as malformed:
            log.warning("hand_over_record_malformed: %s", malformed)
            return
        if record.why is Why.REVOKED and is_address(normal(record.user)):
            self._records[record.uid] = record, self._held_without_booking(record)
            self._due.add(record.uid)

    async def _note(self, uid: str) -> None:
        """Raises `StoreUnavailable`: then it is tried again."""
        record, held = self._records[uid]
        namespace, pod = record.place
        why = f"a GPU was needed for the booked pod {record.needed_by}" if record.needed_by else ""
        details = {"namespace": namespace, "pod": pod, "ends": seconds(record.lost_at)}
        details["then"] = what_follows({}, has_controller=bool(record.owner))
        details |= {"uid": record.uid, "for": record.booking, "held": str(held)}
        entry = LogEntry(record.decided, CONTROLLER, REVOKED, normal(record.user), why=why, details=details)
        await self._outbox.note(f"revoked-{uid}", entry)
        del self._records[uid]

    def _held_without_booking(self, record: HandOver) -> int:
        """For its person, who is told later why it was this pod."""
        facts = self._carrel.pod_facts
        theirs = (pod for pod in self._carrel.pods.store if person_of(pod) == normal(record.user))
        found = self._carrel.isolation.found(
            "loss", theirs, lambda pod: facts.shares_of(pod) if facts.may_lose_gpus(pod) else None
        )
        return len({share.gpu for shares in found for share in shares})


LASTS = timedelta(minutes=10)
"""A machine with eight GPUs takes five to ten minutes to start."""
SOON = timedelta(days=1)
OVERBOOKED_S = 30.0
"""How often it is looked at."""
MARK = "overbooked-"
"""How the names of marks begin; the booking's id follows."""
ACTOR = "the cluster"


def short_bookings(
    bookings: Collection[Booking], stock: Mapping[str, ModelCapacity], shares_per_gpu: int, now: datetime
) -> set[BookingId]:
    """The ids of the bookings at whose time more is booked than there is, from now on until `SOON`."""
    found = set()
    for model in {booking.model for booking in bookings}:
        there = stock.get(model)
        gpus = there.gpus + there.set_aside if there else 0
        spans = Calendar(model, gpus, bookings, shares_per_gpu=shares_per_gpu).spans(now, now + SOON)
        for short in (span for span in spans if span.free < 0):
            touching = (each for each in bookings if each.start < short.end and short.start < each.ends)
            found |= {booking.id for booking in touching if booking.model == model}
    return found


class OverbookedWatch:
    def __init__(
        self, queries: BookingQueries, outbox: SqlOutbox, is_current: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_current`: whether the API server is heard. Otherwise every agent seems silent to this replica alone."""
        self._queries = queries
        self._outbox = outbox
        self._is_current = is_current
        self._since: dict[tuple[str, bool, bool], datetime] = {}
        """A booking, whether it lacks GPUs, whether its person was told → since when that is so."""

    async def round(self) -> None:
        """Raises `StoreUnavailable`."""
        if not self._queries.inventory.is_known or not self._is_current():
            self._since.clear()
            return
        now, stock = self._queries.now(), self._queries.inventory.stock()
        async with self._queries.store.reading() as reading:
            bookings = [record.booking for record in await reading.within(now, now + SOON)]
        told = {name.removeprefix(MARK) for name in await self._outbox.marks(MARK)}
        short = short_bookings(bookings, stock, self._queries.rules.shares_per_gpu, now)
        states = {each.id: (each.id, each.id in short, each.id in told) for each in bookings}
        self._since = {state: self._since.get(state, now) for state in states.values()}
        for booking in bookings:
            _, is_short, is_told = state = states[booking.id]
            if is_short != is_told and now - self._since[state] >= LASTS:
                entry = _entry(booking, now, stock.get(booking.model), is_short=is_short)
                await self._outbox.set_mark(f"{MARK}{booking.id}", is_short, entry)
        for id in told - states.keys():  # it is over, or was moved to later
            await self._outbox.set_mark(f"{MARK}{id}", False)


def _entry(booking: Booking, now: datetime, stock: ModelCapacity | None, *, is_short: bool) -> LogEntry:
    occasion = Occasion.OVERBOOKED if is_short else Occasion.ENOUGH_AGAIN
    why = (stock.why_set_aside if stock else "") or "more GPUs are booked than the cluster has"
    details = facts_of(booking)
    return LogEntry(now, ACTOR, occasion.value, booking.user, booking.id, why if is_short else "", details)
