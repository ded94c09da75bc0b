"""How many GPUs of a model are booked at each instant: never more than there are.

Only bookings of the same model compete. Shares of a GPU are of equal size, so at any instant `n` shares, of which `k`
fill a GPU, need ⌈n/k⌉ GPUs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from carrel.bookings.rules import Booking

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """GPUs of a model that cannot be booked for a while."""

    model: str
    start: datetime
    end: datetime
    cards: int


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which the same number of GPUs is free. Below zero: more are booked than there are."""

    start: datetime
    end: datetime
    free: int
    shares: int = 0
    """Free shares, those of wholly free GPUs included. 0 where only whole GPUs are booked."""

    def has_room(self, cards: int, share: bool = False) -> bool:
        return self.shares > 0 if share else self.free >= cards


@dataclass(frozen=True, slots=True)
class Day:
    """A date in the lab's time zone, and the instants at which it starts and ends: 23 to 25 hours apart."""

    date: date
    start: datetime
    end: datetime


class Calendar:
    """The bookings and maintenance windows of one model."""

    def __init__(
        self,
        model: str,
        cards: int,
        bookings: Iterable[Booking] = (),
        maintenance: Iterable[Maintenance] = (),
        shares_per_card: int = 1,
        why_not_more: str = "",
    ) -> None:
        """`why_not_more`: why further GPUs of the model cannot be booked."""
        self.model = model
        self.cards = cards
        self._shares_per_card = shares_per_card
        self._why_not_more = why_not_more
        changes: dict[datetime, tuple[int, int]] = {}
        taken = [(b.start, b.ends, b.cards, b.share) for b in bookings if b.model == model and b.counts]
        taken += [
            (m.start.astimezone(UTC), m.end.astimezone(UTC), m.cards, False) for m in maintenance if m.model == model
        ]
        for start, end, count, share in taken:
            if start < end:
                for instant, sign in ((start, 1), (end, -1)):
                    whole, shares = changes.get(instant, (0, 0))
                    changes[instant] = (whole, shares + sign * count) if share else (whole + sign * count, shares)
        self._changes = sorted(changes.items())

    def spans(self, start: datetime, end: datetime) -> Iterator[Span]:
        """The spans of [start, end) in order, without gaps."""
        since, whole, shares = start.astimezone(UTC), 0, 0
        end = end.astimezone(UTC)
        for instant, (more_whole, more_shares) in self._changes:
            if instant >= end:
                break
            if instant > since and (more_whole or more_shares):
                yield self._span(since, instant, whole, shares)
                since = instant
            whole += more_whole
            shares += more_shares
        if since < end:
            yield self._span(since, end, whole, shares)

    def free(self, start: datetime, end: datetime) -> int:
        """How many GPUs are free during all of [start, end)."""
        return min((span.free for span in self.spans(start, end)), default=self.cards)

    def by_day(self, days: Sequence[Day]) -> Iterator[Span]:
        """The least that is free on each of several consecutive days, in one pass."""
        spans = list(self.spans(days[0].start, days[-1].end)) if days else []
        first = 0
        for day in days:
            while spans[first].end <= day.start:
                first += 1
            last = first
            while last + 1 < len(spans) and spans[last + 1].start < day.end:
                last += 1
            within = spans[first : last + 1]
            yield Span(day.start, day.end, min(span.free for span in within), min(span.shares for span in within))
            first = last

    def next_free(self, cards: int, length: timedelta, not_before: datetime, share: bool = False) -> datetime | None:
        """The first start from which so much is free for so long; None if there is none."""
        candidate = not_before.astimezone(UTC)
        for span in self.spans(candidate, _END_OF_TIME):
            if not span.has_room(cards, share):
                candidate = span.end
            elif span.end - candidate >= length:
                return candidate
        return None

    def shortage(self, wanted: Booking) -> str:
        """Why there is no room for a booking that is not in this calendar yet; empty if there is."""
        is_impossible = wanted.end <= wanted.start or (
            wanted.share and self._shares_per_card == 1
        )  # other rules say so
        if is_impossible or all(s.has_room(wanted.cards, wanted.share) for s in self.spans(wanted.start, wanted.end)):
            return ""
        others = f" {self._why_not_more}." if self._why_not_more else ""
        if not wanted.share and wanted.cards > self.cards:
            return f"There are {self.cards} GPUs of {self.model}; {wanted.cards} are asked for.{others}"
        if wanted.share:
            return f"No share of a {self.model} is free for the whole time.{others}"
        free = max(0, self.free(wanted.start, wanted.end))
        return (
            f"{free} of {self.cards} GPUs of {self.model} {'is' if free == 1 else 'are'} free for the whole time;"
            f" {wanted.cards} {'is' if wanted.cards == 1 else 'are'} asked for.{others}"
        )

    def _span(self, start: datetime, end: datetime, whole: int, shares: int) -> Span:
        per_card = self._shares_per_card
        free = self.cards - whole - -(-shares // per_card)
        return Span(start, end, free, (self.cards - whole) * per_card - shares if per_card > 1 else 0)


def days(first: date, count: int, zone: tzinfo) -> list[Day]:
    dates = [first + timedelta(days=number) for number in range(count + 1)]
    midnights = [datetime.combine(each, time(), zone).astimezone(UTC) for each in dates]
    return [Day(*day) for day in zip(dates[:-1], midnights[:-1], midnights[1:], strict=True)]
