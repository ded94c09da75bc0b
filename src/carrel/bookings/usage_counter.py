"""Counts usage, hour by hour: how much of each GPU was held, and how many GPU hours each person held, with a booking
and beyond.

The ledger knows only what is held now, so the counter samples it. The counts are kept in memory for two weeks. They
start again when the process restarts, and each replica has its own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from carrel.ids import GpuUuid, HolderId
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.tiers import Tier

HOUR = timedelta(hours=1)
KEPT = timedelta(days=14)
MIN_INTERVAL = timedelta(seconds=30)
MAX_INTERVAL = timedelta(minutes=5)
"""Nothing is known about the time between two samples. A longer gap, such as a suspended machine, is not counted."""


@dataclass(frozen=True, slots=True)
class HourlyUsage:
    """Of a GPU or a model: which part of it was held, hour by hour."""

    name: str
    parts: Sequence[float]
    """For each hour, from 0 to 1."""

    @property
    def mean(self) -> float:
        return sum(self.parts) / len(self.parts) if self.parts else 0.0


@dataclass(frozen=True, slots=True)
class PodUser:
    """Who is to be counted for a pod."""

    name: str
    """Empty: nobody's."""
    tier: Tier | None


@dataclass(frozen=True, slots=True)
class HeldHours:
    """GPU hours that pods held."""

    covered: float = 0.0
    """While a booking covered the pod."""
    opportunistic: float = 0.0
    """Beyond a booking, or without one."""
    untiered: float = 0.0
    """Held by pods that keep their GPUs without a booking."""

    @property
    def total(self) -> float:
        return self.covered + self.opportunistic + self.untiered

    def __add__(self, other: "HeldHours") -> "HeldHours":
        return HeldHours(
            self.covered + other.covered,
            self.opportunistic + other.opportunistic,
            self.untiered + other.untiered,
        )


NOTHING_HELD = HeldHours()


def _held_in(tier: Tier | None, hours: float) -> HeldHours:
    if tier is None:
        return HeldHours(untiered=hours)
    return HeldHours(covered=hours) if tier is Tier.BOOKED else HeldHours(opportunistic=hours)


@dataclass(slots=True)
class _Hour:
    """Sums in hours: a GPU of which half was held all the time counts 0.5."""

    sampled: float = 0.0
    by_gpu: defaultdict[GpuUuid, float] = field(default_factory=lambda: defaultdict(float))
    by_user: dict[tuple[str, str], HeldHours] = field(default_factory=dict)
    """The key is a person and a model."""


class UsageCounter:
    def __init__(self) -> None:
        self._hours: dict[datetime, _Hour] = {}
        self._last: datetime | None = None

    @property
    def since(self) -> datetime | None:
        """The first hour that was counted."""
        return min(self._hours, default=None)

    def sample(self, entries: Iterable[GpuEntry], user_of: Callable[[HolderId], PodUser], now: datetime) -> None:
        """Call it every few seconds. What is held now counts as held since the last sample.

        `user_of` says whose a pod is and which tier it has now, by the pod's UID.
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
        for entry in entries:
            for uid, share in entry.shares.items():
                held = part * entry.held(share) / entry.gpu.memory
                hour.by_gpu[entry.gpu.uuid] += held
                user = user_of(uid)
                key = (user.name, entry.gpu.model)
                hour.by_user[key] = hour.by_user.get(key, NOTHING_HELD) + _held_in(user.tier, held)

    def _hour_of(self, now: datetime) -> _Hour:
        start = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if start not in self._hours:
            self._hours = {when: hour for when, hour in self._hours.items() if when > start - KEPT}
            self._hours[start] = _Hour()
        return self._hours[start]

    def by_gpu(self, gpus: Mapping[GpuUuid, str], start: datetime, hours: int) -> Sequence[HourlyUsage]:
        """For each GPU (UUID → shown name): the part of its memory that was held, hour by hour from `start`."""
        wanted = [self._hours.get(start + number * HOUR) for number in range(hours)]
        return [
            HourlyUsage(name, [min(hour.by_gpu.get(uuid, 0.0) / hour.sampled, 1.0) if hour else 0.0 for hour in wanted])
            for uuid, name in gpus.items()
        ]

    def by_user(self, start: datetime, end: datetime | None = None) -> Mapping[str, HeldHours]:
        """GPU hours from `start`, the largest first. The empty name stands for pods without a user."""
        sums: dict[str, HeldHours] = {}
        for (user, _), held in self.by_user_and_model(start, end).items():
            sums[user] = sums.get(user, NOTHING_HELD) + held
        return dict(sorted(sums.items(), key=lambda each: (-each[1].total, each[0])))

    def by_user_and_model(self, start: datetime, end: datetime | None = None) -> Mapping[tuple[str, str], HeldHours]:
        """In whole hours: an hour counts if it begins between `start` and `end`."""
        sums: dict[tuple[str, str], HeldHours] = {}
        for when, hour in self._hours.items():
            if start <= when and (end is None or when < end):
                for key, held in hour.by_user.items():
                    sums[key] = sums.get(key, NOTHING_HELD) + held
        return sums
