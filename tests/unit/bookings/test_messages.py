"""What notifications say, and when reminders are due."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.notifications.messages import Notification, Occasion, subject, text
from carrel.bookings.notifications.quiet_hours import reminder
from carrel.bookings.rules import Booking
from carrel.ids import BookingId

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
LAB = ZoneInfo("Europe/Stockholm")


def a_booking(began: timedelta, left: timedelta, cancelled: datetime | None = None) -> Booking:
    return Booking(BookingId("b1"), "ada@lab.example", "A6000", NOON - began, NOON + left, 2, cancelled)


TIMES = {
    "a day and a second left": (48 * HOUR, 24 * HOUR + timedelta(seconds=1), None),
    "a day left": (48 * HOUR, 24 * HOUR, "ends-in-24h"),
    "an hour and a second left": (48 * HOUR, HOUR + timedelta(seconds=1), "ends-in-24h"),
    "an hour left: only the nearer one": (48 * HOUR, HOUR, "ends-in-1h"),
    "a second left": (48 * HOUR, timedelta(seconds=1), "ends-in-1h"),
    "over": (48 * HOUR, timedelta(0), None),
    "has not begun": (-HOUR, 5 * HOUR, None),
    "booked for a day, just now": (timedelta(0), 24 * HOUR, None),
    "booked for a day, an hour left": (23 * HOUR, HOUR, "ends-in-1h"),
}


@pytest.mark.parametrize(("began", "left", "occasion"), TIMES.values(), ids=TIMES)
def test_when_a_reminder_is_due(began: timedelta, left: timedelta, occasion: str | None) -> None:
    notification = reminder(a_booking(began, left), NOON, LAB)

    assert (notification.occasion.value if notification else None) == occasion


def test_a_cancelled_booking_has_no_reminder() -> None:
    assert reminder(a_booking(48 * HOUR, HOUR, cancelled=NOON - HOUR), NOON, LAB) is None


def test_a_reminder_keeps_its_id_until_the_end_is_moved() -> None:
    def id_at(now: datetime, left: timedelta) -> str:
        notification = reminder(a_booking(72 * HOUR, left), now, LAB)
        assert notification is not None
        return notification.id

    assert id_at(NOON, 20 * HOUR) == id_at(NOON + HOUR, 20 * HOUR) == "ends-in-24h-b1-20261117T080000Z"
    assert id_at(NOON, 22 * HOUR) != id_at(NOON, 20 * HOUR)


def test_a_reminder_is_useless_after_the_end_and_other_notifications_after_three_days() -> None:
    notification = reminder(a_booking(48 * HOUR, HOUR), NOON, LAB)
    assert notification is not None
    assert notification.useless_after == NOON + HOUR
    assert Notification("log-1", Occasion.CANCELLED, "ada@lab.example", NOON).useless_after == NOON + timedelta(days=3)


def test_a_notification_says_what_happened_who_did_it_why_and_what_to_do() -> None:
    facts = {"model": "A6000", "gpus": "2", "start": "2026-11-20T08:00:00Z", "end": "2026-11-25T08:00:00Z"}
    facts |= {"actor": "boss@lab.example", "why": "she asked me to"}
    notification = Notification("log-7", Occasion.BOOKED, "ada@lab.example", NOON, "b1", facts)

    assert subject(notification, LAB) == "Booked: A6000 until Wed 25 Nov 2026 09:00 CET"
    assert text(notification, LAB, "https://gpus.lab.example") == (
        "Booked: A6000 until Wed 25 Nov 2026 09:00 CET.\n\n"
        "Model: A6000 (2)\nFrom:  Fri 20 Nov 2026 09:00 CET\nUntil: Wed 25 Nov 2026 09:00 CET (5 d)\n"
        "Done by boss@lab.example: she asked me to\n\n"
        "To look at it:  carrel show\n\nhttps://gpus.lab.example\n"
    )


def test_a_revoked_pod_is_named() -> None:
    facts = {"pod": "train-0", "namespace": "lab", "node": "n1", "actor": "the controller", "why": "for lab/other"}
    notification = Notification("log-8", Occasion.REVOKED, "ada@lab.example", NOON, facts=facts)

    assert subject(notification, LAB) == "train-0 lost its GPU to a booking"
    assert "Pod: train-0\nNode: n1\nDone by the controller: for lab/other" in text(notification, LAB)


def test_a_pod_that_is_about_to_lose_its_gpu_is_told_when_and_what_happens() -> None:
    facts = {"pod": "notebook", "namespace": "lab", "ends": "2026-11-16T12:02:00Z", "then": "is created again"}
    notification = Notification("log-9", Occasion.REVOKED, "ada@lab.example", NOON, facts=facts)

    assert subject(notification, LAB) == "notebook loses its GPU to a booking: it ends Mon 16 Nov 2026 13:02 CET"
    assert "Ends: Mon 16 Nov 2026 13:02 CET, then it is created again" in text(notification, LAB)
    assert "Save your work now." in text(notification, LAB)


def test_a_notification_about_a_groups_booking_names_the_group_and_the_booking() -> None:
    notification = reminder(replace(a_booking(48 * HOUR, HOUR), group="vision"), NOON, LAB)

    assert notification is not None
    assert subject(notification, LAB).startswith("The booking of A6000 for vision ends soon")
    assert "Group: vision" in text(notification, LAB)
    assert "carrel extend b1 --days 1" in text(notification, LAB), "without the id it means a person's own booking"
    booked = Notification("log-1", Occasion.BOOKED, "ada@lab.example", NOON, "b1", facts=notification.facts)
    assert subject(booked, LAB).startswith("Booked for vision: A6000 until")
    assert "carrel show b1" in text(booked, LAB)
