"""Counts usage, hour by hour: how much of each GPU was held, and how many GPU hours each person held or booked.

The ledger knows only what is held now, so the counter samples it. The counts are kept in memory for two weeks. They
start again when the process restarts, and each replica has its own.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from carrel.bookings.pages.heat_map import HeatMapRow
from carrel.ledger.ledger import Ledger

HOUR = timedelta(hours=1)
KEPT = timedelta(days=14)
MIN_INTERVAL = timedelta(seconds=30)
MAX_INTERVAL = timedelta(minutes=5)
"""Nothing is known about the time between two samples. A longer gap, such as a suspended machine, is not counted."""


@dataclass(slots=True)
class _Hour:
    """Sums in hours: a GPU of which half was held all the time counts 0.5."""

    sampled: float = 0.0
    by_gpu: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_user: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))


class UsageCounter:
    def __init__(self) -> None:
        self._hours: dict[datetime, _Hour] = {}
        self._last: datetime | None = None

    @property
    def since(self) -> datetime | None:
        """The first hour that was counted."""
        return min(self._hours, default=None)

    def sample(self, ledger: Ledger, user_of: Callable[[str], str], now: datetime) -> None:
        """Call it every few seconds. What is held now counts as held since the last sample.

        `user_of` returns the user of a pod, by the pod's UID.
        """
        last = self._last
        if last is not None and timedelta(0) <= now - last < MIN_INTERVAL:
            return
        self._last = now
        if last is None or not timedelta(0) < now - last <= MAX_INTERVAL:
            return
        part = (now - last) / HOUR
        hour = self._hour_of(now)
        hour.sampled += part
        for name in ledger.nodes:
            for card in ledger.cards(name):
                for uid, share in card.shares.items():
                    held = part * card.held(share) / card.gpu.memory
                    hour.by_gpu[card.gpu.uuid] += held
                    hour.by_user[user_of(uid)] += held

    def _hour_of(self, now: datetime) -> _Hour:
        start = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if start not in self._hours:
            self._hours = {when: hour for when, hour in self._hours.items() if when > start - KEPT}
            self._hours[start] = _Hour()
        return self._hours[start]

    def by_gpu(self, gpus: Mapping[str, str], start: datetime, hours: int) -> Sequence[HeatMapRow]:
        """For each GPU (UUID → shown name): the part of its memory that was held, hour by hour from `start`."""
        wanted = [self._hours.get(start + number * HOUR) for number in range(hours)]
        return [
            HeatMapRow(name, [min(hour.by_gpu.get(uuid, 0.0) / hour.sampled, 1.0) if hour else 0.0 for hour in wanted])
            for uuid, name in gpus.items()
        ]

    def by_user(self, start: datetime) -> Mapping[str, float]:
        """GPU hours since `start`, the largest first. The empty name stands for pods without a user."""
        sums: defaultdict[str, float] = defaultdict(float)
        for when, hour in self._hours.items():
            if when >= start:
                for user, held in hour.by_user.items():
                    sums[user] += held
        return dict(sorted(sums.items(), key=lambda each: (-each[1], each[0])))
