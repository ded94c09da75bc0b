"""Reads usage for one person who asks: from the bookings, and from the sums of what was held."""

from collections.abc import Sequence

from carrel.bookings.capacity import BookedTime
from carrel.bookings.people import Person
from carrel.bookings.service import ServiceParts
from carrel.bookings.usage.figures import UsageQuestion, UsageRow, UsageSources, usage_rows


async def read_usage(service: ServiceParts, question: UsageQuestion, person: Person) -> list[UsageRow]:
    """Return what this person may see of it."""
    (rows,) = await read_usages(service, [question], person)
    return rows


async def read_usages(
    service: ServiceParts, questions: Sequence[UsageQuestion], person: Person
) -> list[list[UsageRow]]:
    """Return the same for several questions about one time. The bookings are read once: a year has thousands."""
    about = [question.about(person) for question in questions]
    bookings = await _booked(service, questions[0], person.email if all(about) else None)
    parts = {name: model.part for name, model in service.queries.inventory.stock().items()}
    answers = []
    for question, whose in zip(questions, about, strict=True):
        sums = None
        if service.usage is not None:
            sums = await service.usage.sums(question.query(person), service.lab_zone)
        theirs = bookings
        if bookings is not None and whose is not None:
            theirs = [booking for booking in bookings if booking.user == whose]
        sources = UsageSources(theirs, sums, service.queries.rules.shares_per_gpu, parts)
        answers.append(usage_rows(question, sources, service.lab_zone))
    return answers


async def _booked(service: ServiceParts, question: UsageQuestion, person: str | None) -> Sequence[BookedTime] | None:
    """None: bookings are made elsewhere."""
    if service.elsewhere:
        return None
    async with service.queries.store.reading() as reading:
        return await reading.booked(question.start, question.end, person)
