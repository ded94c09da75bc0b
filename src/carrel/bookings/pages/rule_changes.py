"""Which bookings that have not ended would break other rules. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, tzinfo

from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import BookingRules, Broken, broken_rules, rule_input


@dataclass(frozen=True, slots=True)
class RuleConflict:
    record: BookingRecord
    broken: tuple[Broken, ...]


def conflicts(records: Iterable[BookingRecord], rules: BookingRules, zone: tzinfo = UTC) -> list[RuleConflict]:
    """Checks each booking at the time it was made, together with the bookings that the same person or group
    had made before.

    Messages have times in `zone`.
    """
    by_age = sorted(records, key=lambda record: (record.created_at, record.booking.id))
    limited = {row.name for row in rules.rows if row.limit}  # the other rules depend on the current time
    found = []
    for position, record in enumerate(by_age):
        earlier = [other.booking for other in by_age[:position]]
        given = rule_input(record.booking, earlier, record.created_at, rules, zone)
        broken = tuple(rule for rule in broken_rules(given) if rule.rule in limited)
        if broken:
            found.append(RuleConflict(record, broken))
    return found
