"""How many cards of a model are promised at each instant: never more than there are.

Only bookings of the same model count against each other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from carrel.core.bookings import Booking

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Cards of a model that cannot be booked for a while."""

    model: str
    start: datetime
    end: datetime
    cards: int


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which the same number of cards is free. Below zero: more is promised than there is."""

    start: datetime
    end: datetime
    free: int


class Calendar:
    """The bookings and maintenance windows of one model."""

    def __init__(
        self, model: str, cards: int, bookings: Iterable[Booking] = (), maintenance: Iterable[Maintenance] = ()
    ) -> None:
        self.model = model
        self.cards = cards
        changes: dict[datetime, int] = {}
        taken = [(b.start, b.ends, b.cards) for b in bookings if b.model == model and b.counts]
        taken += [(m.start.astimezone(UTC), m.end.astimezone(UTC), m.cards) for m in maintenance if m.model == model]
        for start, end, count in taken:
            if start < end:
                changes[start] = changes.get(start, 0) - count
                changes[end] = changes.get(end, 0) + count
        self._changes = sorted(changes.items())

    def spans(self, start: datetime, end: datetime) -> Iterator[Span]:
        """The stretches of [start, end) in order, without gaps."""
        since, free = start.astimezone(UTC), self.cards
        end = end.astimezone(UTC)
        for instant, change in self._changes:
            if instant >= end:
                break
            if instant > since and change:
                yield Span(since, instant, free)
                since = instant
            free += change
        if since < end:
            yield Span(since, end, free)

    def free(self, start: datetime, end: datetime) -> int:
        """How many cards are free through the whole of [start, end)."""
        return min((span.free for span in self.spans(start, end)), default=self.cards)

    def next_free(self, cards: int, length: timedelta, not_before: datetime) -> datetime | None:
        """The first start from which that many cards are free for that long; None if that never comes."""
        if cards > self.cards:
            return None
        candidate = not_before.astimezone(UTC)
        while candidate <= _END_OF_TIME - length:
            too_full = [span for span in self.spans(candidate, candidate + length) if span.free < cards]
            if not too_full:
                return candidate
            candidate = too_full[-1].end
        return None
