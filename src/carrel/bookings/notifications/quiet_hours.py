"""PURE: when people are told. From 20 to 8 o'clock in their zone nothing is sent that can wait.

What waits is one message at 8 o'clock, and none if it was over by then. Not held are: that a person's GPU is needed,
what they have just done themselves, and what would be too late in the morning.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo

from carrel.bookings.notifications.messages import REMINDERS, Notification, Occasion, facts_of
from carrel.bookings.rules import Booking

EVENING, MORNING = time(20), time(8)
LAST_CALL = time(19)
"""When a reminder is sent that is due in the night."""
LEAST_NOTICE = timedelta(minutes=30)
"""A reminder in the morning is early enough if so much is left."""
ENDED_BY = {Occasion.ENOUGH_AGAIN: Occasion.OVERBOOKED, Occasion.MAINTENANCE_OFF: Occasion.MAINTENANCE}


def morning_after(at: datetime, zone: tzinfo) -> datetime | None:
    """Return when the quiet hours end, if it is in them."""
    there = at.astimezone(zone)
    if MORNING <= there.time() < EVENING:
        return None
    day = there.date() + timedelta(days=there.time() >= EVENING)
    return datetime.combine(day, MORNING, zone).astimezone(UTC)


def reminder_due(ends: datetime, before: timedelta, zone: tzinfo) -> datetime:
    """Return when to remind of an end: so long before, but not in the quiet hours. Then it is in the morning, or in the
    evening before where that would be too late."""
    due = ends - before
    morning = morning_after(due, zone)
    if morning is None or morning <= ends - LEAST_NOTICE:
        return morning or due
    evening = (morning.astimezone(zone) - timedelta(days=1)).date()
    return datetime.combine(evening, LAST_CALL, zone).astimezone(UTC)


def reminder(booking: Booking, now: datetime, zone: tzinfo) -> Notification | None:
    """The reminder that is due now for an active booking, if any. A later end makes a new reminder."""
    occasion = due_reminder(booking.start, booking.ends, now, zone) if booking.is_active(now) else None
    if occasion is None:
        return None
    id = f"{occasion.value}-{booking.id}-{booking.ends.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    return Notification(id, occasion, booking.user, now, booking.id, facts=facts_of(booking))


def due_reminder(start: datetime, ends: datetime, now: datetime, zone: tzinfo) -> Occasion | None:
    """None for a booking that began after the reminder would have been due: who has just booked a day knows when it
    ends."""
    for occasion, before in REMINDERS.items():
        if start < reminder_due(ends, before, zone) <= now:
            return occasion
    return None


def held_until(notification: Notification, zone: tzinfo) -> datetime | None:
    """Return the morning for which it is held; None: it is sent at once."""
    morning = morning_after(notification.at, zone)
    is_own = notification.facts.get("actor") == notification.person
    if morning is None or is_own or notification.occasion is Occasion.REVOKED:
        return None
    begins = notification.span[0] if notification.span and notification.occasion is Occasion.MAINTENANCE else None
    is_too_late = notification.useless_after <= morning or (begins is not None and begins < morning)
    return None if is_too_late else morning


def still_to_tell(held: Sequence[Notification]) -> list[Notification]:
    """Leave out what began and was over in the same night, oldest first."""
    told = list[Notification]()
    for each in sorted(held, key=lambda notification: (notification.at, notification.id)):
        begun = [other for other in told if ENDED_BY.get(each.occasion) is other.occasion and _about(other, each)]
        told = [other for other in told if other not in begun] if begun else [*told, each]
    return told


def _about(one: Notification, other: Notification) -> bool:
    return one.booking == other.booking and one.facts.get("maintenance") == other.facts.get("maintenance")
