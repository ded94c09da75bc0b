"""Calendar events: text that any calendar reads, and the same event for the same booking."""

from datetime import UTC, datetime, timedelta

import pytest

from carrel.bookings.icalendar import booking_event, calendar
from carrel.bookings.rules import Booking
from carrel.ids import BookingId

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def lines(booking: Booking, version: int = 0, description: str = "") -> list[str]:
    return calendar([booking_event(booking, version, description, NOON)]).split("\r\n")


def a_booking(gpus: int = 1, cancelled_at: datetime | None = None, share: bool = False) -> Booking:
    return Booking(BookingId("b1"), "ada@lab.org", "A6000", NOON, NOON + 5 * DAY, gpus, cancelled_at, share)


def test_an_event_has_its_times_in_utc() -> None:
    written = lines(a_booking())

    assert {"DTSTAMP:20261116T120000Z", "DTSTART:20261116T120000Z", "DTEND:20261121T120000Z"} <= set(written)
    assert (written[0], written[-2], written[-1]) == ("BEGIN:VCALENDAR", "END:VCALENDAR", "")


def test_characters_with_a_meaning_are_escaped() -> None:
    written = lines(a_booking(), 0, "a, b; c\\d\ne")

    assert r"DESCRIPTION:a\, b\; c\\d\ne" in written


def test_lines_have_at_most_75_octets_and_no_character_is_cut() -> None:
    note = "ß€😀 " * 40
    written = calendar([booking_event(a_booking(), 0, note, NOON)])

    assert all(len(line.encode()) <= 75 for line in written.split("\r\n"))
    assert f"DESCRIPTION:{note}\r\n" in written.replace("\r\n ", "")


@pytest.mark.parametrize(
    ("booking", "summary"),
    [
        pytest.param(a_booking(), "GPU: A6000", id="one GPU"),
        pytest.param(a_booking(gpus=2), "GPU: 2 × A6000", id="several"),
        pytest.param(a_booking(share=True), "GPU: a share of A6000", id="a share"),
    ],
)
def test_the_summary_says_what_is_booked(booking: Booking, summary: str) -> None:
    assert f"SUMMARY:{summary}" in lines(booking)


@pytest.mark.parametrize(
    ("cancelled_at", "is_cancelled", "end"),
    [
        pytest.param(NOON - DAY, True, NOON + 5 * DAY, id="before it began"),
        pytest.param(NOON + DAY, False, NOON + DAY, id="while it was active"),
        pytest.param(None, False, NOON + 5 * DAY, id="never"),
    ],
)
def test_only_a_booking_that_was_cancelled_before_it_began_is_a_cancelled_event(
    cancelled_at: datetime | None, is_cancelled: bool, end: datetime
) -> None:
    written = lines(a_booking(cancelled_at=cancelled_at))

    assert f"DTEND:{end:%Y%m%dT%H%M%SZ}" in written
    assert f"STATUS:{'CANCELLED' if is_cancelled else 'CONFIRMED'}" in written


def test_the_sequence_rises_with_every_change_of_the_booking() -> None:
    events = [lines(a_booking(), version) for version in (1, 2, 3)]

    assert [line for event in events for line in event if line.startswith("SEQUENCE")] == [
        "SEQUENCE:1",
        "SEQUENCE:2",
        "SEQUENCE:3",
    ]
