"""When people get the bookings that they wish for, by the rules of the lab and the GPUs that there are.

A person does what most people would: takes as many GPUs and as long as the rules allow, and the first start after the
wished one that they allow. A wish that cannot be booked now, because another booking of the person is active or
planned, is tried again when that one has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from carrel.bookings.calendar import Calendar
from carrel.bookings.capacity import capacity_of
from carrel.bookings.rules import Booking, BookingRules, judge, rule_input
from carrel.simulation.workload import BookingWish, SimulatedCluster

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
MOST_TRIES = 50
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

    @property
    def model(self) -> str:
        return self.wish.model


def granted(cluster: SimulatedCluster, wishes: Sequence[BookingWish], rules: BookingRules) -> list[BookingOutcome]:
    """In the order in which they were asked for."""
    there = {model: each.cards for model, each in capacity_of(cluster.nodes).items()}
    booked: list[Booking] = []
    queue = sorted(enumerate(wishes), key=lambda item: (item[1].asked_s, item[0]))
    outcomes = []
    for number, wish in queue:
        outcome = _book(wish, f"{number}", booked, there.get(wish.model, 0), rules)
        outcomes.append(outcome)
    return outcomes


def _book(wish: BookingWish, name: str, booked: list[Booking], cards: int, rules: BookingRules) -> BookingOutcome:
    gpus = min(wish.gpus, rules.max_gpus) if rules.max_gpus else wish.gpus
    if gpus > cards:
        return BookingOutcome(wish, None, delays={"capacity": 0.0})
    length = min(max(timedelta(seconds=wish.lasts_s), rules.min_duration), rules.max_duration)
    now, start = instant(wish.asked_s), instant(wish.start_s)
    own = [each for each in booked if each.user == wish.user]
    calendar = Calendar(wish.model, cards, booked)
    delays: dict[str, float] = {}
    for _ in range(MOST_TRIES):
        wanted = Booking(name, wish.user, wish.model, start, start + length, gpus)
        given = rule_input(wanted, own, now, rules)
        shortage = calendar.shortage(wanted)
        verdict = judge(given)
        broken = [each.rule for each in verdict.broken] + (["capacity"] if shortage else [])
        if not broken:
            booked.append(wanted)
            return BookingOutcome(wish, seconds(start), seconds(wanted.end), gpus, delays)
        rule = broken[0]
        if any(each in LATER for each in broken):
            rule = next(each for each in broken if each in LATER)
            ends = [each.ends for each in own if each.ends > now]
            now = min(ends, default=now)
            later = max(start, now)
        elif rule == "capacity":
            later = calendar.next_free(gpus, length, start) or start
        else:
            later = max(start, verdict.earliest_start)
        delays[rule] = delays.get(rule, 0.0) + (later - start).total_seconds()
        if later == start and rule not in LATER:
            break
        start = later
    return BookingOutcome(wish, None, delays=delays)
