"""The bookings that the demo makes before its booking service starts."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from carrel.bookings.records import BookingRecord
from carrel.bookings.store.bookings import SqlBookings
from carrel.bookings.store.database import Database
from carrel.demo.bookings import DemoBooking, bookings_of, history, make_bookings
from carrel.demo.run import example_nodes

DAY = timedelta(days=1)


async def booked(folder: Path, days: int, *wanted: DemoBooking) -> list[BookingRecord]:
    nodes, url = example_nodes(), f"sqlite:///{folder}/bookings.db"
    await make_bookings(url, nodes, history(days, nodes, Random(1)), wanted)
    async with aclosing(Database(url)) as database, SqlBookings(database).reading() as reading:
        now = datetime.now(UTC)
        return list(await reading.within(now - 400 * DAY, now + 400 * DAY))


async def test_with_days_the_timeline_shows_bookings_of_every_week_until_now(tmp_path: Path) -> None:
    records = await booked(tmp_path, 35)

    now = datetime.now(UTC)
    weeks = {(now - record.booking.start) // (7 * DAY) for record in records}
    assert weeks >= {0, 1, 2, 3, 4}
    assert any(record.booking.is_active(now) for record in records)


async def test_each_booking_is_made_by_its_person_at_that_time(tmp_path: Path) -> None:
    records = await booked(tmp_path, 35)

    assert all(record.created_by == record.booking.user and not record.reason for record in records)
    assert all(record.created_at <= record.booking.start for record in records)


async def test_the_past_leaves_room_for_the_bookings_of_the_demo_itself(tmp_path: Path) -> None:
    people = ["cleo@lab.example", "lab@lab.example", "speech@lab.example"]
    records = await booked(tmp_path, 60, *bookings_of(people, example_nodes()))

    assert {record.booking.user for record in records} >= set(people)


async def test_without_days_only_the_demos_own_people_have_booked(tmp_path: Path) -> None:
    (record,) = await booked(tmp_path, 0, DemoBooking("cleo@lab.example", "NVIDIA-RTX-A6000", 4 * DAY))

    assert record.booking.user == "cleo@lab.example"
