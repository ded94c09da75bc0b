"""How many GPUs of a model are booked at each instant: never more than there are.

Only bookings of the same model compete. Shares of a GPU are of equal size, so at any instant `n` shares, of which `k`
fill a GPU, need ⌈n/k⌉ GPUs.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from carrel.bookings.maintenance import Closing
from carrel.bookings.rules import Booking

_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which the same number of GPUs is free. Below zero: more are booked than there are."""

    start: datetime
    end: datetime
    free: int
    shares: int = 0
    """Free shares, those of wholly free GPUs included. 0 where only whole GPUs are booked."""

    def has_room(self, gpus: int, share: bool = False) -> bool:
        return self.shares > 0 if share else self.free >= gpus


@dataclass(frozen=True, slots=True)
class FreeNow:
    """What of a model is free now, and what of that can be booked: it stays free for the whole shortest booking."""

    unbooked: int
    """Below zero: more are booked than there are."""
    bookable: int
    until: datetime | None = None
    """When fewer than the unbooked ones are free, if that is before the end of the shortest booking."""
    why: str = ""
    """What begins then."""
    next_start: datetime | None = None
    """From when one can be booked: now, if one can. None: never."""

    def words(self, at: Callable[[datetime], str]) -> str:
        """`3 free until Wed 25 Nov 08:00 (maintenance); bookable from Wed 25 Nov 18:00`. Empty: all can be booked."""
        short = f"{self.unbooked} free until {at(self.until)} ({self.why})" if self.until else ""
        later = f"bookable from {at(self.next_start)}" if self.bookable < 1 and self.next_start else ""
        return "; ".join(filter(None, (short, later)))


@dataclass(frozen=True, slots=True)
class Day:
    """A date in the lab's time zone, and the instants at which it starts and ends: 23 to 25 hours apart."""

    date: date
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class DayAvailability(Day):
    """A day with how much is free all of it."""

    free: int
    """Below zero: more is booked than there is."""
    shares: int = 0

    @property
    def overbooked(self) -> int:
        return max(0, -self.free)


class Calendar:
    """The bookings of one model, and when some of its GPUs are under maintenance."""

    def __init__(
        self,
        model: str,
        gpus: int,
        bookings: Iterable[Booking] = (),
        closings: Iterable[Closing] = (),
        shares_per_gpu: int = 1,
    ) -> None:
        self.model = model
        self.gpus = gpus
        self._shares_per_gpu = shares_per_gpu
        changes: dict[datetime, tuple[int, int]] = {}
        closings = list(closings)
        self._closings = {each.start for each in closings}
        taken = [(b.start, b.ends, b.gpus, b.share) for b in bookings if b.model == model and b.counts]
        taken += [(each.start, each.end, each.gpus, False) for each in closings]
        for start, end, count, share in taken:
            if start < end:
                for instant, sign in ((start, 1), (end, -1)):
                    whole, shares = changes.get(instant, (0, 0))
                    changes[instant] = (whole, shares + sign * count) if share else (whole + sign * count, shares)
        self._changes = sorted(changes.items())

    def add(self, booking: Booking) -> None:
        """One more booking, of whole GPUs."""
        for instant, count in ((booking.start, booking.gpus), (booking.ends, -booking.gpus)):
            place = bisect_left(self._changes, instant, key=lambda change: change[0])
            is_there = place < len(self._changes) and self._changes[place][0] == instant
            whole, shares = self._changes[place][1] if is_there else (0, 0)
            self._changes[place : place + is_there] = [(instant, (whole + count, shares))]

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
        return min((span.free for span in self.spans(start, end)), default=self.gpus)

    def by_day(self, days: Sequence[Day]) -> Iterator[DayAvailability]:
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
            free, shares = min(span.free for span in within), min(span.shares for span in within)
            yield DayAvailability(day.date, day.start, day.end, free, shares)
            first = last

    def next_free(self, gpus: int, length: timedelta, not_before: datetime, share: bool = False) -> datetime | None:
        """The first start from which so much is free for so long; None if there is none."""
        candidate = not_before.astimezone(UTC)
        for span in self.spans(candidate, _END_OF_TIME):
            if not span.has_room(gpus, share):
                candidate = span.end
            elif span.end - candidate >= length:
                return candidate
        return None

    def free_now(self, now: datetime, shortest: timedelta) -> FreeNow:
        """What is free now, and what can be booked now: what is free for the shortest booking that the rules allow."""
        spans = list(self.spans(now, now + shortest))
        unbooked, bookable = spans[0].free, max(0, min(span.free for span in spans))
        until = next((span.start for span in spans if span.free < unbooked), None) if unbooked > 0 else None
        why = "" if until is None else "maintenance" if until in self._closings else "booked from then"
        return FreeNow(unbooked, bookable, until, why, self.next_free(1, shortest, now))

    def missing(self, wanted: Booking, parts: Iterable[tuple[datetime, datetime]]) -> Span | None:
        """The first time within these parts of a booking that has too little room for it; None: there is room. The
        booking is not in this calendar."""
        if wanted.share and self._shares_per_gpu == 1:
            return None  # another rule says so
        found: Span | None = None
        for start, end in parts:
            for span in self.spans(start, end) if start < end else ():
                if not span.has_room(wanted.gpus, wanted.share):
                    free = span.free if found is None else min(found.free, span.free)
                    found = Span(found.start if found else span.start, span.end, free)
                elif found is not None:
                    return found
            if found is not None:
                return found
        return None

    def _span(self, start: datetime, end: datetime, whole: int, shares: int) -> Span:
        per_gpu = self._shares_per_gpu
        free = self.gpus - whole - -(-shares // per_gpu)
        return Span(start, end, free, (self.gpus - whole) * per_gpu - shares if per_gpu > 1 else 0)


def days(first: date, count: int, zone: tzinfo) -> list[Day]:
    dates = [first + timedelta(days=number) for number in range(count + 1)]
    midnights = [datetime.combine(each, time(), zone).astimezone(UTC) for each in dates]
    return [Day(*day) for day in zip(dates[:-1], midnights[:-1], midnights[1:], strict=True)]
