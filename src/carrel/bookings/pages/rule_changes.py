"""What a change of the rules would break: bookings that are still to end, judged as if made under them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import BookingRules, Broken, check


@dataclass(frozen=True, slots=True)
class Conflict:
    record: BookingRecord
    broken: tuple[Broken, ...]


def conflicts(records: Iterable[BookingRecord], rules: BookingRules) -> list[Conflict]:
    """Each booking is judged beside those its person had made before it, at the instant at which it was made."""
    by_age = sorted(records, key=lambda record: (record.created_at, record.booking.id))
    limited = {row.name for row in rules.rows if row.limit}  # the others depend on the time at which one looks
    found = []
    for position, record in enumerate(by_age):
        earlier = [other.booking for other in by_age[:position] if other.booking.user == record.booking.user]
        verdict = check(record.booking, earlier, record.created_at, rules)
        broken = tuple(rule for rule in verdict.broken if rule.rule in limited)
        if broken:
            found.append(Conflict(record, broken))
    return found
