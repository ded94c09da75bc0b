"""Groups in the booking store, on SQLite and on PostgreSQL: whose bookings, and who is in them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from carrel.bookings.groups import BookingGroup, GroupPerson, GroupSource
from carrel.bookings.queries import group_members
from carrel.bookings.records import BookingRecord, Query
from carrel.bookings.rules import Booking
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from carrel.ids import BookingId
from tests.contracts.bookings.kept import keep, names

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ADA, BOB, EVE = "ada@lab.org", "bob@lab.org", "eve@lab.org"


def a_record(name: str, start: float, user: str = ADA, group: str = "") -> BookingRecord:
    booking = Booking(BookingId(name), user, "A6000", NOW + start * DAY, NOW + (start + 1) * DAY, group=group)
    return BookingRecord(booking, created_at=NOW, created_by=user)


async def test_bookings_of_a_person_and_of_a_group_are_kept_apart(store: SqlBookings) -> None:
    shared = a_record("shared", 1, group="vision")
    await keep(store, a_record("own", 0), shared, a_record("old", -5, group="vision"), a_record("other", 2, BOB, "nlp"))

    async with store.reading() as reading:
        assert await reading.get("shared") == shared
        assert names(await reading.of(ADA, "", NOW - 9 * DAY)) == ["own"]
        assert names(await reading.of("", "vision", NOW)) == ["shared"]
        assert names(await reading.of("", "vision", NOW - 9 * DAY)) == ["old", "shared"]
        assert names(await reading.of("", "Vision", NOW - 9 * DAY)) == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param(Query(user=ADA), ["own"], id="a person's own"),
        pytest.param(Query(groups=frozenset({"vision"})), ["shared"], id="of one group"),
        pytest.param(
            Query(user=ADA, groups=frozenset({"vision", "nlp"})), ["own", "shared", "other"], id="own and shared"
        ),
        pytest.param(Query(text="VISI"), ["shared"], id="by a part of the group's name"),
    ],
)
async def test_bookings_of_groups_are_searched(store: SqlBookings, query: Query, found: list[str]) -> None:
    await keep(store, a_record("own", 0), a_record("shared", 1, group="vision"), a_record("other", 2, BOB, "nlp"))

    async with store.reading() as reading:
        assert names(await reading.search(query, NOW)) == found


async def test_the_group_of_a_booking_stays_when_it_is_changed(store: SqlBookings) -> None:
    record = a_record("shared", 1, group="vision")
    await keep(store, record)
    longer = replace(record, booking=replace(record.booking, end=NOW + 5 * DAY), version=2)

    async with store.writing() as writing:
        await writing.replace(longer)

    async with store.reading() as reading:
        assert await reading.get("shared") == longer


async def test_an_admin_lists_people_and_takes_them_off_the_list(store: SqlBookings) -> None:
    async with store.writing() as writing:
        assert await writing.list_in_group("vision", ADA, is_manager=False)
        assert not await writing.list_in_group("vision", ADA, is_manager=False), "known already"
        assert await writing.list_in_group("vision", ADA, is_manager=True)
        assert await writing.list_in_group("vision", BOB, is_manager=False)

    async with store.reading() as reading:
        people = (GroupPerson(ADA, is_manager=True), GroupPerson(BOB))
        assert await reading.group("vision") == BookingGroup("vision", people)
        assert await reading.groups_of(ADA) == {"vision": True}
        assert await reading.groups_of(BOB) == {"vision": False}
        assert await reading.groups_of(EVE) == {}
        assert await reading.group("nlp") == BookingGroup("nlp")
    async with store.writing() as writing:
        assert await writing.unlist_from_group("vision", BOB)
        assert not await writing.unlist_from_group("vision", BOB)
    async with store.reading() as reading:
        assert await group_members(reading) == {"vision": {ADA}}


async def test_people_whose_sign_in_tells_the_group_are_members(database: Database, store: SqlBookings) -> None:
    people = SqlPeople(database)
    await people.saw_groups(BOB, GroupSource.IDENTITY_PROVIDER, ["vision", "staff"], NOW)
    await people.saw_groups(EVE, GroupSource.CLUSTER, ["nlp"], NOW)
    await people.saw_groups(ADA, GroupSource.CLUSTER, ["vision"], NOW)
    await keep(store, a_record("b1", 0, group="nlp"))
    async with store.writing() as writing:
        await writing.list_in_group("vision", ADA, is_manager=True)

    async with store.reading() as reading:
        assert await group_members(reading) == {"vision": {ADA, BOB}, "nlp": {EVE}}, "staff has no bookings"
        assert (await reading.group("vision")).people == (
            GroupPerson(ADA, is_manager=True, seen_at=NOW),
            GroupPerson(BOB, listed=False, seen_at=NOW),
        )
        assert await reading.groups_of(ADA) == {"vision": True}
        assert await reading.groups_of(BOB) == {"vision": False, "staff": False}

    await people.saw_groups(BOB, GroupSource.IDENTITY_PROVIDER, ["staff"], NOW)
    await people.sign_out_everywhere(EVE, NOW)
    async with store.reading() as reading:
        assert await group_members(reading) == {"vision": {ADA}}, "who left the group, and who was signed out"
