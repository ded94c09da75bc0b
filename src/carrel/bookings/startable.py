"""What a person may start now: their bookings, the GPUs that are free without one, and what they should know."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from carrel.bookings import wording
from carrel.bookings.cluster_view import ClusterView
from carrel.bookings.notifications.messages import reminder
from carrel.bookings.notifications.overbooked_watch import short_bookings
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord, FreeGpus, Query, State
from carrel.bookings.rules import Booking
from carrel.cluster.coverage.coverage_words import Beyond, BeyondReason, BookingInUse, CoverageWords
from carrel.cluster.pod_progress import holder_of
from carrel.dialects.carrel import NOTICE
from carrel.ledger.coverage import Entitlement

SOON = timedelta(days=1)
"""A booking that starts within this time is told already."""
MOST_BOOKINGS = 100
MOST_PODS = 100


@dataclass(frozen=True, slots=True)
class UsableBooking:
    """A booking of a person, or of a group of theirs, that runs or starts soon."""

    record: BookingRecord
    runs: bool
    may_change: bool
    use: BookingInUse | None = None
    """None: it does not run, or there is no cluster."""
    why_short: str = ""
    """Why its GPUs may have to be waited for; empty: they need not."""

    @property
    def booking(self) -> Booking:
        return self.record.booking

    @property
    def used(self) -> int:
        return self.use.used if self.use else 0


@dataclass(frozen=True, slots=True)
class Startable:
    bookings: tuple[UsableBooking, ...]
    free: tuple[FreeGpus, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartableQuery:
    """Answers with three reads of the database, however many bookings and groups there are; four if GPUs are out of
    use."""

    queries: BookingQueries
    cluster: ClusterView | None
    url: str
    """The address of the booking pages."""

    async def of(self, email: str) -> Startable:
        now = self.queries.now()
        bookings = await self._bookings(email, now)
        notices = (*self._notices(bookings, now), *self._notices_of_pods(email))
        return Startable(bookings, await self.queries.free_gpus(), notices)

    async def _bookings(self, email: str, now: datetime) -> tuple[UsableBooking, ...]:
        async with self.queries.store.reading() as reading:
            groups = await reading.groups_of(email)
            query = Query(
                user=email,
                groups=frozenset(groups),
                states=frozenset({State.ACTIVE, State.PLANNED}),
                end=now + SOON,
                limit=MOST_BOOKINGS,
            )
            found = await reading.search(query, now)
            is_out = any(model.out_of_use for model in self.queries.inventory.stock().values())
            near = [record.booking for record in await reading.within(now, now + SOON)] if is_out else []
        short = short_bookings(near, self.queries.inventory.stock(), self.queries.rules.shares_per_gpu, now)
        usable = [self._usable(record, groups, now, is_short=record.booking.id in short) for record in found]
        return tuple(sorted(usable, key=lambda each: (not each.runs, each.booking.start, each.booking.id)))

    def _usable(
        self, record: BookingRecord, groups: Mapping[str, bool], now: datetime, *, is_short: bool
    ) -> UsableBooking:
        booking = record.booking
        stock = self.queries.inventory.stock().get(booking.model) if is_short else None
        use = self.cluster.coverage.use_of(booking.id) if self.cluster else None
        may_change = groups.get(booking.group, False) if booking.group else True
        return UsableBooking(record, booking.is_active(now), may_change, use, stock.why_set_aside if stock else "")

    # --- in words ----------------------------------------------------------------------------------------------------

    def _notices(self, bookings: Iterable[UsableBooking], now: datetime) -> Iterable[str]:
        words = words_with_zone(self.queries.zone)
        for each in bookings:
            entitlement = self._entitlement(each.booking)
            name = words.booking(entitlement)
            if not each.runs:
                yield f"{name} starts {moment_of(each.booking.start, self.queries.zone)}"
                continue
            if reminder(each.booking, now):
                extend = f"; extend it at {self.url}/bookings/{each.booking.id}" if each.may_change else ""
                yield f"{name} ends {moment_of(each.booking.ends, self.queries.zone)}{extend}"
            if each.use and each.used >= each.booking.gpus:
                beyond = Beyond(entitlement, BeyondReason.IN_USE, each.use.pods)
                yield f"{words.why_beyond(beyond)}; what you start now runs on what is free"

    def _notices_of_pods(self, email: str) -> Iterable[str]:
        """What is written on the person's pods for whoever works in them."""
        pods = self.cluster.pods_of(email)[:MOST_PODS] if self.cluster else ()
        for pod in pods:
            if notice := pod.metadata.annotations.get(NOTICE):
                yield f"{holder_of(pod).full_name}: {notice}"

    def _entitlement(self, booking: Booking) -> Entitlement:
        return Entitlement(
            booking=booking.id,
            people=frozenset(),
            model=booking.model,
            gpus=booking.gpus,
            start=booking.start,
            ends=booking.ends,
            share_of=self.queries.rules.shares_per_gpu if booking.share else 1,
            group=booking.group,
        )


def words_with_zone(zone: tzinfo) -> CoverageWords:
    """For answers that are read outside of our pages."""
    return CoverageWords(lambda instant: moment_of(instant, zone), wording.model)


def moment_of(instant: datetime, zone: tzinfo) -> str:
    """With the name of the zone: whoever reads it need not be in the lab's."""
    return f"{wording.at(instant, zone)} {instant.astimezone(zone):%Z}"
