"""What people are told about what a GPU is used for, in the same words on the pages and by the command line.

    active, 42 % of the last hour
    idle since 14:02, 0 % since 13:40
    not active yet
    use unknown: its driver says 0 %, but it draws as much power as a GPU that works

Pure: what is known in, words without a full stop out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from carrel.ledger.gpu_activity import ActivePart, ActivityState, GpuActivity, UnknownWhy
from carrel.parsing.time import MONTHS, at

AN_HOUR = timedelta(minutes=50)
"""So much of the last hour is called by that name: what is remembered begins at a full step."""
WELL_KNOWN = 0.9
"""If samples are missing for more than the rest of a time, it is said how much of it is known."""

WHY = {
    UnknownWhy.NO_REPORT: "its node has reported no sample yet",
    UnknownWhy.OLD_REPORT: "the agent of its node is silent",
    UnknownWhy.UNUSABLE: "the GPU is unusable",
    UnknownWhy.NO_COUNTER: "the GPU does not say how busy it is",
    UnknownWhy.NO_POWER: "its driver says 0 %, and does not say what power it draws",
    UnknownWhy.CONTRADICTION: "its driver says 0 %, but it draws as much power as a GPU that works",
    UnknownWhy.SHARED: "other pods share the GPU, and nobody knows which of them works",
}


BRIEFLY = {
    UnknownWhy.NO_REPORT: "no sample",
    UnknownWhy.OLD_REPORT: "silent",
    UnknownWhy.UNUSABLE: "unusable",
    UnknownWhy.NO_COUNTER: "not reported",
    UnknownWhy.NO_POWER: "one sign only",
    UnknownWhy.CONTRADICTION: "signs differ",
    UnknownWhy.SHARED: "shared",
}


def state_words(activity: GpuActivity, when: Callable[[datetime], str]) -> str:
    """`when` writes an instant."""
    since = f" since {when(activity.since)}" if activity.since is not None else ""
    if activity.state is ActivityState.UNKNOWN:
        return f"use unknown{since if activity.why is UnknownWhy.OLD_REPORT else ''}"
    if activity.state is ActivityState.NEW:
        return "not active yet"
    return f"idle{since}" if activity.is_idle else "active"


@dataclass(frozen=True, slots=True)
class ActivityWords:
    """Words of one moment, in the zone of the person who reads them."""

    zone: tzinfo
    now: datetime

    def when(self, instant: datetime) -> str:
        """`14:02`; `Tue 24 Nov 14:02` of another day."""
        here = instant.astimezone(self.zone)
        return f"{here:%H:%M}" if here.date() == self.now.astimezone(self.zone).date() else at(instant, self.zone)

    def short(self, instant: datetime) -> str:
        """`14:02`; `24 Nov` of another day."""
        here = instant.astimezone(self.zone)
        is_today = here.date() == self.now.astimezone(self.zone).date()
        return f"{here:%H:%M}" if is_today else f"{here.day} {MONTHS[here.month - 1]}"

    def state(self, activity: GpuActivity) -> str:
        """`active`, `idle since 14:02`, `not active yet`, `use unknown since 14:02`: what everybody may see."""
        return state_words(activity, self.when)

    def brief(self, activity: GpuActivity) -> str:
        """For a table: `active`, `idle since 14:02`, `unknown: shared`."""
        return f"unknown: {BRIEFLY[activity.why]}" if activity.why is not None else self.state(activity)

    def reason(self, activity: GpuActivity) -> str:
        """Why it is unknown; empty: it is known."""
        return WHY[activity.why] if activity.why is not None else ""

    def part(self, recent: ActivePart | None) -> str:
        """`42 % of the last hour`, `42 % since 14:20`; empty: it is not known."""
        if recent is None:
            return ""
        percent = f"{100 * recent.part:.0f} %"
        length = recent.until - recent.since
        is_hour = length >= AN_HOUR
        time = "of the last hour" if is_hour else f"since {self.when(recent.since)}"
        if recent.known >= WELL_KNOWN * length * recent.gpus:
            return f"{percent} {time}"
        minutes = round(recent.known / recent.gpus / timedelta(minutes=1))
        return f"{percent} of the {minutes} min that are known {'of the last hour' if is_hour else time}"

    def line(self, activity: GpuActivity) -> str:
        """Everything that is known: `active, 42 % of the last hour`."""
        reason = self.reason(activity)
        recent = activity.recent
        is_said = activity.is_idle and recent is not None and not recent.active
        part = "" if is_said else self.part(recent)
        parts = [f"{self.state(activity)}{f': {reason}' if reason else ''}", part]
        return ", ".join(filter(None, parts))
