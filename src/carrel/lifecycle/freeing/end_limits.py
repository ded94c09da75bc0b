"""How long a pod may take to end, and how long a disruption budget may keep it: a booked pod waits for its GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from carrel.dialects.options import LONGEST_GRACE_S

LONGEST_GRACE = timedelta(seconds=LONGEST_GRACE_S)
LONGEST_BUDGET_DELAY = timedelta(minutes=10)
FORGET_AFTER = timedelta(hours=20)
"""So long after a budget's protection is over, the next revocation is a new one, and the budget may delay it again."""


@dataclass(frozen=True, slots=True)
class EndLimits:
    grace: timedelta = LONGEST_GRACE
    """Between the moment a pod is told to end and its end. The pod's own grace period could be a year."""
    budget_delay: timedelta = LONGEST_BUDGET_DELAY
    """For how long a disruption budget may delay the end of a pod whose GPU is revoked."""

    @property
    def grace_s(self) -> int:
        return int(self.grace.total_seconds())


DEFAULT_END_LIMITS = EndLimits()


class BudgetDelays:
    """Which pods a disruption budget keeps, and since when.

    Only this process remembers it. After a restart the time of a pod counts from when its hand-over was due.
    """

    def __init__(self, longest: timedelta, now: Callable[[], datetime]) -> None:
        self._longest = longest
        self._now = now
        self._since: dict[str, datetime] = {}  # uid → when an eviction was first refused

    def refused(self, uid: str, due: datetime) -> bool:
        """An eviction was refused; it was due then. Whether the budget may still keep the pod."""
        now, since = self._now(), self._since.get(uid)
        if since is None or now >= since + self._longest + FORGET_AFTER:
            since = self._since[uid] = now
        return now < min(since, due) + self._longest

    def keeps(self, uid: str) -> bool:
        """Whether a budget keeps the pod now, as far as this process has tried."""
        since = self._since.get(uid)
        return since is not None and self._now() < since + self._longest

    def kept(self) -> set[str]:
        """The uids of all pods that a budget keeps now."""
        return set(filter(self.keeps, self._since))

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._since.pop(uid, None)
