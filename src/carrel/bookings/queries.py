"""Looks at the bookings: who has what, what is free, and when. Changes nothing."""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, tzinfo

from carrel.bookings.calendar import Calendar, days
from carrel.bookings.capacity import ModelCapacity, model_named
from carrel.bookings.inventory import GpuInventory
from carrel.bookings.people import Person, normal
from carrel.bookings.records import (
    Availability,
    BookingPage,
    BookingRecord,
    BookingRefusal,
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
    """What booking needs to know about the place."""

    store: BookingStore
    inventory: GpuInventory
    rules: BookingRules
    zone: tzinfo
    """For the words, and for what a day is."""
    clock: Callable[[], datetime]
    new_id: Callable[[], str]
    """Not to be guessed, and never the same."""

    def now(self) -> datetime:
        """In whole seconds, as bookings are: who books “from now” must not be late by a millisecond."""
        return self.clock().astimezone(UTC).replace(microsecond=0)

    def model(self, word: str) -> str | Refusal:
        return model_named(word, self.inventory.stock().keys())

    async def calendar(
        self, reading: ReadTransaction, model: str, start: datetime, end: datetime, but: str = ""
    ) -> Calendar:
        """What is promised of a model between two instants, `but` for one booking."""
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

    async def find(self, query: Query) -> BookingPage:
        one_more = replace(query, limit=query.limit + 1)
        async with self.context.store.reading() as reading:
            found = tuple(await reading.search(one_more, self.context.now()))
        if len(found) <= query.limit:
            return BookingPage(found)
        last = found[query.limit - 1].booking
        return BookingPage(found[: query.limit], Cursor(last.start, last.id))

    async def within(self, start: datetime, end: datetime) -> Sequence[BookingRecord]:
        """All that count and touch the stretch: what a timeline shows."""
        async with self.context.store.reading() as reading:
            return await reading.within(start, end)

    async def person_tier(self, user: str, namespace: str = "") -> PersonTier:
        """Is this person booked now? A booking in the future does not count yet.

        In a namespace, a booking that was made for another one does not count either.
        """
        now = self.context.now()
        async with self.context.store.reading() as reading:
            own = await reading.of_person(normal(user), now)
        here = [each.booking for each in own if not (namespace and each.namespace) or _same(each, namespace)]
        return person_tier(here, normal(user), now)

    # --- room --------------------------------------------------------------------------------------------------------

    async def availability(self, first: date, count: int, models: Collection[str] = ()) -> tuple[Availability, ...]:
        """Of each model, and each of `count` days in the lab's zone. Also of models that are booked but gone."""
        return (await self.overview(first, count, models)).models

    async def overview(self, first: date, count: int, models: Collection[str] = ()) -> Overview:
        """The same, with the bookings and windows behind it: what a timeline shows, of one moment, read once."""
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
        """The first start that both the person's rules and the calendar allow; None if that never comes."""
        named = self.context.model(model)
        if isinstance(named, Refusal):
            return BookingRefusal(RefusalReason.NOT_FOUND, str(named), hint="carrel free")
        async with self.context.store.reading() as reading:
            own = await reading.of_person(normal(user), self.context.now() - self.context.rules.cooldown)
            start = earliest_start([record.booking for record in own], self.context.now(), self.context.rules)
            wish = Booking("", user, named, start, start + length, cards, share=share)
            return await first_start(self.context, reading, wish)

    # --- what happened -----------------------------------------------------------------------------------------------

    async def maintenance(self, start: datetime, end: datetime) -> Sequence[MaintenanceWindow]:
        async with self.context.store.reading() as reading:
            return await reading.maintenance(start, end)

    async def log(self, person: Person, before: int = 0, limit: int = 100) -> Sequence[LogEntry]:
        """A lab admin sees everything, others what concerns them."""
        async with self.context.store.reading() as reading:
            return await reading.log("" if person.is_lab_admin else person.email, before, limit)

    async def usage(self, start: datetime, end: datetime) -> tuple[PersonUsage, ...]:
        """By person and model, the most first. A share counts as its part of a card."""
        uses: dict[tuple[str, str], PersonUsage] = {}
        for record in await self.within(start, end):
            booking = record.booking
            hours = (min(booking.ends, end) - max(booking.start, start)) / timedelta(hours=1)
            cards = 1 / self.context.rules.shares_per_card if booking.share else booking.cards
            so_far = uses.get((booking.user, booking.model), PersonUsage(booking.user, booking.model, 0, 0.0))
            uses[booking.user, booking.model] = replace(
                so_far, bookings=so_far.bookings + 1, card_hours=so_far.card_hours + hours * cards
            )
        return tuple(sorted(uses.values(), key=lambda use: (-use.card_hours, use.user, use.model)))

    async def feed(self, secret: str) -> Sequence[BookingRecord] | None:
        """The bookings of the person whose feed this is; None if there is no such feed, or none any more."""
        async with self.context.store.reading() as reading:
            owner = await reading.feed_owner(hash_of(secret))
            if owner is None:
                return None
            return await reading.of_person(owner, self.context.now() - FEED_LOOKS_BACK)


async def first_start(context: BookingContext, reading: ReadTransaction, wish: Booking) -> datetime | None:
    """From the wish's start on, the first from which there is room for its length."""
    calendar = await context.calendar(reading, wish.model, wish.start, FOREVER, but=wish.id)
    return calendar.next_free(wish.cards, wish.end - wish.start, wish.start, wish.share)


def _same(record: BookingRecord, namespace: str) -> bool:
    return same_namespace(record.namespace, namespace)


def hash_of(secret: str) -> str:
    """Secrets are random and long, so a plain hash keeps them."""
    return hashlib.sha256(secret.encode()).hexdigest()
