"""What buttons in messages do: a class for each act, which says it to the person first, and then does it.

An act goes through the same commands as the pages, with the same rules and the same log. The version of the booking is
checked in the transaction that changes it: of two presses, whichever link they came by, one changes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from carrel.bookings.notifications.buttons import Button, ButtonKind
from carrel.bookings.people import Person, Role, Scope
from carrel.bookings.records import BookingRecord, BookingRefusal, Changes, RefusalReason
from carrel.bookings.service import ServiceParts
from carrel.parsing.time import moment

A_DAY = timedelta(days=1)
REASON = "by a button in a message"


@dataclass(frozen=True, slots=True)
class Prospect:
    """What pressing the button would do."""

    says: str
    problems: tuple[str, ...] = ()
    """Why it would be refused."""


class ButtonAct(Protocol):
    async def prospect(self, service: ServiceParts, button: Button, by: Person) -> Prospect: ...

    async def press(self, service: ServiceParts, button: Button, by: Person) -> str | BookingRefusal:
        """Do it; what was done, in a sentence."""
        ...


class ExtendByADay:
    async def prospect(self, service: ServiceParts, button: Button, by: Person) -> Prospect:
        record = await _booking_of(service, button)
        if isinstance(record, BookingRefusal):
            return Prospect("", (record.message,))
        answer = await service.commands.preview_change(button.booking, _a_day_more(record), by)
        refused = answer.messages if isinstance(answer, BookingRefusal) else [each.message for each in answer.problems]
        was, then = (moment(each, service.queries.zone) for each in (record.booking.end, record.booking.end + A_DAY))
        return Prospect(f"{_named(record)} ends {was}. Then it will end {then}.", tuple(refused))

    async def press(self, service: ServiceParts, button: Button, by: Person) -> str | BookingRefusal:
        record = await _booking_of(service, button)
        if isinstance(record, BookingRefusal):
            return record
        answer = await service.commands.change(button.booking, _a_day_more(record), by, button.version)
        if isinstance(answer, BookingRefusal):
            return answer
        return f"Extended: the booking ends {moment(answer.booking.end, service.queries.zone)}."


class EndNow:
    async def prospect(self, service: ServiceParts, button: Button, by: Person) -> Prospect:
        record = await _booking_of(service, button)
        if isinstance(record, BookingRefusal):
            return Prospect("", (record.message,))
        ends = moment(record.booking.end, service.queries.zone)
        return Prospect(f"{_named(record)} ends {ends}. {service.commands.after_cancelling(record)}")

    async def press(self, service: ServiceParts, button: Button, by: Person) -> str | BookingRefusal:
        answer = await service.commands.cancel(button.booking, by, REASON, button.version)
        return answer if isinstance(answer, BookingRefusal) else "The booking has ended. Thank you for giving it back."


ACTS: Mapping[ButtonKind, ButtonAct] = {ButtonKind.EXTEND: ExtendByADay(), ButtonKind.END: EndNow()}


def person_of_button(button: Button) -> Person:
    """They may do what any member may with their own bookings, and nothing of other roles that they have."""
    return Person(button.person, roles=frozenset({Role.MEMBER}), scopes=frozenset({Scope.READ, Scope.BOOK}))


async def _booking_of(service: ServiceParts, button: Button) -> BookingRecord | BookingRefusal:
    record = await service.queries.get(button.booking)
    if record is None:
        return BookingRefusal(RefusalReason.NOT_FOUND, "There is no such booking.")
    if record.version != button.version:
        why = "The booking was changed since this message was sent. Look at it before you change it again."
        return BookingRefusal(RefusalReason.CHANGED, why)
    return record


def _named(record: BookingRecord) -> str:
    booking = record.booking
    what = f"booking of {booking.gpus} × {booking.model}"
    return f"The {what} for {booking.group}" if booking.group else f"The {what}"


def _a_day_more(record: BookingRecord) -> Changes:
    return Changes(end=record.booking.end + A_DAY, reason=REASON)
