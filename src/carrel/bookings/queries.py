"""Reads bookings: who has what, what is free, and when. Changes nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, tzinfo

from carrel.bookings.calendar import Calendar, days
from carrel.bookings.capacity import ModelCapacity, model_named
from carrel.bookings.groups import BookingGroup
from carrel.bookings.inventory import GpuInventory
from carrel.bookings.maintenance import Maintenance, closings
from carrel.bookings.people import Person
from carrel.bookings.records import (
    Availability,
    BookingRecord,
    BookingRefusal,
    BookingSearchResult,
    Cursor,
    FreeGpus,
    LogEntry,
    LogQuery,
    Overview,
    Query,
    RefusalReason,
    State,
)
from carrel.bookings.rules import Booking, earliest_start
from carrel.bookings.sign_in.secrets import hashed
from carrel.bookings.store.bookings import SqlBookings, SqlReading
from carrel.configuration.schema import BookingRules
from carrel.dialects.maia import same_namespace
from carrel.ledger.gpus import MiB
from carrel.ledger.refusals import Refusal

FOREVER = datetime.max.replace(tzinfo=UTC)
FEED_LOOKS_BACK = timedelta(days=90)
FEED_CANCELLED = 50
"""How many cancelled bookings a feed shows: anybody can book and cancel as often as they like."""


REVOKED = "revoked"
"""The action of a log entry: a pod was told to give its GPU back, for a booking."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A person who reads bookings, and the groups that they are in: whether they are a manager there."""

    person: Person
    groups: Mapping[str, bool] = field(default_factory=dict)

    def is_theirs(self, booking: Booking) -> bool:
        """Their own, or their group's."""
        return booking.group in self.groups if booking.group else booking.user == self.person.email

    def may_see(self, record: BookingRecord) -> bool:
        """Notes and namespaces too."""
        is_maker = record.booking.user == self.person.email
        return is_maker or self.is_theirs(record.booking) or self.person.is_lab_admin

    def may_change(self, record: BookingRecord) -> bool:
        group = record.booking.group
        is_allowed = self.groups.get(group, False) if group else record.booking.user == self.person.email
        return is_allowed or self.person.is_lab_admin


async def group_members(reading: SqlReading) -> Mapping[str, frozenset[str]]:
    """Who may use the bookings of each group, in two reads, however many groups there are. A group without people is
    not in it: its bookings entitle nobody."""
    return {group.name: group.members for group in await reading.groups()}


@dataclass(slots=True)
class BookingQueries:
    """What is booked and what is free: the store, the GPUs, the rules and the lab's clock."""

    store: SqlBookings
    inventory: GpuInventory
    rules: BookingRules
    """Those in force; they change with the configuration."""
    zone: tzinfo
    """It says what a day is, and how times are written: the lab's, or that of the person who asks."""
    clock: Callable[[], datetime]

    def take_rules(self, rules: BookingRules) -> None:
        self.rules = rules

    def now(self) -> datetime:
        """In whole seconds, like bookings: a booking “from now” must not start in the past by a millisecond."""
        return self.clock().astimezone(UTC).replace(microsecond=0)

    def today(self) -> date:
        return self.now().astimezone(self.zone).date()

    def model(self, word: str) -> str | Refusal:
        return model_named(word, self.inventory.stock().keys())

    # --- bookings ----------------------------------------------------------------------------------------------------

    async def get(self, id: str) -> BookingRecord | None:
        async with self.store.reading() as reading:
            return await reading.get(id)

    async def find(self, query: Query) -> BookingSearchResult:
        one_more = replace(query, limit=query.limit + 1)
        async with self.store.reading() as reading:
            found = tuple(await reading.search(one_more, self.now()))
        if len(found) <= query.limit:
            return BookingSearchResult(found)
        last = found[query.limit - 1].booking
        return BookingSearchResult(found[: query.limit], Cursor(last.start, last.id))

    async def within(self, start: datetime, end: datetime) -> Sequence[BookingRecord]:
        """All bookings that count and overlap [start, end): what a timeline shows."""
        async with self.store.reading() as reading:
            return await reading.within(start, end)

    async def active_booking(self, user: str, namespace: str = "") -> Booking | None:
        """The person's own booking that is active now; of several the one that ends last, because a pod may run as long
        as any of them. With a namespace, a booking that was made for another one does not count."""
        now = self.now()
        async with self.store.reading() as reading:
            own = await reading.of(user, "", now)
        active = [
            each.booking
            for each in own
            if each.booking.is_active(now)
            and (not (namespace and each.namespace) or same_namespace(each.namespace, namespace))
        ]
        return max(active, key=lambda booking: (booking.ends, booking.id), default=None)

    # --- availability ------------------------------------------------------------------------------------------------

    async def availability(self, first: date, count: int, models: Collection[str] = ()) -> tuple[Availability, ...]:
        """What is free of each model on each of `count` days. Models that are gone count, too."""
        return (await self.overview(first, count, models)).models

    async def overview(self, first: date, count: int, models: Collection[str] = ()) -> Overview:
        """The same, with the bookings and maintenance windows: what a timeline shows, from one read."""
        now, wanted = self.now(), days(first, count, self.zone)
        earliest = min([now, *(day.start for day in wanted)])
        async with self.store.reading() as reading:
            records = await reading.within(earliest, FOREVER)
            kept = await reading.maintenance(earliest, FOREVER)
        bookings: dict[str, list[Booking]] = {}
        for record in records:
            bookings.setdefault(record.booking.model, []).append(record.booking)
        gone = {model: ModelCapacity(model, 0, MiB(0)) for model in bookings}
        stock = {**gone, **self.inventory.stock()}
        rules, unheld = self.rules, self.inventory.unheld()
        found = []
        for model in sorted(set(models or stock) & stock.keys()):
            closed = closings(kept, stock[model])
            calendar = Calendar(model, stock[model].gpus, bookings.get(model, ()), closed, rules.shares_per_gpu)
            found.append(
                Availability(
                    stock=stock[model],
                    now=calendar.free_now(now, rules.min_duration),
                    days=tuple(calendar.by_day(wanted)),
                    shares_per_gpu=rules.shares_per_gpu,
                    unheld_now=unheld.get(model, 0) if unheld is not None else None,
                )
            )
        return Overview(tuple(found), records, kept)

    async def free_gpus(self) -> tuple[FreeGpus, ...]:
        """What a pod without a booking can get now of each model. Without a cluster, only the calendar says it."""
        unheld, next_unheld = self.inventory.unheld(), self.inventory.next_unheld()
        if unheld is not None:
            return tuple(FreeGpus(model, gpus, next_unheld.get(model)) for model, gpus in unheld.items())
        free = [(each, max(0, each.now.unbooked)) for each in await self.availability(self.today(), 0)]
        return tuple(FreeGpus(each.stock.model, gpus, None if gpus else each.now.next_start) for each, gpus in free)

    async def next_free(self, wanted: Booking) -> datetime | BookingRefusal | None:
        """The first start that both the rules and the calendar allow; None if there is none. Only how long the wanted
        booking is counts, not when it is."""
        named = self.model(wanted.model)
        if isinstance(named, Refusal):
            return BookingRefusal(RefusalReason.NOT_FOUND, str(named), hint="carrel free")
        async with self.store.reading() as reading:
            return await self.first_allowed_start(reading, replace(wanted, model=named))

    async def first_allowed_start(self, reading: SqlReading, wanted: Booking) -> datetime | None:
        """The first start that both the rules and the calendar allow for a booking of this length."""
        start = earliest_start(await self.own(reading, wanted), self.now(), self.rules)
        return await self.first_start(reading, replace(wanted, start=start, end=start + (wanted.end - wanted.start)))

    async def own(self, reading: SqlReading, wanted: Booking) -> list[Booking]:
        """The bookings of the same person or group that a rule may still look at."""
        own = await reading.of(wanted.user, wanted.group, self.now() - self.rules.cooldown)
        return [record.booking for record in own]

    async def first_start(self, reading: SqlReading, wanted: Booking) -> datetime | None:
        """The first start, not before the wanted one, from which there is room for its length."""
        calendar = await self.calendar(reading, wanted.model, wanted.start, FOREVER, but=wanted.id)
        return calendar.next_free(wanted.gpus, wanted.end - wanted.start, wanted.start, wanted.share)

    async def calendar(
        self,
        reading: SqlReading,
        model: str,
        start: datetime,
        end: datetime,
        but: str = "",
        planned: Maintenance | None = None,
    ) -> Calendar:
        """What is booked of a model between two instants, without the booking `but`, and as if the maintenance
        `planned` were set."""
        stock = self.inventory.stock().get(model) or ModelCapacity(model, 0, MiB(0))
        windows = await reading.maintenance(start, end, model)
        records = await reading.within(start, end, model)
        others = [record.booking for record in records if record.booking.id != but]
        closed = closings([*(each for each in windows if each != planned), *([planned] if planned else [])], stock)
        return Calendar(model, stock.gpus, others, closed, self.rules.shares_per_gpu)

    # --- groups ------------------------------------------------------------------------------------------------------

    async def groups(self) -> Sequence[BookingGroup]:
        """All groups that may have bookings."""
        async with self.store.reading() as reading:
            return await reading.groups()

    async def reader(self, person: Person) -> Reader:
        async with self.store.reading() as reading:
            return Reader(person, await reading.groups_of(person.email))

    async def groups_to_book_for(self, person: Person) -> Sequence[str]:
        """Those that the person manages; for a lab admin all."""
        if person.is_lab_admin:
            return [group.name for group in await self.groups()]
        return sorted(name for name, is_manager in (await self.reader(person)).groups.items() if is_manager)

    # --- log -----------------------------------------------------------------------------------------------

    async def maintenance(self, start: datetime, end: datetime) -> Sequence[Maintenance]:
        async with self.store.reading() as reading:
            return await reading.maintenance(start, end)

    async def log(self, person: Person, query: LogQuery) -> Sequence[LogEntry]:
        """A lab admin sees everything, other people what concerns them."""
        async with self.store.reading() as reading:
            return await reading.log(query if person.is_lab_admin else replace(query, subject=person.email))

    async def actions(self) -> Sequence[str]:
        """What the log has entries of."""
        async with self.store.reading() as reading:
            return await reading.actions()

    async def losses(self, email: str, since: datetime) -> Sequence[LogEntry]:
        """When pods of a person were told to give their GPUs back, the newest first."""
        async with self.store.reading() as reading:
            return await reading.log(LogQuery(email, action=REVOKED, start=since))

    async def feed(self, secret: str) -> Sequence[BookingRecord] | None:
        """The bookings of the feed's owner and of their groups; None if there is no such feed, or if it was revoked."""
        async with self.store.reading() as reading:
            owner = await reading.feed_owner(hashed(secret))
            if owner is None:
                return None
            now, groups = self.now(), await reading.groups_of(owner)
            since = now - FEED_LOOKS_BACK
            theirs = list(await reading.of(owner, "", since))
            for group in groups:
                theirs += await reading.of(owner, group, since)
            # A calendar keeps what it was told, until it is told that it was cancelled.
            cancelled = Query(
                user=owner,
                groups=frozenset(groups),
                states=frozenset({State.CANCELLED}),
                start=since,
                newest_first=True,
                limit=FEED_CANCELLED,
            )
            theirs += [each for each in await reading.search(cancelled, now) if not each.booking.counts]
            return sorted(theirs, key=lambda record: (record.booking.start, record.booking.id))
