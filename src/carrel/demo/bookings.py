"""The bookings of the demo: each person makes their own, by the commands of the booking service, before it starts.

With a history, simulated days pass first: people of the lab book as the rules and the free GPUs allow it.
"""

import itertools
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from carrel.bookings.commands import BookingCommands
from carrel.bookings.inventory import GpuInventory
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.records import BookingRequest
from carrel.cluster.options import utc_now
from carrel.configuration.schema import BookingRules
from carrel.ledger.gpus import Node

if TYPE_CHECKING:
    from carrel.bookings.store.database import Database

PEOPLE = (
    *("amy", "bo", "carl", "dora", "emil", "fay", "gus", "ines", "jan", "kim", "lou", "max", "olga", "paul", "rosa"),
    *("sven", "tess", "uma", "vera", "will", "xia", "yara", "zeno"),
)
"""Who booked in the past. They have no pods."""
A_DAY = 4
"""So many of them ask for a booking on each day; the rules refuse most."""


@dataclass(frozen=True, slots=True)
class DemoBooking:
    person: str
    model: str
    lasts: timedelta
    begins_in: timedelta = timedelta()


def bookings_of(people: Sequence[str], nodes: Sequence[Node]) -> list[DemoBooking]:
    """One for each, each of another model. The last one begins in two days, the others begin at once."""
    models = models_of(nodes)
    if not models:
        return []
    lasts = [timedelta(days=3 + 2 * number) for number in range(len(people))]
    begins_in = [timedelta()] * (len(people) - 1) + [timedelta(days=2)]
    return [DemoBooking(*each) for each in zip(people, itertools.cycle(models), lasts, begins_in, strict=False)]


def models_of(nodes: Sequence[Node]) -> list[str]:
    return sorted({gpu.model for node in nodes for gpu in node.gpus if not gpu.unusable})


def has_one_model(node: Node) -> bool:
    """Return whether one of its GPUs can be asked for by its model, also where the kubelet chooses which."""
    return len({gpu.model for gpu in node.gpus}) == 1


def history(days: int, nodes: Sequence[Node], random: Random) -> Iterable[tuple[timedelta, DemoBooking]]:
    """Yield what people ask for on each of the days until now, and how long ago that is."""
    models = models_of(nodes)
    for hours in range(24 * days if models else 0, 0, -24 // A_DAY):
        person, model = f"{random.choice(PEOPLE)}@lab.example", random.choice(models)
        lasts, later = timedelta(days=random.randint(1, 9)), timedelta(days=random.choice((0, 0, 1, 3)))
        yield timedelta(hours=hours), DemoBooking(person, model, lasts, later)


async def make_bookings(
    database: str, nodes: Sequence[Node], past: Iterable[tuple[timedelta, DemoBooking]], bookings: Iterable[DemoBooking]
) -> None:
    """One that is refused is left out: a cluster with one GPU has no room for all of them. What was booked in the past
    leaves every other GPU of a node free."""
    from carrel.bookings.store.database import Database  # it takes seconds on a slow machine; other things come first

    store, now = Database(database), utc_now()
    async with aclosing(store):
        await store.migrate()
        for_past = [replace(node, gpus=node.gpus[1::2]) for node in nodes]
        for ago, booking in past:
            await _book(store, for_past, booking, (now - ago).replace(minute=0, second=0))
        for booking in bookings:
            await _book(store, nodes, booking, now)


async def _book(store: "Database", nodes: Sequence[Node], booking: DemoBooking, now: datetime) -> None:
    from carrel.bookings.store.bookings import SqlBookings

    queries = BookingQueries(SqlBookings(store), GpuInventory(nodes), BookingRules(), UTC, lambda: now)
    start = queries.now() + booking.begins_in
    await BookingCommands(queries).create(BookingRequest(booking.model, booking.lasts, start), Person(booking.person))
