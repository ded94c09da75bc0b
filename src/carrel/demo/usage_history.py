"""What people of the demo held and used in the past: each has habits, and the same seed gives the same history.

Who has booked trains in that time. Others hold what is free: some have notebooks, one trains over night, and one holds
GPUs and does nothing with them. One GPU has a counter that is stuck at zero while it works, so what it was used for is
not known. The history is written by the store of the booking service, as the service writes what it counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from random import Random

from carrel.bookings.rules import Booking
from carrel.bookings.usage.sums import Gap, Progress, UsageAmount, UsageKey, hour_of
from carrel.cluster.options import utc_now
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.tiers import Tier

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
AWAY_AGO, AWAY_FOR = timedelta(days=9, hours=5), timedelta(hours=7)
"""The service was away once, as happens in every lab."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How somebody uses GPUs without a booking."""

    person: str
    gpus: int
    from_hour: int
    until_hour: int
    """By the clock; after 24, on the next day."""
    often: float
    """On what part of all days they come."""
    active: float
    """For what part of the time a GPU of theirs computes."""
    at_weekends: bool = True

    def comes(self, day: datetime, random: Random) -> bool:
        """Whether they come on that day. It takes one number, whatever it answers."""
        return random.random() < self.often and (self.at_weekends or day.weekday() < 5)


HABITS = (
    Habit("hal@lab.example", 2, 0, 24, 0.97, 0.0),  # has forgotten them
    Habit("lab@lab.example", 2, 9, 19, 0.9, 0.35, at_weekends=False),  # notebooks
    Habit("speech@lab.example", 1, 8, 17, 0.7, 0.2, at_weekends=False),
    Habit("vision@lab.example", 2, 10, 26, 0.6, 0.8),
    Habit("nia@lab.example", 1, 20, 32, 0.5, 0.95),  # trains over night
)
TRAINING = 0.93
"""For what part of a booking's time its GPUs compute, once its pods run."""
COMES_LATE = 0.15
"""So many of the bookings are not used before half of their time is over."""


@dataclass(frozen=True, slots=True)
class UsageHistory:
    """Hours of GPUs from `start` until `end`."""

    nodes: Sequence[Node]
    bookings: Sequence[Booking]
    start: datetime
    end: datetime
    zone: tzinfo
    random: Random
    sums: dict[UsageKey, UsageAmount] = field(default_factory=dict)

    @property
    def away(self) -> Gap:
        return Gap(max(self.end - AWAY_AGO, self.start), max(self.end - AWAY_AGO + AWAY_FOR, self.start))

    def write(self) -> Mapping[UsageKey, UsageAmount]:
        gpus = [gpu for node in self.nodes for gpu in node.gpus if not gpu.unusable]
        late = {booking.id for booking in self.bookings if self.random.random() < COMES_LATE}
        here: dict[datetime, list[Habit]] = {}
        for hour in self._hours():
            day = hour.astimezone(self.zone).replace(hour=0)
            if day not in here:
                here[day] = [habit for habit in HABITS if habit.comes(day, self.random)]
            free = list(gpus)
            for booking in self.bookings:
                middle = booking.start + (booking.ends - booking.start) / 2
                if (middle if booking.id in late else booking.start) <= hour < booking.ends:
                    theirs = _taken(free, booking.gpus, lambda gpu, model=booking.model: gpu.model == model)  # type: ignore[misc] # bound at once
                    self._hold(hour, booking.user, theirs, Tier.BOOKED, TRAINING)
            for habit, begun in [*((each, 24) for each in here.get(day - DAY, ())), *((each, 0) for each in here[day])]:
                if habit.from_hour <= hour.astimezone(self.zone).hour + begun < habit.until_hour:
                    theirs = _taken(free, habit.gpus)
                    self._hold(hour, habit.person, theirs, Tier.OPPORTUNISTIC, habit.active)
        return self.sums

    def _hours(self) -> Iterator[datetime]:
        hour = hour_of(self.start, self.zone)
        while hour < self.end:
            yield hour
            hour += HOUR

    def _hold(self, hour: datetime, person: str, gpus: Sequence[Gpu], tier: Tier, active: float) -> None:
        seconds = (min(hour + HOUR, self.end) - max(hour, self.start)).total_seconds()
        for gpu in gpus:
            part = min(max(active + self.random.uniform(-0.06, 0.06), 0.0), 1.0) if active else 0.0
            is_stuck = part > 0 and gpu == self.nodes[0].gpus[0]
            known = 0.0 if is_stuck or self.away.start <= hour < self.away.end else seconds
            key = UsageKey(hour, gpu.uuid, gpu.model, person, tier)
            self.sums[key] = self.sums.get(key, UsageAmount()) + UsageAmount(seconds, known, known * part)


def _taken(free: list[Gpu], number: int, wanted: Callable[[Gpu], bool] = lambda gpu: True) -> Sequence[Gpu]:
    """Take so many away from those that are free: those who come later find others."""
    found = [gpu for gpu in free if wanted(gpu)][:number]
    for gpu in found:
        free.remove(gpu)
    return found


async def write_usage_history(database: str, nodes: Sequence[Node], days: int, random: Random, zone: tzinfo) -> None:
    """Nothing is written without days: the service counts from its start on."""
    from carrel.bookings.store.bookings import SqlBookings  # it takes seconds on a slow machine
    from carrel.bookings.store.database import Database
    from carrel.bookings.store.usage import SqlUsage

    if not days:
        return
    store, now = Database(database), utc_now()
    start = now - days * DAY
    async with aclosing(store):
        async with SqlBookings(store).reading() as reading:
            bookings = [record.booking for record in await reading.within(start, now)]
        history, usage = UsageHistory(nodes, bookings, start, now, zone, random), SqlUsage(store)
        await usage.write(None, Progress(start), {}, zone)
        await usage.write(start, Progress(now), history.write(), zone, [history.away])
