"""Reads usage for one person who asks: from the bookings, and from the sums of what was held."""

from carrel.bookings.people import Person
from carrel.bookings.rules import Booking
from carrel.bookings.service import ServiceParts
from carrel.bookings.usage.figures import UsageQuestion, UsageRow, UsageSources, usage_rows


async def read_usage(service: ServiceParts, question: UsageQuestion, person: Person) -> list[UsageRow]:
    """Return what this person may see of it."""
    (rows,) = await read_usages(service, [question], person)
    return rows


async def read_usages(service: ServiceParts, questions: list[UsageQuestion], person: Person) -> list[list[UsageRow]]:
    """Return the same for several questions about one time. The bookings are read once: a year has thousands."""
    bookings, answers, first = None, [], questions[0]
    if not service.elsewhere:
        bookings = [record.booking for record in await service.queries.within(first.start, first.end)]
    for question in questions:
        sums = None
        if service.usage is not None:
            sums = await service.usage.sums(question.query(person), service.lab_zone)
        theirs = _bookings_of(question.about(person), bookings)
        sources = UsageSources(theirs, sums, service.queries.rules.shares_per_gpu)
        answers.append(usage_rows(question, sources, service.lab_zone))
    return answers


def _bookings_of(person: str | None, bookings: list[Booking] | None) -> list[Booking] | None:
    """None: of everybody; of bookings, that they are not known."""
    if person is None or bookings is None:
        return bookings
    return [booking for booking in bookings if booking.user == person]
