"""When people are told: nothing that can wait from 20 to 8 o'clock in their zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.notifications.messages import Notification, Occasion, digest_of
from carrel.bookings.notifications.quiet_hours import held_until, morning_after, reminder, reminder_due, still_to_tell
from carrel.bookings.rules import Booking
from carrel.ids import BookingId

LAB, KOLKATA = ZoneInfo("Europe/Stockholm"), ZoneInfo("Asia/Kolkata")
HOUR = timedelta(hours=1)
ADA, EVA = "ada@lab.example", "eva@lab.example"


def at(day: int, clock: str, zone: ZoneInfo = LAB) -> datetime:
    return datetime.fromisoformat(f"2026-11-{day:02}T{clock}:00").replace(tzinfo=zone).astimezone(UTC)


MORNINGS = {
    "in the afternoon": ("19:59", None),
    "at the beginning": ("20:00", at(17, "08:00")),
    "before midnight": ("23:30", at(17, "08:00")),
    "after midnight": ("00:30", at(16, "08:00")),
    "a minute before the end": ("07:59", at(16, "08:00")),
    "at the end": ("08:00", None),
}


@pytest.mark.parametrize(("clock", "morning"), MORNINGS.values(), ids=MORNINGS)
def test_when_the_quiet_hours_end(clock: str, morning: datetime | None) -> None:
    assert morning_after(at(16, clock), LAB) == morning


def test_the_quiet_hours_are_in_the_zone_of_the_person() -> None:
    assert morning_after(at(16, "18:00"), LAB) is None
    assert morning_after(at(16, "18:00"), KOLKATA) == at(17, "08:00", KOLKATA)


def test_a_night_in_which_the_clocks_change_ends_at_eight() -> None:
    night = datetime(2026, 10, 24, 23, tzinfo=LAB)
    assert morning_after(night.astimezone(UTC), LAB) == datetime(2026, 10, 25, 7, tzinfo=UTC)


REMINDERS = {
    "by day": (at(17, "15:00"), HOUR, at(17, "14:00")),
    "a day before an end in the night: in the morning": (at(17, "03:00"), 24 * HOUR, at(16, "08:00")),
    "an hour before an end in the night: the evening before": (at(17, "03:00"), HOUR, at(16, "19:00")),
    "an hour before an end late in the evening: before the quiet hours": (at(17, "22:00"), HOUR, at(17, "19:00")),
    "an hour before an end at half past eight: in the morning": (at(17, "08:30"), HOUR, at(17, "08:00")),
    "an hour before an end at a quarter past eight: too late then": (at(17, "08:15"), HOUR, at(16, "19:00")),
}


@pytest.mark.parametrize(("ends", "before", "due"), REMINDERS.values(), ids=REMINDERS)
def test_nobody_is_woken_by_a_reminder_and_nobody_gets_it_too_late(
    ends: datetime, before: timedelta, due: datetime
) -> None:
    assert reminder_due(ends, before, LAB) == due
    booking = Booking(BookingId("b1"), ADA, "A6000", ends - timedelta(days=5), ends)
    occasion = Occasion.ENDS_IN_AN_HOUR if before == HOUR else Occasion.ENDS_IN_A_DAY

    def told(now: datetime) -> Occasion | None:
        found = reminder(booking, now, LAB)
        return found.occasion if found else None

    assert told(due) is occasion and told(due - timedelta(seconds=1)) is not occasion


def a_notification(occasion: Occasion, clock: str = "23:00", **facts: str) -> Notification:
    return Notification(f"log-{clock}-{occasion.value}", occasion, ADA, at(16, clock), "b1", facts)


NIGHTLY = {
    "an admin cancels a booking": (a_notification(Occasion.CANCELLED, actor=EVA), True),
    "the person books": (a_notification(Occasion.BOOKED, actor=ADA), False),
    "the person's GPU is needed": (a_notification(Occasion.REVOKED, actor="the controller"), False),
    "an admin cancels a booking by day": (a_notification(Occasion.CANCELLED, "12:00", actor=EVA), False),
    "maintenance next week": (
        a_notification(Occasion.MAINTENANCE, start="2026-11-24T08:00:00Z", end="2026-11-24T09:00:00Z"),
        True,
    ),
    "maintenance this night": (
        a_notification(Occasion.MAINTENANCE, start="2026-11-17T02:00:00Z", end="2026-11-17T09:00:00Z"),
        False,
    ),
    "an end before the morning": (
        a_notification(Occasion.ENDS_IN_AN_HOUR, start="2026-11-10T02:00:00Z", end="2026-11-17T02:00:00Z"),
        False,
    ),
}


@pytest.mark.parametrize(("notification", "waits"), NIGHTLY.values(), ids=NIGHTLY)
def test_what_waits_for_the_morning(notification: Notification, waits: bool) -> None:
    assert held_until(notification, LAB) == (at(17, "08:00") if waits else None)


def test_what_began_and_was_over_in_the_same_night_is_not_told() -> None:
    short, again = a_notification(Occasion.OVERBOOKED, "21:00"), a_notification(Occasion.ENOUGH_AGAIN, "22:00")
    once_more, changed = a_notification(Occasion.OVERBOOKED, "23:00"), a_notification(Occasion.CHANGED, "21:30")

    assert still_to_tell([short, again]) == []
    assert still_to_tell([again]) == [again]
    assert still_to_tell([once_more, again, short, changed]) == [changed, once_more]
    racks = [
        a_notification(Occasion.MAINTENANCE, "21:00", maintenance="n1"),
        a_notification(Occasion.MAINTENANCE_OFF, "22:00", maintenance="n2"),
    ]
    assert still_to_tell(racks) == racks


def test_the_message_of_the_morning_has_everything_and_an_id_for_the_person_and_the_day() -> None:
    held = [a_notification(Occasion.CANCELLED, actor=EVA, why="rack"), a_notification(Occasion.OVERBOOKED, why="n1")]
    message = digest_of(held, at(17, "08:00"), LAB, "https://gpus.lab.example")

    assert message.subject == "2 messages from the night"
    assert message.text.startswith(
        "2 messages from the night.\n\n1 of 2: Your booking of a GPU was cancelled.\n\nDone by"
    )
    assert "\n\n2 of 2: Your booking of a GPU may lack a GPU" in message.text
    assert message.text.count("https://gpus.lab.example") == 1 and message.text.endswith("\n")
    assert message.id.startswith("digest-20261117T070000Z-") and ADA not in message.id
    assert message.id == digest_of(held[:1], at(17, "08:00"), KOLKATA).id
