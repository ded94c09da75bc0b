"""What the outbox promises, on SQLite and on PostgreSQL."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from carrel.bookings.notifications.interface import Outbox
from carrel.bookings.notifications.messages import Notification, Occasion
from carrel.bookings.notifications.notifier import notification_of
from carrel.bookings.records import LogEntry
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import SqlOutbox

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
WAYS = ("mail", "webhook")


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return SqlOutbox(database)


def a_letter(name: str = "one", **facts: str) -> Notification:
    return Notification(name, Occasion.BOOKED, "ada@lab.example", NOON, "b1", 3, facts)


async def log(database: Database, *entries: LogEntry) -> None:
    async with SqlBookings(database).writing() as writing:
        for entry in entries:
            await writing.write_log(entry)


def booked(person: str = "ada@lab.example") -> LogEntry:
    return LogEntry(NOON, "boss@lab.example", "booked", person, "b1", "she asked", {"model": "A6000"})


async def test_what_is_logged_becomes_a_letter_for_each_way_once(outbox: Outbox, database: Database) -> None:
    await log(database, booked(), LogEntry(NOON, "ada@lab.example", "feed-made", "ada@lab.example"))

    assert await outbox.collect(notification_of, WAYS) == 2
    assert await outbox.collect(notification_of, WAYS) == 0
    taken = await outbox.take(NOON, NOON + MINUTE, 10)
    name = "log-1-20261116T120000Z"
    assert [(each.way, each.letter.id, each.tries) for each in taken] == [("mail", name, 1), ("webhook", name, 1)]
    facts = {"model": "A6000", "actor": "boss@lab.example", "why": "she asked"}
    assert taken[0].letter == Notification(name, Occasion.BOOKED, "ada@lab.example", NOON, "b1", 1, facts)


async def test_who_sets_up_a_way_is_not_told_of_the_past(outbox: Outbox, database: Database) -> None:
    await log(database, booked())
    await outbox.collect(notification_of, ())
    await log(database, booked("ben@lab.example"))
    await outbox.collect(notification_of, ("mail",))

    assert [each.letter.person for each in await outbox.take(NOON, NOON + MINUTE, 10)] == ["ben@lab.example"]


async def test_a_letter_that_is_taken_is_nobody_elses_until_its_time_is_up(outbox: Outbox) -> None:
    await outbox.add([a_letter()], ("mail",), NOON)

    both = await asyncio.gather(*(outbox.take(NOON, NOON + MINUTE, 10) for _ in range(4)))
    assert sorted(map(len, both)) == [0, 0, 0, 1]
    assert await outbox.take(NOON + MINUTE / 2, NOON + 2 * MINUTE, 10) == []
    (again,) = await outbox.take(NOON + MINUTE, NOON + 2 * MINUTE, 10)
    assert (again.letter, again.tries) == (a_letter(), 2)


async def test_what_was_told_is_never_taken_again(outbox: Outbox) -> None:
    await outbox.add([a_letter()], ("mail",), NOON)
    (taken,) = await outbox.take(NOON, NOON + MINUTE, 10)
    await outbox.told(taken, NOON)
    await outbox.failed(taken, "a slow twin failed", NOON)
    await outbox.add([a_letter()], ("mail",), NOON)

    assert await outbox.take(NOON + timedelta(days=9), NOON + timedelta(days=10), 10) == []


async def test_what_failed_comes_again_when_it_was_said_or_never(outbox: Outbox) -> None:
    await outbox.add([a_letter("again"), a_letter("never")], ("mail",), NOON)
    first, second = await outbox.take(NOON, NOON + MINUTE, 10)
    await outbox.failed(first, "the server sleeps", NOON + 5 * MINUTE)
    await outbox.failed(second, "nobody lives there", None)

    assert await outbox.take(NOON + 4 * MINUTE, NOON + 9 * MINUTE, 10) == []
    assert [each.letter.id for each in await outbox.take(NOON + 5 * MINUTE, NOON + 9 * MINUTE, 10)] == ["again"]


async def test_a_note_is_logged_once_and_told_once(outbox: Outbox, database: Database) -> None:
    entry = LogEntry(NOON, "controller", "revoked", "ada@lab.example", details={"pod": "train-0"})

    assert await outbox.note("revoked-uid", entry)
    assert not await outbox.note("revoked-uid", entry)
    await outbox.collect(notification_of, ("mail",))
    (taken,) = await outbox.take(NOON, NOON + MINUTE, 10)
    assert (taken.letter.occasion, taken.letter.facts["pod"]) == (Occasion.REVOKED, "train-0")


async def test_old_letters_are_forgotten_and_those_on_their_way_are_not(outbox: Outbox) -> None:
    await outbox.add([a_letter("told"), a_letter("waiting")], ("mail",), NOON)
    told, _ = await outbox.take(NOON, NOON + MINUTE, 10)
    await outbox.told(told, NOON)

    assert await outbox.forget(NOON) == 0
    assert await outbox.forget(NOON + MINUTE) == 1
    assert [each.letter.id for each in await outbox.take(NOON + MINUTE, NOON + 2 * MINUTE, 10)] == ["waiting"]
