"""PURE. Whether a GPU that is held is active or idle, as far as its reports say, and for which part of the last hour.

    active     it has computed within the last half an hour
    new        it is held for less than that, and has not computed yet
    idle       it has not computed for half an hour, and its power says the same
    unknown    nobody can say, with the reason

One sign alone makes no GPU idle: there are drivers whose counter reads 0 % while the GPU works. Where several pods hold
parts of a GPU, its sums are those of all of them: only of an idle GPU it is known what each of them does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from carrel.ledger.gpu_usage import NOTHING_KNOWN, GpuSample, GpuUsage

IDLE_AFTER = timedelta(minutes=30)
"""Who thinks about a result for a quarter of an hour is not idle."""
FRESH = timedelta(minutes=5)
"""Agents report every 15 seconds. An older report says nothing about now."""
MOST_POWER = 2.0
"""An idle GPU on which a program waits draws more than one without a program, but not so many times as much …"""
MOST_MORE_WATTS = 15.0
"""… and, where a GPU without a program draws next to nothing, so much more."""


class ActivityState(Enum):
    """In one word."""

    ACTIVE = "active"
    NEW = "new"
    IDLE = "idle"
    UNKNOWN = "unknown"


class UnknownWhy(Enum):
    """Why nobody can say whether a GPU is active."""

    NO_REPORT = "no report"
    OLD_REPORT = "old report"
    UNUSABLE = "unusable"
    NO_COUNTER = "no counter"
    """The GPU does not say how busy it is: a slice of one (MIG), or an old driver."""
    NO_POWER = "no power"
    """It has not computed by its counter, and does not say what power it draws."""
    CONTRADICTION = "contradiction"
    """It has not computed by its counter, and draws the power of a GPU that computes."""
    SHARED = "shared"
    """Several pods hold parts of it, and it is not known which of them computes."""


@dataclass(frozen=True, slots=True)
class ActivePart:
    """How much of a time a GPU was active, by minutes in which it computed at all."""

    since: datetime
    until: datetime
    known: timedelta
    """So much of the time has samples."""
    active: timedelta
    gpus: int = 1
    """The times are those of so many GPUs together."""

    @property
    def part(self) -> float:
        """From 0 to 1, of the time that is known."""
        return min(self.active / self.known, 1.0) if self.known else 0.0

    def __add__(self, other: "ActivePart") -> "ActivePart":
        """Return the part of several GPUs together."""
        first, last = min(self.since, other.since), max(self.until, other.until)
        return ActivePart(first, last, self.known + other.known, self.active + other.active, self.gpus + other.gpus)


@dataclass(frozen=True, slots=True)
class GpuActivity:
    state: ActivityState
    since: datetime | None = None
    """Idle: since when. Unknown: when it was last heard of, if ever. Active: when it last computed."""
    why: UnknownWhy | None = None
    """Of what is unknown."""
    recent: ActivePart | None = None
    """Of the last hour, or of less; None: it is not known."""
    latest: GpuSample = NOTHING_KNOWN

    @property
    def is_idle(self) -> bool:
        return self.state is ActivityState.IDLE

    def without_figures(self) -> "GpuActivity":
        """Return the state alone, as everybody may see it."""
        return replace(self, recent=None, latest=NOTHING_KNOWN)


def unknown(why: UnknownWhy, since: datetime | None = None) -> GpuActivity:
    return GpuActivity(ActivityState.UNKNOWN, since, why)


def activity_of(
    usage: GpuUsage | None,
    now: datetime,
    held_since: datetime | None,
    lowest_watts: float | None,
    recent: ActivePart | None = None,
) -> GpuActivity:
    """Return what a GPU does for those who hold it since `held_since`; None: nobody knows since when. `lowest_watts`:
    what the GPU of its model draws that draws least."""
    if usage is None:
        return unknown(UnknownWhy.NO_REPORT)
    if abs(now - usage.until) > FRESH:
        return unknown(UnknownWhy.OLD_REPORT, usage.until)
    latest = usage.latest
    last = usage.last_active
    if latest.utilisation is None:
        return replace(unknown(UnknownWhy.NO_COUNTER, last), latest=latest)
    looked_since = max(filter(None, (usage.sampled_since or usage.since, held_since)))
    quiet_since = max(last, looked_since) if last is not None else looked_since
    state, why = ActivityState.IDLE, None
    if now - quiet_since < IDLE_AFTER:
        has_computed = last is not None and (held_since is None or last > held_since)
        state, quiet_since = (ActivityState.ACTIVE if has_computed else ActivityState.NEW), last or quiet_since
    elif latest.power_watts is None or lowest_watts is None:
        state, why = ActivityState.UNKNOWN, UnknownWhy.NO_POWER
    elif not draws_like_idle(latest.power_watts, lowest_watts):
        state, why = ActivityState.UNKNOWN, UnknownWhy.CONTRADICTION
    return GpuActivity(state, quiet_since, why, recent, latest)


def draws_like_idle(watts: float | None, lowest_watts: float | None) -> bool:
    """Return whether a GPU draws no more than an idle one, as far as it says so. `lowest_watts`: what the GPU of its
    model draws that draws least."""
    if watts is None or lowest_watts is None:
        return False
    return watts <= MOST_POWER * lowest_watts + MOST_MORE_WATTS


def for_one_of_several(activity: GpuActivity, held_since: datetime | None, now: datetime) -> GpuActivity:
    """Return what is known of one of several that hold parts of a GPU which does that: of an idle one, that all are."""
    if activity.state is ActivityState.UNKNOWN:
        return activity
    if not activity.is_idle:
        return unknown(UnknownWhy.SHARED)
    since = max(filter(None, (activity.since, held_since)))
    return replace(activity, since=since, state=ActivityState.IDLE if now - since >= IDLE_AFTER else ActivityState.NEW)


def of_all(activities: Sequence[GpuActivity]) -> GpuActivity | None:
    """Return the activity of a pod with several GPUs, in one: idle if all are, and active if one is. None: it holds
    none."""
    if not activities:
        return None
    order = (ActivityState.ACTIVE, ActivityState.UNKNOWN, ActivityState.NEW, ActivityState.IDLE)
    first = min(activities, key=lambda each: order.index(each.state))
    known = [each.recent for each in activities if each.recent is not None]
    recent = None
    if len(known) == len(activities):
        recent = known[0]
        for each in known[1:]:
            recent += each
    since = max((each.since for each in activities if each.since is not None), default=None)
    return replace(first, since=since if first.is_idle else first.since, recent=recent)


# --- the last hour ---------------------------------------------------------------------------------------------------

REMEMBERED = timedelta(hours=1)
STEP = timedelta(minutes=10)
"""Between two of the sums that are remembered: seven of them reach back for an hour."""


@dataclass(frozen=True, slots=True)
class _Sums:
    at: datetime
    sampled: timedelta
    active: timedelta


class RecentSums:
    """The sums of one GPU at a few moments of the last hour, as long as the same pods hold it."""

    __slots__ = ("_began", "_sums", "holders")

    def __init__(self, holders: frozenset[str], usage: GpuUsage) -> None:
        self.holders = holders
        self._began = usage.since
        self._sums = [_sums_in(usage)]

    def continues(self, holders: frozenset[str], usage: GpuUsage) -> bool:
        """Whether what is remembered is of the same holders and of the same sums: an agent may begin anew."""
        last = self._sums[-1]
        has_grown = usage.until >= last.at and usage.sampled >= last.sampled and usage.active >= last.active
        return holders == self.holders and usage.since == self._began and has_grown

    def add(self, usage: GpuUsage) -> None:
        if usage.until - self._sums[-1].at >= STEP:
            self._sums.append(_sums_in(usage))
        while len(self._sums) > 1 and usage.until - self._sums[0].at > REMEMBERED:
            del self._sums[0]

    def until(self, usage: GpuUsage) -> ActivePart | None:
        """Return what was since the first of them; None: there is nothing yet."""
        first = next((each for each in self._sums if usage.until - each.at <= REMEMBERED), None)
        if first is None or usage.sampled <= first.sampled:
            return None
        return ActivePart(first.at, usage.until, usage.sampled - first.sampled, usage.active - first.active)


def _sums_in(usage: GpuUsage) -> _Sums:
    return _Sums(usage.until, usage.sampled, usage.active)
