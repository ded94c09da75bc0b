"""Which tier a person has now, by the bookings that are active."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from carrel.bookings.rules import Booking
from carrel.ledger.tiers import Tier


@dataclass(frozen=True, slots=True)
class PersonTier:
    """Where a person stands now."""

    tier: Tier
    booking: Booking | None = None
    """The booking that is active now; its end is when a booked pod must go."""


def person_tier(bookings: Iterable[Booking], user: str, now: datetime) -> PersonTier:
    """Booked if one of the person's bookings is active now; a future one does not count yet.

    Of several, the one that ends last: the pod may stay as long as any of them lasts.
    """
    active = [booking for booking in bookings if booking.user == user and booking.is_active(now)]
    if not active:
        return PersonTier(Tier.OPPORTUNISTIC)
    return PersonTier(Tier.BOOKED, max(active, key=lambda booking: (booking.ends, booking.id)))
