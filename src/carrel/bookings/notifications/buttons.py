"""PURE: buttons in messages: links of which each does one thing, once, for one person.

A link has a random secret of 256 bits, of which only the hash is kept, with what it is for: the person, the act, the
booking, and the version of the booking that the message told of. So nobody can forge one, a copy of the database has
none, and a booking that was changed since is left alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from carrel.bookings.notifications.messages import Notification, Occasion
from carrel.bookings.rules import Booking

LIFETIME = timedelta(hours=24)
PATH = "/act/"
"""Of the links; the secret follows."""


class ButtonKind(Enum):
    """What a button does. Its class in `button_acts` says it to the person, and does it."""

    EXTEND = "extend"
    END = "end"


TITLES = {ButtonKind.EXTEND: "Extend by a day", ButtonKind.END: "End now"}
OF_OCCASION: Mapping[Occasion, tuple[ButtonKind, ...]] = {
    Occasion.ENDS_IN_A_DAY: (ButtonKind.EXTEND, ButtonKind.END),
    Occasion.ENDS_IN_AN_HOUR: (ButtonKind.EXTEND, ButtonKind.END),
}


@dataclass(frozen=True, slots=True)
class Button:
    act: ButtonKind
    person: str
    notification: str
    """The id of the notification that it is in."""
    expires: datetime
    booking: str = ""
    version: int = 0
    """Of the booking, when the message was sent."""
    used: datetime | None = None


def buttons_of(notification: Notification, version: int, now: datetime) -> list[Button]:
    expires = min(now + LIFETIME, notification.useless_after)
    return [
        Button(act, notification.person, notification.id, expires, notification.booking, version)
        for act in OF_OCCASION.get(notification.occasion, ())
    ]


def is_told_of(notification: Notification, booking: Booking | None) -> bool:
    """Whether a reminder is still about this booking: it was not ended, and its end was not moved."""
    span = notification.span
    return booking is not None and booking.cancelled_at is None and span is not None and booking.ends == span[1]
