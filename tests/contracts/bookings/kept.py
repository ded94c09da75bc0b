"""Bookings that a test keeps in a store, and their names."""

from collections.abc import Iterable

from carrel.bookings.records import BookingRecord
from carrel.bookings.store.bookings import SqlBookings


async def keep(store: SqlBookings, *records: BookingRecord) -> None:
    async with store.writing() as writing:
        for record in records:
            await writing.add(record)


def names(records: Iterable[BookingRecord]) -> list[str]:
    return [record.booking.id for record in records]
