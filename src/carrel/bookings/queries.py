"""Reads bookings: who has what, what is free, and when. Changes nothing."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, tzinfo

from carrel.bookings.calendar import Calendar, days
from carrel.bookings.capacity import ModelCapacity, booked_gpus, model_named
from carrel.bookings.inventory import GpuInventory
from carrel.bookings.people import Person, normal
from carrel.bookings.records import (
    Availability,
    BookingRecord,
    BookingRefusal,
    BookingSearchResult,
    BookingStore,
    Cursor,
    DayAvailability,
    LogEntry,
    MaintenanceWindow,
    Overview,
    PersonUsage,
    Query,
    ReadTransaction,
    RefusalReason,
)
from carrel.bookings.rules import Booking, BookingRules, earliest_start
from carrel.bookings.tiers import PersonTier, person_tier
from carrel.dialects.maia import same_namespace
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal

FOREVER = datetime.max.replace(tzinfo=UTC)
FEED_LOOKS_BACK = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class BookingContext:
    """What commands and queries need of their surroundings."""

    store: BookingStore
    inventory: GpuInventory
    rules: BookingRules
    zone: tzinfo
    """Of the lab: it says what a day is, and how times are written."""
    clock: Callable[[], datetime]
    new_id: Callable[[], str]
    """Unique and not guessable."""

    def now(self) -> datetime:
        """In whole seconds, like bookings: a booking “from now” must not start in the past by a millisecond."""
        return self.clock().astimezone(UTC).replace(microsecond=0)

    def model(self, word: str) -> str | Refusal:
        return model_named(word, self.inventory.stock().keys())

    async def calendar(
        self, reading: ReadTransaction, model: str, start: datetime, end: datetime, but: str = ""
    ) -> Calendar:
        """What is booked of a model between two instants, without the booking `but`."""
        stock = self.inventory.stock().get(model)
        windows = [window.maintenance for window in await reading.maintenance(start, end, model)]
        others = [booking for booking in await reading.promised(start, end, model) if booking.id != but]
        return Calendar(model, stock.cards if stock else 0, others, windows, self.rules.shares_per_card)


class BookingQueries:
    def __init__(self, context: BookingContext) -> None:
        self.context = context

    # --- bookings ----------------------------------------------------------------------------------------------------

    async def get(self, id: str) -> BookingRecord | None:
        async with self.context.store.reading() as reading:
            return await reading.get(id)

    async def find(self, query: Query) -> BookingSearchResult:
        one_more = replace(query, limit=query.limit + 1)
        async with self.context.store.reading() as reading:
            found = tuple(await reading.search(one_more, self.context.now()))
        if len(found) <= query.limit:
            return BookingSearchResult(found)
        last = found[query.limit - 1].booking
        return BookingSearchResult(found[: query.limit], Cursor(last.start, last.id))

    async def within(self, start: datetime, end: datetime) -> Sequence[BookingRecord]:
        """All bookings that count and overlap [start, end): what a timeline shows."""
        async with self.context.store.reading() as reading:
            return await reading.within(start, end)

    async def person_tier(self, user: str, namespace: str = "") -> PersonTier:
        """Which tier has this person now? A planned booking does not count yet.

        With a namespace, a booking that was made for another one does not count either.
        """
        now = self.context.now()
        async with self.context.store.reading() as reading:
            own = await reading.of_person(normal(user), now)
        here = [each.booking for each in own if not (namespace and each.namespace) or _same(each, namespace)]
        return person_tier(here, normal(user), now)

    # --- availability ------------------------------------------------------------------------------------------------

    async def availability(self, first: date, count: int, models: Collection[str] = ()) -> tuple[Availability, ...]:
        """Of each model, and each of `count` days in the lab's zone. Also of booked models that are gone."""
        return (await self.overview(first, count, models)).models

    async def overview(self, first: date, count: int, models: Collection[str] = ()) -> Overview:
        """The same, with the bookings and maintenance windows: what a timeline shows, from one read."""
        now, wanted = self.context.now(), days(first, count, self.context.zone)
        earliest = min([now, *(day.start for day in wanted)])
        async with self.context.store.reading() as reading:
            records = await reading.within(earliest, FOREVER)
            kept = await reading.maintenance(earliest, FOREVER)
        bookings: dict[str, list[Booking]] = {}
        for record in records:
            bookings.setdefault(record.booking.model, []).append(record.booking)
        windows = [window.maintenance for window in kept]
        gone = {model: ModelCapacity(model, 0, MiB(0)) for model in bookings}
        stock = {**gone, **self.context.inventory.stock()}
        rules, idle = self.context.rules, self.context.inventory.idle()
        found = []
        for model in sorted(set(models or stock) & stock.keys()):
            calendar = Calendar(model, stock[model].cards, bookings.get(model, ()), windows, rules.shares_per_card)
            found.append(
                Availability(
                    stock=stock[model],
                    free_now=next(calendar.spans(now, FOREVER)).free,
                    next_free=calendar.next_free(1, rules.min_duration, now),
                    days=tuple(
                        DayAvailability(day.date, day.start, day.end, span.free, span.shares)
                        for day, span in zip(wanted, calendar.by_day(wanted), strict=True)
                    ),
                    shares_per_card=rules.shares_per_card,
                    idle_now=idle.get(model, 0) if idle is not None else None,
                )
            )
        return Overview(tuple(found), records, kept)

    async def next_free(
        self, user: str, model: str, length: timedelta, cards: int = 1, share: bool = False
    ) -> datetime | BookingRefusal | None:
        """The first start that both the rules and the calendar allow; None if there is none."""
        named = self.context.model(model)
        if isinstance(named, Refusal):
            return BookingRefusal(RefusalReason.NOT_FOUND, str(named), hint="carrel free")
        async with self.context.store.reading() as reading:
            own = await reading.of_person(normal(user), self.context.now() - self.context.rules.cooldown)
            start = earliest_start([record.booking for record in own], self.context.now(), self.context.rules)
            wanted = Booking("", user, named, start, start + length, cards, share=share)
            return await first_start(self.context, reading, wanted)

    # --- log and usage -----------------------------------------------------------------------------------------------

    async def maintenance(self, start: datetime, end: datetime) -> Sequence[MaintenanceWindow]:
        async with self.context.store.reading() as reading:
            return await reading.maintenance(start, end)

    async def log(self, person: Person, before: int = 0, limit: int = 100) -> Sequence[LogEntry]:
        """A lab admin sees everything, other people what concerns them."""
        async with self.context.store.reading() as reading:
            return await reading.log("" if person.is_lab_admin else person.email, before, limit)

    async def usage(self, start: datetime, end: datetime) -> tuple[PersonUsage, ...]:
        """By person and model, the largest first. A share counts as its part of a GPU."""
        uses: dict[tuple[str, str], PersonUsage] = {}
        for record in await self.within(start, end):
            booking = record.booking
            hours = (min(booking.ends, end) - max(booking.start, start)) / timedelta(hours=1)
            gpus = booked_gpus(booking, self.context.rules.shares_per_card)
            so_far = uses.get((booking.user, booking.model), PersonUsage(booking.user, booking.model, 0, 0.0))
            uses[booking.user, booking.model] = replace(
                so_far, bookings=so_far.bookings + 1, card_hours=so_far.card_hours + hours * gpus
            )
        return tuple(sorted(uses.values(), key=lambda use: (-use.card_hours, use.user, use.model)))

    async def feed(self, secret: str) -> Sequence[BookingRecord] | None:
        """The bookings of the feed's owner; None if there is no such feed, or if it was revoked."""
        async with self.context.store.reading() as reading:
            owner = await reading.feed_owner(hash_of(secret))
            if owner is None:
                return None
            return await reading.of_person(owner, self.context.now() - FEED_LOOKS_BACK)


async def first_start(context: BookingContext, reading: ReadTransaction, wanted: Booking) -> datetime | None:
    """The first start, not before the wanted one, from which there is room for its length."""
    calendar = await context.calendar(reading, wanted.model, wanted.start, FOREVER, but=wanted.id)
    return calendar.next_free(wanted.cards, wanted.end - wanted.start, wanted.start, wanted.share)


def _same(record: BookingRecord, namespace: str) -> bool:
    return same_namespace(record.namespace, namespace)


def hash_of(secret: str) -> str:
    """A plain hash is enough, because the secrets are long and random."""
    return hashlib.sha256(secret.encode()).hexdigest()
