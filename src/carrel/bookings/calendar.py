"""How many cards of a model are promised at each instant: never more than there are.

Only bookings of the same model count against each other. Shares of a card are alike, so at any instant they fit on as
few cards as their number says: `n` shares of which `k` fill a card need ⌈n/k⌉ cards.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from carrel.bookings.rules import Booking, Broken

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
    """A stretch of time in which the same is free. Below zero: more is promised than there is."""

    start: datetime
    end: datetime
    free: int
    shares: int = 0
    """Free shares of cards, those of wholly free cards included. 0 where only whole cards are booked."""

    def has_room(self, cards: int, share: bool = False) -> bool:
        return self.shares > 0 if share else self.free >= cards


@dataclass(frozen=True, slots=True)
class Day:
    """A date in the lab's zone, and the instants between which it lies: 23 to 25 hours."""

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
    ) -> None:
        self.model = model
        self.cards = cards
        self._shares_per_card = shares_per_card
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
        """The stretches of [start, end) in order, without gaps."""
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
        """How many cards are free through the whole of [start, end)."""
        return min((span.free for span in self.spans(start, end)), default=self.cards)

    def by_day(self, days: Sequence[Day]) -> Iterator[Span]:
        """The least that is free in each of several days that follow each other. One pass, however many they are."""
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
        """The first start from which that much is free for that long; None if that never comes."""
        candidate = not_before.astimezone(UTC)
        for span in self.spans(candidate, _END_OF_TIME):
            if not span.has_room(cards, share):
                candidate = span.end
            elif span.end - candidate >= length:
                return candidate
        return None

    def check(self, wish: Booking) -> Iterator[Broken]:
        """Whether there is room for a wish that is not in this calendar yet."""
        is_impossible = wish.end <= wish.start or (wish.share and self._shares_per_card == 1)  # the rules tell it
        if is_impossible or all(s.has_room(wish.cards, wish.share) for s in self.spans(wish.start, wish.end)):
            return
        if not wish.share and wish.cards > self.cards:
            message = f"There are {self.cards} cards of {self.model}; {wish.cards} are asked for."
        elif wish.share:
            message = f"No share of a {self.model} is free for the whole time."
        else:
            free = max(0, self.free(wish.start, wish.end))
            message = (
                f"{free} of {self.cards} cards of {self.model} {'is' if free == 1 else 'are'} free for the whole time;"
                f" {wish.cards} {'is' if wish.cards == 1 else 'are'} asked for."
            )
        yield Broken("capacity", message)

    def _span(self, start: datetime, end: datetime, whole: int, shares: int) -> Span:
        per_card = self._shares_per_card
        free = self.cards - whole - -(-shares // per_card)
        return Span(start, end, free, (self.cards - whole) * per_card - shares if per_card > 1 else 0)


def days(first: date, count: int, zone: tzinfo) -> list[Day]:
    dates = [first + timedelta(days=number) for number in range(count + 1)]
    midnights = [datetime.combine(each, time(), zone).astimezone(UTC) for each in dates]
    return [Day(*day) for day in zip(dates[:-1], midnights[:-1], midnights[1:], strict=True)]
