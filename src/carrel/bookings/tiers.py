"""Which tier a person has now, by their active bookings."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from carrel.bookings.rules import Booking
from carrel.ledger.tiers import Tier


@dataclass(frozen=True, slots=True)
class PersonTier:
    """A person's tier, and the booking that gives it."""

    tier: Tier
    booking: Booking | None = None
    """The active booking; a booked pod must end when it ends."""


def person_tier(bookings: Iterable[Booking], user: str, now: datetime) -> PersonTier:
    """Booked if one of the person's bookings is active now; a planned one does not count yet.

    Of several, the one that ends last counts: the pod may run as long as any of them.
    """
    active = [booking for booking in bookings if booking.user == user and booking.is_active(now)]
    if not active:
        return PersonTier(Tier.OPPORTUNISTIC)
    return PersonTier(Tier.BOOKED, max(active, key=lambda booking: (booking.ends, booking.id)))
