"""Held hours for pages, beside what was booked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.records import PersonUsage
from carrel.bookings.store.usage import SqlUsage
from carrel.bookings.usage.sums import HOUR, By, Step, UsageQuery, UsageSum
from carrel.ids import GpuUuid
from carrel.ledger.tiers import Tier


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
Held = Mapping[tuple[str, str], HeldHours]
"""By person and model. The empty name stands for pods without a person."""


async def held_hours(usage: SqlUsage, start: datetime, end: datetime, zone: tzinfo) -> Held:
    """Return what was held from the day of `start` on."""
    query = UsageQuery(start, end, Step.WHOLE, (By.PERSON, By.MODEL, By.TIER))
    held: dict[tuple[str, str], HeldHours] = {}
    for each in await usage.sums(query, zone):
        key = each.person or "", each.model or ""
        held[key] = held.get(key, NOTHING_HELD) + _held_in(each)
    return held


def _held_in(of: UsageSum) -> HeldHours:
    if not of.tier:
        return HeldHours(untiered=of.held)
    return HeldHours(covered=of.held) if of.tier == Tier.BOOKED.value else HeldHours(opportunistic=of.held)


def by_person(held: Held) -> Mapping[str, HeldHours]:
    """Return the hours of each person, the most first."""
    sums: dict[str, HeldHours] = {}
    for (person, _), hours in held.items():
        sums[person] = sums.get(person, NOTHING_HELD) + hours
    return dict(sorted(sums.items(), key=lambda each: (-each[1].total, each[0])))


def with_held(uses: Iterable[PersonUsage], held: Held) -> list[PersonUsage]:
    """Booked and held hours together; also of people who had no booking."""
    booked = {(use.user, use.model): use for use in uses}
    unbooked = sorted((key for key in held if key not in booked), key=lambda key: (-held[key].total, key))
    rows = [*booked.values(), *(PersonUsage(user, model, 0, 0.0) for user, model in unbooked)]
    hours = [held.get((row.user, row.model), NOTHING_HELD) for row in rows]
    return [
        replace(row, covered_gpu_hours=each.covered, opportunistic_gpu_hours=each.opportunistic)
        for row, each in zip(rows, hours, strict=True)
    ]


async def held_by_gpu(
    usage: SqlUsage, gpus: Mapping[GpuUuid, str], start: datetime, hours: int, zone: tzinfo
) -> Sequence[HourlyUsage]:
    """Return for each GPU (UUID → shown name) the part that was held, hour by hour from `start`."""
    parts = {uuid: [0.0] * hours for uuid in gpus}
    query = UsageQuery(start, start + timedelta(hours=hours), Step.HOUR, (By.GPU,))
    for each in await usage.sums(query, zone):
        if each.gpu in parts:
            parts[each.gpu][int((each.start - start) / HOUR)] += min(each.held, 1.0)
    return [HourlyUsage(name, parts[uuid]) for uuid, name in gpus.items()]
