"""What the object of a booking in the cluster should be. PURE: the database's booking in, the object out.

Every booking that has not ended has an object; one that was cancelled has none. After its regular end the object stays
for a while (`KEPT_AFTER_END`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.dialects.booking_objects import (
    KEPT_AFTER_END,
    BookingObject,
    is_from_enquiry,
    namespace_named,
    person_named,
    write_booking,
)
from carrel.ledger.coverage import Entitlement


@dataclass(frozen=True, slots=True)
class MirrorTerms:
    """What else the object depends on."""

    now: datetime
    shares_per_gpu: int = 1
    members: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Group → the people who share its bookings."""
    settling_s: int | None = None
    """How long bookings settle before others lose GPUs to them."""


def is_mirrored(booking: Booking, now: datetime) -> bool:
    """Whether the booking has an object."""
    return booking.cancelled_at is None and booking.start < booking.end and now < booking.end + KEPT_AFTER_END


def wanted_object(stored: BookingRecord, terms: MirrorTerms) -> dict[str, Any] | None:
    """None: it should have none, because it was cancelled, or is long over."""
    booking = stored.booking
    if not is_mirrored(booking, terms.now):
        return None
    group = booking.group
    user = "" if group else booking.user
    people = terms.members.get(group, ()) if group else (user,)
    entitlement = Entitlement(
        booking=booking.id,
        people=frozenset(filter(None, map(person_named, people))),
        model=booking.model,
        gpus=booking.gpus,
        start=booking.start,
        ends=booking.ends,
        share_of=terms.shares_per_gpu if booking.share else 1,
        namespace=namespace_named(stored.namespace),
        group=group,
    )
    return write_booking(entitlement, user, stored.version, settling_s=terms.settling_s)


def may_delete_unknown(seen: BookingObject) -> bool:
    """Whether an object may go that the database has never heard of. Not if the controller wrote it from the answer of
    another booking service: that one knows it."""
    return not is_from_enquiry(seen)
