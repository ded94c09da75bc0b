"""The guarantees of the outbox, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.notifications.choices import MessageChoices, Recipient
from carrel.bookings.notifications.messages import Notification, Occasion
from carrel.bookings.notifications.notifier import notification_of
from carrel.bookings.records import LogEntry
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.outbox import Plan, Planned, SqlOutbox
from carrel.bookings.store.people import SqlPeople

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def by(*channels: str) -> Plan:
    """Everything at once, by these channels."""
    return lambda notification, _: [Planned(notification, channel, NOON) for channel in channels]


@pytest.fixture
def outbox(database: Database) -> SqlOutbox:
    return SqlOutbox(database)


def a_notification(name: str = "one", **facts: str) -> Notification:
    return Notification(name, Occasion.BOOKED, "ada@lab.example", NOON, "b1", facts)


def planned(name: str = "one") -> Planned:
    return Planned(a_notification(name), "mail", NOON)


async def log(database: Database, *entries: LogEntry) -> None:
    async with SqlBookings(database).writing() as writing:
        for entry in entries:
            await writing.write_log(entry)


def booked(person: str = "ada@lab.example") -> LogEntry:
    return LogEntry(NOON, "boss@lab.example", "booked", person, "b1", "she asked", {"model": "A6000"})


async def test_a_log_entry_becomes_one_notification_for_each_channel(outbox: SqlOutbox, database: Database) -> None:
    await log(database, booked(), LogEntry(NOON, "ada@lab.example", "feed-made", "ada@lab.example"))

    assert await outbox.collect(notification_of, by("mail", "webhook")) == 2
    assert await outbox.collect(notification_of, by("mail", "webhook")) == 0
    taken = await outbox.take(NOON, NOON + MINUTE, 10)
    name = "log-1-20261116T120000Z"
    assert [(each.channel, each.notifications[0].id, each.tries) for each in taken] == [
        ("mail", name, 1),
        ("webhook", name, 1),
    ]
    facts = {"model": "A6000", "actor": "boss@lab.example", "why": "she asked"}
    assert taken[0].notifications[0] == Notification(name, Occasion.BOOKED, "ada@lab.example", NOON, "b1", facts)


async def test_a_new_channel_does_not_send_notifications_about_the_past(outbox: SqlOutbox, database: Database) -> None:
    await log(database, booked())
    await outbox.collect(notification_of, by())
    await log(database, booked("ben@lab.example"))
    await outbox.collect(notification_of, by("mail"))

    assert [each.notifications[0].person for each in await outbox.take(NOON, NOON + MINUTE, 10)] == ["ben@lab.example"]


async def test_a_mark_is_set_and_removed_once_and_each_time_the_log_says_so(
    outbox: SqlOutbox, database: Database
) -> None:
    await outbox.collect(notification_of, by("mail"))
    every = await asyncio.gather(*(outbox.set_mark("short-b1", True, booked()) for _ in range(4)))
    assert sorted(every) == [False, False, False, True]
    assert await outbox.marks("short-") == {"short-b1"} and await outbox.marks("short_") == frozenset()

    assert await outbox.set_mark("short-b1", False, booked("ben@lab.example"))
    assert not await outbox.set_mark("short-b1", False, booked("eve@lab.example"))

    assert await outbox.marks("short-") == frozenset()
    await outbox.collect(notification_of, by("mail"))
    taken = await outbox.take(NOON, NOON + MINUTE, 10)
    assert [each.notifications[0].person for each in taken] == ["ada@lab.example", "ben@lab.example"]


async def test_a_notification_that_is_taken_is_given_to_nobody_else_for_a_while(outbox: SqlOutbox) -> None:
    await outbox.add([planned()])

    both = await asyncio.gather(*(outbox.take(NOON, NOON + MINUTE, 10) for _ in range(4)))
    assert sorted(map(len, both)) == [0, 0, 0, 1]
    assert await outbox.take(NOON + MINUTE / 2, NOON + 2 * MINUTE, 10) == []
    (again,) = await outbox.take(NOON + MINUTE, NOON + 2 * MINUTE, 10)
    assert (again.notifications, again.tries) == ((a_notification(),), 2)


async def test_a_delivered_notification_is_never_taken_again(outbox: SqlOutbox) -> None:
    await outbox.add([planned()])
    (taken,) = await outbox.take(NOON, NOON + MINUTE, 10)
    await outbox.delivered(taken, NOON)
    await outbox.failed(taken, "a slow twin failed", NOON)
    await outbox.add([planned()])

    assert await outbox.take(NOON + timedelta(days=9), NOON + timedelta(days=10), 10) == []


async def test_a_failed_notification_is_due_again_later_or_given_up(outbox: SqlOutbox) -> None:
    await outbox.add([planned("again"), planned("never")])
    first, second = await outbox.take(NOON, NOON + MINUTE, 10)
    await outbox.failed(first, "the server sleeps", NOON + 5 * MINUTE)
    await outbox.failed(second, "nobody lives there", None)

    assert await outbox.take(NOON + 4 * MINUTE, NOON + 9 * MINUTE, 10) == []
    assert [each.notifications[0].id for each in await outbox.take(NOON + 5 * MINUTE, NOON + 9 * MINUTE, 10)] == [
        "again"
    ]


async def test_a_report_is_logged_once_and_notified_once(outbox: SqlOutbox, database: Database) -> None:
    entry = LogEntry(NOON, "controller", "revoked", "ada@lab.example", details={"pod": "train-0"})

    assert await outbox.note("revoked-uid", entry)
    assert not await outbox.note("revoked-uid", entry)
    await outbox.collect(notification_of, by("mail"))
    (taken,) = await outbox.take(NOON, NOON + MINUTE, 10)
    assert (taken.notifications[0].occasion, taken.notifications[0].facts["pod"]) == (Occasion.REVOKED, "train-0")


async def test_old_notifications_are_deleted_unless_they_are_under_way(outbox: SqlOutbox) -> None:
    await outbox.add([planned("told"), planned("waiting")])
    told, _ = await outbox.take(NOON, NOON + MINUTE, 10)
    await outbox.delivered(told, NOON)

    assert await outbox.forget(NOON) == 0
    assert await outbox.forget(NOON + MINUTE) == 1
    assert [each.notifications[0].id for each in await outbox.take(NOON + MINUTE, NOON + 2 * MINUTE, 10)] == ["waiting"]


async def test_a_person_is_told_as_they_chose_and_others_by_mail(outbox: SqlOutbox, database: Database) -> None:
    people, chosen = SqlPeople(database), MessageChoices(False, {"slack": "https://hooks.example/x"})
    await people.choose_messages("ada@lab.example", chosen)
    await people.choose_zone("ada@lab.example", ZoneInfo("Asia/Kolkata"))
    await log(database, booked(), booked("ben@lab.example"))
    seen = dict[str, Recipient]()

    def plan(notification: Notification, recipient: Recipient) -> list[Planned]:
        seen[notification.person] = recipient
        return [Planned(notification, "slack", NOON)]

    await outbox.collect(notification_of, plan)

    ada = Recipient("ada@lab.example", ZoneInfo("Asia/Kolkata"), chosen)
    assert seen == {"ada@lab.example": ada, "ben@lab.example": Recipient("ben@lab.example")}
    assert [each.recipient for each in await outbox.take(NOON, NOON + MINUTE, 10)] == list(seen.values())


async def test_failures_are_listed_until_they_are_over_or_old(outbox: SqlOutbox) -> None:
    await outbox.add([planned("again"), planned("never"), planned("told")])
    first, second, third = await outbox.take(NOON, NOON + MINUTE, 10)
    await outbox.failed(first, "the server sleeps", NOON + MINUTE)
    await outbox.failed(second, "nobody lives there", None)
    await outbox.delivered(third, NOON)

    found = await outbox.failures(NOON, 10)
    assert [(each.why, each.again) for each in found] == [
        ("the server sleeps", NOON + MINUTE),
        ("nobody lives there", None),
    ]
    assert len(await outbox.failures(NOON, 10, "ada@lab.example")) == 2
    assert await outbox.failures(NOON, 10, "ben@lab.example") == []
    old = await outbox.failures(NOON + timedelta(days=9), 10)
    assert [each.why for each in old] == ["the server sleeps"]


async def test_what_waited_for_a_morning_is_one_delivery_for_each_person_and_channel(outbox: SqlOutbox) -> None:
    morning = NOON + timedelta(hours=20)

    def held(name: str, channel: str = "mail", person: str = "ada@lab.example") -> Planned:
        notification = replace(a_notification(name), person=person)
        return Planned(notification, channel, NOON, morning)

    of_ben = held("of-ben", person="ben@lab.example")
    await outbox.add([*(held(f"n{number}") for number in range(5)), held("n0", "slack"), of_ben])
    assert await outbox.take(morning - MINUTE, morning, 10) == []

    taken = list(await outbox.take(morning, morning + MINUTE, 1))
    assert [each.id for each in taken[0].notifications] == [f"n{number}" for number in range(5)], "none is left behind"
    taken += await outbox.take(morning, morning + MINUTE, 10)
    assert sorted((each.channel, each.recipient.person, len(each.notifications)) for each in taken) == [
        ("mail", "ada@lab.example", 5),
        ("mail", "ben@lab.example", 1),
        ("slack", "ada@lab.example", 1),
    ]
    await outbox.failed(taken[0], "it sleeps", morning + 2 * MINUTE)
    for each in taken[1:]:
        await outbox.delivered(each, morning)
    (again,) = await outbox.take(morning + 2 * MINUTE, morning + 3 * MINUTE, 10)
    assert (len(again.notifications), again.tries, again.held_until) == (5, 2, morning)
