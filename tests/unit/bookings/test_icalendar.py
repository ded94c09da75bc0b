"""Calendar events: text that any calendar reads, and the same event for the same booking."""

from datetime import UTC, datetime, timedelta

import pytest

from carrel.bookings.icalendar import CalendarEvent, booking_event, calendar
from carrel.bookings.rules import Booking

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def lines(event: CalendarEvent) -> list[str]:
    return calendar([event], NOON).split("\r\n")


def a_booking(gpus: int = 1, cancelled_at: datetime | None = None, share: bool = False) -> Booking:
    return Booking("b1", "ada@lab.org", "A6000", NOON, NOON + 5 * DAY, gpus, cancelled_at, share)


def test_an_event_has_its_times_in_utc() -> None:
    written = lines(booking_event(a_booking(), 0, ""))

    assert {"DTSTAMP:20261116T120000Z", "DTSTART:20261116T120000Z", "DTEND:20261121T120000Z"} <= set(written)
    assert (written[0], written[-2], written[-1]) == ("BEGIN:VCALENDAR", "END:VCALENDAR", "")


def test_characters_with_a_meaning_are_escaped() -> None:
    written = lines(booking_event(a_booking(), 0, "a, b; c\\d\ne"))

    assert r"DESCRIPTION:a\, b\; c\\d\ne" in written


def test_lines_have_at_most_75_octets_and_no_character_is_cut() -> None:
    note = "ß€😀 " * 40
    written = calendar([booking_event(a_booking(), 0, note)], NOON)

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
    assert booking_event(booking, 0, "").summary == summary


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
    event = booking_event(a_booking(cancelled_at=cancelled_at), 0, "")

    assert (event.is_cancelled, event.end) == (is_cancelled, end)
    assert f"STATUS:{'CANCELLED' if is_cancelled else 'CONFIRMED'}" in lines(event)


def test_the_sequence_rises_with_every_change_of_the_booking() -> None:
    events = [booking_event(a_booking(), version, "") for version in (1, 2, 3)]

    assert [line for event in events for line in lines(event) if line.startswith("SEQUENCE")] == [
        "SEQUENCE:1",
        "SEQUENCE:2",
        "SEQUENCE:3",
    ]
