"""Signing out everywhere also ends the calendar feed."""

from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.bookings.store.people import SqlPeople
from tests.kit.booking import MEMBER, NOW, OTHER


async def test_signing_out_everywhere_ends_the_address_of_the_calendar_too(database: Database) -> None:
    store = SqlBookings(database)
    async with store.writing() as writing:
        await writing.set_feed(MEMBER, "hers")
        await writing.set_feed(OTHER, "his")

    await SqlPeople(database).sign_out_everywhere(MEMBER, NOW)

    async with store.reading() as reading:
        assert await reading.feed_owner("hers") is None
        assert await reading.feed_owner("his") == OTHER
