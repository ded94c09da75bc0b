"""Takes over bookings that were made elsewhere, as in MAIA's dashboard: those that run or are planned, and those that
are over, because their cooldown may not be.

All in one transaction: everything that is wrong is said at once, and then nothing is taken over. The rules for people
do not judge them again, for they were judged where they were made; but no model is promised more often than it is
there, and nobody has two at a time. The id follows from what is given, so the same bookings may be sent again, also
after they were changed or cancelled here: none is there twice.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.bookings.calendar import Calendar
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRecord, BookingRefusal, LogEntry, RefusalReason
from carrel.bookings.rules import FIRST_YEAR, LAST_YEAR, Booking
from carrel.bookings.store.bookings import SqlReading, SqlWriting
from carrel.dialects.booking_objects import namespace_named
from carrel.ids import BookingId
from carrel.ledger.refusals import Refusal
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.time import moment, seconds

NOTE = "taken over from another booking system"


@dataclass(frozen=True, slots=True)
class GivenBooking:
    """One GPU of a person, as the other system has it."""

    user: str
    model: str
    start: datetime
    end: datetime
    namespace: str = ""

    @property
    def id(self) -> BookingId:
        words = (normal(self.user), self.model, seconds(self.start), seconds(self.end), namespace_named(self.namespace))
        return BookingId(hashlib.sha256("\n".join(words).encode()).hexdigest()[:32])


@dataclass(frozen=True, slots=True)
class WrongItem:
    item: int
    """Which of the given bookings; the first is 0."""
    why: str


class Mistakes(Exception):
    """Nothing is taken over."""

    def __init__(self, mistakes: Sequence[WrongItem]) -> None:
        super().__init__(f"{len(mistakes)} mistakes")
        self.mistakes = mistakes


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    made: int
    there: int
    """They were there already."""


class BookingImport:
    def __init__(self, queries: BookingQueries) -> None:
        self._queries = queries

    async def take_over(
        self, given: Sequence[GivenBooking], by: Person, reason: str = ""
    ) -> ImportOutcome | BookingRefusal:
        """Raises `Mistakes`."""
        if not by.is_lab_admin:
            return BookingRefusal(RefusalReason.FORBIDDEN, "Only a lab admin may take bookings over.")
        if not self._queries.inventory.is_known:
            why = "The cluster has not been read yet, so the GPUs are not known yet."
            return BookingRefusal(RefusalReason.NOT_READY, why)
        mistakes, made, there = list[WrongItem](), 0, 0
        last, calendars = max((each.end for each in given), default=self._queries.now()), dict[str, Calendar]()
        async with self._queries.store.writing() as writing:
            now = self._queries.now()
            for item, each in enumerate(given):
                if await writing.get(each.id) is not None:
                    there += 1
                    continue
                booking = self._booking_of(each, now)
                if not isinstance(booking, Refusal) and now < booking.end and booking.model not in calendars:
                    calendars[booking.model] = await self._queries.calendar(writing, booking.model, now, last)
                wrong = await self._what_is_wrong(writing, each, booking, now, calendars)
                mistakes += [WrongItem(item, why) for why in wrong]
                if not wrong and not isinstance(booking, Refusal):
                    await self._add(writing, booking, each, by, reason, now)
                    if now < booking.end:
                        calendars[booking.model].add(booking)
                    made += 1
            if mistakes:
                raise Mistakes(mistakes)  # the transaction is taken back
        return ImportOutcome(made, there)

    def _booking_of(self, given: GivenBooking, now: datetime) -> Booking | Refusal:
        model = self._queries.model(given.model)
        if isinstance(model, Refusal):
            if given.end > now:
                return model
            model = given.model  # it is over: its cooldown alone matters
        return Booking(given.id, normal(given.user), model, given.start, given.end)

    async def _what_is_wrong(
        self,
        reading: SqlReading,
        given: GivenBooking,
        booking: Booking | Refusal,
        now: datetime,
        calendars: Mapping[str, Calendar],
    ) -> list[str]:
        found, zone = list(_what_is_wrong_by_itself(given)), self._queries.zone
        if isinstance(booking, Refusal):
            return [*found, str(booking)]
        if given.end <= given.start:
            return found
        for other in await reading.of(booking.user, "", booking.start):
            if other.booking.start < booking.end:
                since, until = (moment(each, zone) for each in (other.booking.start, other.booking.ends))
                found.append(f"{booking.user} has another booking at that time, from {since} to {until}")
        if booking.end > now:
            start = max(booking.start, now)
            if missing := calendars[booking.model].missing(booking, [(start, booking.end)]):
                since, until = (moment(each, zone) for each in (missing.start, missing.end))
                found.append(f"no {booking.model} is left from {since} to {until}")
        return found

    async def _add(
        self, writing: SqlWriting, booking: Booking, given: GivenBooking, by: Person, reason: str, now: datetime
    ) -> None:
        namespace = namespace_named(given.namespace)
        await writing.add(BookingRecord(booking, now, by.email, namespace=namespace, note=NOTE, reason=reason))
        details = {"model": booking.model, "start": seconds(booking.start), "end": seconds(booking.end), "gpus": "1"}
        await writing.write_log(LogEntry(now, by.email, "imported", booking.user, booking.id, reason, details))


def _what_is_wrong_by_itself(given: GivenBooking) -> Iterator[str]:
    if not is_address(normal(given.user)):
        yield f"user_email is {given.user!r}; expected an e-mail address such as ada@lab.example"
    if given.end <= given.start:
        yield f"it ends at {seconds(given.end)}, which is not after its start"
    if not (given.start.year >= FIRST_YEAR and given.end.year <= LAST_YEAR):
        yield f"its years are not from {FIRST_YEAR} to {LAST_YEAR}"
