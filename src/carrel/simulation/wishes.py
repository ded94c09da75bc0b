"""When people get the bookings that they wish for, by the rules of the lab and the GPUs that there are.

A person does what most people would: takes as many GPUs and as long as the rules allow, and the first start after the
wished one that they allow. Wishes are heard in the order of time. A wish that cannot be booked yet, because another
booking of the person is active or planned, is heard again when that one has ended: by then others may have booked.

Bookings that exist when the run begins stay as they are, and count for all wishes.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

from carrel.bookings.calendar import Calendar
from carrel.bookings.capacity import capacity_of
from carrel.bookings.rules import LAST_YEAR, Booking, broken_rules, rule_input
from carrel.configuration.schema import BookingRules
from carrel.ids import BookingId, PersonId
from carrel.simulation.workload import BookingWish, SimulatedCluster

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
LATER = ("no-active-overlap", "future-limit")
"""Rules because of which a person must wait before booking at all."""


def instant(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def seconds(when: datetime) -> float:
    return (when - EPOCH).total_seconds()


@dataclass(frozen=True, slots=True)
class BookingOutcome:
    wish: BookingWish
    start_s: float | None
    """None: it cannot be had."""
    end_s: float = 0.0
    gpus: int = 0
    delays: dict[str, float] = field(default_factory=dict)
    """Rule → how many seconds later it starts because of it."""

    def seconds_in(self, first: float, last: float) -> float:
        """How much of it lies in that time."""
        return 0.0 if self.start_s is None else max(0.0, min(self.end_s, last) - max(self.start_s, first))


@dataclass(frozen=True, slots=True)
class BookingTimes:
    """When bookings are made, beside what the wishes say."""

    begins_s: float | None = None
    """What was wished for before is wished for then. None: there is no such time."""
    again_until_s: float | None = None
    """Until then, everybody wishes for the same booking again as soon as it has ended. None: nobody does."""


def granted(
    cluster: SimulatedCluster, wishes: Sequence[BookingWish], rules: BookingRules, times: BookingTimes | None = None
) -> list[BookingOutcome]:
    """In the order in which they were asked for."""
    return _Bookings(cluster, rules, times or BookingTimes()).all_of(wishes)


@dataclass(slots=True)
class _OpenWish:
    """A wish, and how far it is."""

    wish: BookingWish
    number: int
    start: datetime
    delays: dict[str, float] = field(default_factory=dict)

    def put_off(self, rule: str, later: datetime) -> None:
        self.delays[rule] = self.delays.get(rule, 0.0) + (later - self.start).total_seconds()
        self.start = later


class _Bookings:
    def __init__(self, cluster: SimulatedCluster, rules: BookingRules, times: BookingTimes) -> None:
        self._stock = {model: each.gpus for model, each in capacity_of(cluster.nodes).items()}
        self._rules = rules
        self._times = times
        self._numbers = count()
        self._open: list[tuple[datetime, int, _OpenWish]] = []  # a heap: by time, then in the order of the trace
        self._waits_until: dict[PersonId, datetime] = {}  # person → before that, no wish of theirs can be booked
        self._of_person: dict[PersonId, list[Booking]] = {}
        self._of_model: dict[str, list[Booking]] = {}
        self._outcomes: list[tuple[float, int, BookingOutcome]] = []

    def all_of(self, wishes: Iterable[BookingWish]) -> list[BookingOutcome]:
        for wish in wishes:
            if wish.is_made:
                number, start = next(self._numbers), instant(wish.start_s)
                self._make(_OpenWish(wish, number, start), start + timedelta(seconds=wish.lasts_s), wish.gpus)
            else:
                self._wish_for(wish)
        while self._open:
            now, _, each = heapq.heappop(self._open)
            self._hear(each, now)
        return [outcome for _, _, outcome in sorted(self._outcomes, key=lambda each: each[:2])]

    def _wish_for(self, wish: BookingWish) -> None:
        number, asked = next(self._numbers), wish.asked_s
        if self._times.begins_s is not None:
            asked = max(asked, self._times.begins_s)
        heapq.heappush(self._open, (instant(asked), number, _OpenWish(wish, number, instant(wish.start_s))))

    def _hear(self, each: _OpenWish, now: datetime) -> None:
        wish, rules = each.wish, self._rules
        each.start = max(each.start, now)
        own = self._own(wish.user, now)
        if now < self._waits_until.get(wish.user, now):
            is_active = any(booking.is_active(now) for booking in own)
            self._hear_later(each, "no-active-overlap" if is_active else "future-limit")
            return
        stock = self._stock.get(wish.model, 0)
        gpus = min(wish.gpus, rules.max_gpus) if rules.max_gpus else wish.gpus
        length = min(max(timedelta(seconds=wish.lasts_s), rules.min_duration), rules.max_duration)
        calendar = Calendar(wish.model, stock, self._not_over(wish.model, now))
        # Each turn starts later than the one before, and the booking service takes no later year.
        while gpus <= stock and each.start.year <= LAST_YEAR:
            wanted = Booking(BookingId(f"{each.number}"), wish.user, wish.model, each.start, each.start + length, gpus)
            given = rule_input(wanted, own, now, rules)
            broken = [found.rule for found in broken_rules(given)] + ["capacity"] * bool(
                calendar.missing(wanted, [(wanted.start, wanted.end)])
            )
            if not broken:
                self._make(each, wanted.end, gpus)
                return
            waits_for, ends = [rule for rule in broken if rule in LATER], [b.ends for b in own if b.ends > now]
            if waits_for and ends:
                self._waits_until[wish.user] = min(ends)
                self._hear_later(each, waits_for[0])
                return
            rule = broken[0]
            later = calendar.next_free(gpus, length, each.start) if rule == "capacity" else given.earliest_start
            if later is None or later <= each.start:
                break
            each.put_off(rule, later)
        self._note(each, BookingOutcome(wish, None, delays=each.delays))

    def _hear_later(self, each: _OpenWish, rule: str) -> None:
        then = self._waits_until[each.wish.user]
        each.put_off(rule, max(each.start, then))
        heapq.heappush(self._open, (then, each.number, each))

    def _own(self, person: PersonId, now: datetime) -> list[Booking]:
        """The bookings of the person that still matter: time does not go back, so others are forgotten."""
        left = [each for each in self._of_person.get(person, ()) if each.ends + self._rules.cooldown > now]
        self._of_person[person] = left
        return left

    def _not_over(self, model: str, now: datetime) -> list[Booking]:
        left = [each for each in self._of_model.get(model, ()) if each.ends > now]
        self._of_model[model] = left
        return left

    def _make(self, each: _OpenWish, end: datetime, gpus: int) -> None:
        wish = each.wish
        booking = Booking(BookingId(f"{each.number}"), wish.user, wish.model, each.start, end, gpus)
        self._of_person.setdefault(wish.user, []).append(booking)
        self._of_model.setdefault(wish.model, []).append(booking)
        end_s, times = seconds(end), self._times
        self._note(each, BookingOutcome(wish, seconds(each.start), end_s, gpus, each.delays))
        is_in_run = times.begins_s is None or end_s >= times.begins_s
        if times.again_until_s is not None and is_in_run and end_s < times.again_until_s and booking.counts:
            self._wish_for(replace(wish, asked_s=end_s, start_s=end_s, is_made=False))

    def _note(self, each: _OpenWish, outcome: BookingOutcome) -> None:
        self._outcomes.append((each.wish.asked_s, each.number, outcome))
