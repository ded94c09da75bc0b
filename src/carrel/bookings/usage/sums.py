"""What is kept of usage, and how it is asked for. `store.usage` keeps it.

    held       a pod held the GPU, or a part of it: half of a GPU for two hours is one GPU hour
    active     of these, the minutes in which the GPU computed at all
    idle       of these, the minutes in which it did not
    unknown    the rest: there was no report, the GPU does not say, or several pods held it and nobody knows which of
               them computed

Hours are those of the lab's clock, and days, weeks and months the lab's: a day on which the clock is changed has 23 or
25 hours. Hours are kept for 90 days, days for three years. What was booked, the bookings themselves say.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import Enum

from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS_KEPT = timedelta(days=90)
DAYS_KEPT = timedelta(days=1096)
"""Three years, whichever of them is a leap year."""


# --- asking ----------------------------------------------------------------------------------------------------------


class Step(Enum):
    """How long a time each sum is of."""

    HOUR = "hour"
    """Only of the last 90 days."""
    DAY = "day"
    WEEK = "week"
    """From Monday."""
    MONTH = "month"
    WHOLE = "whole"
    """All that is asked for, in one."""


class By(Enum):
    """What sums are kept apart by."""

    MODEL = "model"
    PERSON = "person"
    TIER = "tier"
    GPU = "gpu"
    """Three years of days by GPU are read more slowly than by anything else."""


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """From `start` until before `end`. Steps other than hours are of whole days: from that of `start` to the last that
    begins before `end`; a week or month that is only partly within counts with its days within."""

    start: datetime
    end: datetime
    step: Step = Step.WHOLE
    by: Collection[By] = (By.MODEL,)
    person: str | None = None
    """Only of this person; the empty name: of pods without a person, and of people whose names were forgotten."""


@dataclass(frozen=True, slots=True)
class UsageSum:
    """GPU hours. A name is None if sums are not kept apart by it."""

    start: datetime
    """When the step begins; a week, month or whole that is only partly within: its first day within."""
    held: float = 0.0
    active: float = 0.0
    idle: float = 0.0
    model: str | None = None
    person: str | None = None
    """Empty: pods without a person, and people whose names were forgotten."""
    tier: str | None = None
    """`booked`, `opportunistic`, or empty: pods without a tier, which keep their GPUs."""
    gpu: GpuUuid | None = None

    @property
    def unknown(self) -> float:
        return max(self.held - self.active - self.idle, 0.0)


@dataclass(frozen=True, slots=True)
class Counted:
    """What time the sums are of."""

    since: datetime | None = None
    """None: nothing was counted yet."""
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nobody counted. Pods that held their GPUs before and after it are counted all the same."""

    start: datetime
    end: datetime


# --- keeping ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsageKey:
    """What a sum is of."""

    hour: datetime
    """When it begins."""
    gpu: GpuUuid
    model: str
    person: str = ""
    tier: Tier | None = None


@dataclass(frozen=True, slots=True)
class UsageAmount:
    """Seconds of a GPU: half of it for a minute is 30."""

    held: float = 0.0
    known: float = 0.0
    """So much of them is known to be active or idle."""
    active: float = 0.0

    def __add__(self, other: "UsageAmount") -> "UsageAmount":
        return UsageAmount(self.held + other.held, self.known + other.known, self.active + other.active)

    def __mul__(self, part: float) -> "UsageAmount":
        return UsageAmount(self.held * part, self.known * part, self.active * part)


Sums = Mapping[UsageKey, UsageAmount]


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """The running totals of a GPU, as its node's agent has reported them, up to which it is counted."""

    at: datetime
    """When this was learnt, by the clock of those who count: the node's may be wrong."""
    since: datetime
    until: datetime
    sampled: float
    """In seconds."""
    active: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far usage is counted, by whichever replica."""

    until: datetime
    totals: Mapping[GpuUuid, GpuTotals] = field(default_factory=dict)


# --- the lab's time --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Days:
    """Days of the lab, from the first until before the last."""

    start: datetime
    first: date
    last: date


def hour_of(at: datetime, zone: tzinfo) -> datetime:
    """Return when the hour began, by the clock on the wall: in some zones it is half an hour beside the others."""
    wall = at.astimezone(zone)
    past = timedelta(minutes=wall.minute, seconds=wall.second, microseconds=wall.microsecond)
    return at.astimezone(UTC) - past


def day_of(at: datetime, zone: tzinfo) -> date:
    return at.astimezone(zone).date()


def steps(query: UsageQuery, zone: tzinfo) -> Sequence[Days]:
    """Return the times of the sums that are asked for, in steps other than hours."""
    first, last = day_of(query.start, zone), day_of(query.end - timedelta(microseconds=1), zone) + DAY
    found = []
    while first < last:
        until = min(_next(first, query.step, last), last)
        found.append(Days(datetime.combine(first, time(), zone).astimezone(UTC), first, until))
        first = until
    return found


def _next(day: date, step: Step, last: date) -> date:
    if step is Step.DAY:
        return day + DAY
    if step is Step.WEEK:
        return day + (7 - day.weekday()) * DAY
    return (day.replace(day=1) + 31 * DAY).replace(day=1) if step is Step.MONTH else last


def month_of(day: date) -> int:
    """Return the number of the month."""
    return 12 * day.year + day.month - 1


Within = tuple[int, int, int]
"""To which step the rows belong that are from a first number until before a last one: of days, or of months. A step is
named by the number of its first day."""


def split_by_months(of: Sequence[Days]) -> tuple[Sequence[Within], Sequence[Within]]:
    """Return the whole months that are in these, and the days that are left."""
    months, days = list[Within](), list[Within]()
    for each in of:
        step, last = each.first.toordinal(), each.last.toordinal()
        first_month = each.first if each.first.day == 1 else _next(each.first, Step.MONTH, each.last)
        last_month = each.last.replace(day=1)
        if first_month < last_month:
            months.append((step, month_of(first_month), month_of(last_month)))
            days += [(step, step, first_month.toordinal()), (step, last_month.toordinal(), last)]
        else:
            days.append((step, step, last))
    return months, [each for each in days if each[1] < each[2]]
