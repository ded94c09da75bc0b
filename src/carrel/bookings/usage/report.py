"""Reads usage for one person who asks: from the bookings, and from the sums of what was held."""

from carrel.bookings.people import Person
from carrel.bookings.service import ServiceParts
from carrel.bookings.usage.figures import UsageQuestion, UsageRow, UsageSources, usage_rows


async def read_usage(service: ServiceParts, question: UsageQuestion, person: Person) -> list[UsageRow]:
    """Return what this person may see of it."""
    queries, about = service.queries, question.about(person)
    bookings = None
    if not service.elsewhere:
        found = await queries.within(question.start, question.end)
        bookings = [each.booking for each in found if about is None or each.booking.user == about]
    sums = await service.usage.sums(question.query(person), service.lab_zone) if service.usage is not None else None
    return usage_rows(question, UsageSources(bookings, sums, queries.rules.shares_per_gpu), service.lab_zone)
