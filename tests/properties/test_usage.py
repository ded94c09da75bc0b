"""What is kept of a week equals what happened in it, whatever happens to those who count.

The week has the night in which summer time ends. Pods come and go at odd instants. Two replicas count; each dies for a
while, and once both do. The database is away for a day. The clock is set back. Of the agents, one is silent for hours,
one begins anew, one's counter jumps back, one's clock is an hour wrong, and one is doubled for a moment.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from carrel.bookings.usage.counter import GpuLook, HeldPart, UsageCounter
from carrel.bookings.usage.sums import Gap, Progress, UsageAmount, UsageKey, hour_of
from carrel.ids import GpuUuid, HolderId, PodUid
from carrel.ledger.gpu_usage import GpuSample, GpuUsage
from carrel.ledger.tiers import Tier

STOCKHOLM = ZoneInfo("Europe/Stockholm")
MONDAY = datetime(2026, 10, 18, 22, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
WEEK = 7 * DAY + HOUR
LOOK_EVERY, WRITE_EVERY = 20 * SECOND, 5 * MINUTE
PEOPLE = ["ada@lab.org", "bob@lab.org", "eve@lab.org", ""]
SHARED = 5
"""The last GPU: two pods may hold a half each."""


@dataclass(frozen=True)
class TrueHold:
    """A pod of the simulated week, and in which minutes it computes."""

    uid: HolderId
    person: str
    tier: Tier | None
    part: float
    start: datetime
    end: datetime
    is_dated: bool
    """Whether the pod says when it was bound."""
    rhythm: int
    """It computes for so many minutes of each hour."""

    def holding(self) -> HeldPart:
        return HeldPart(self.uid, self.person, self.tier, self.part, self.start if self.is_dated else None)

    def is_active(self, minute: datetime) -> bool:
        return self.start <= minute < self.end and minute.minute < self.rhythm


@dataclass
class TrueGpu:
    """A GPU with all its pods, and the sums that its agent has at any time."""

    name: GpuUuid
    pods: list[TrueHold]
    active: list[float] = field(default_factory=lambda: [0.0])
    """The active seconds until each minute of the week begins."""

    def __post_init__(self) -> None:
        for number in range(int(WEEK / MINUTE) + 60):
            minute = MONDAY + number * MINUTE
            self.active.append(self.active[-1] + 60 * any(pod.is_active(minute) for pod in self.pods))

    def held_at(self, at: datetime) -> list[TrueHold]:
        return [pod for pod in self.pods if pod.start <= at < pod.end]

    def active_until(self, at: datetime) -> float:
        minute = int((at - MONDAY) / MINUTE)
        is_active = self.active[minute + 1] > self.active[minute]
        return self.active[minute] + is_active * ((at - MONDAY) % MINUTE).total_seconds()


def a_cluster(chance: Random) -> list[TrueGpu]:
    gpus = []
    for number in range(SHARED + 1):
        pods = list[TrueHold]()
        for track in range(2 if number == SHARED else 1):
            at = MONDAY - 5 * HOUR
            while at < MONDAY + WEEK:
                length = chance.choice([7 * MINUTE, HOUR, 9 * HOUR, 30 * HOUR]) + chance.uniform(0, 600) * SECOND
                uid = PodUid(f"pod-{number}-{track}-{len(pods)}")
                rhythm = chance.choice([0, 10, 60]) if number < SHARED else 0
                is_dated = chance.random() < 0.9
                tier = chance.choice([Tier.BOOKED, Tier.OPPORTUNISTIC, None])
                part = 0.5 if number == SHARED else 1.0
                pods.append(TrueHold(uid, chance.choice(PEOPLE), tier, part, at, at + length, is_dated, rhythm))
                at += length + chance.choice([0, 1, 1]) * chance.uniform(1, 3 * 3600) * SECOND
        gpus.append(TrueGpu(GpuUuid(f"GPU-{number}"), pods))
    return gpus


# --- the agents ------------------------------------------------------------------------------------------------------


def reported(number: int, gpu: TrueGpu, at: datetime) -> GpuUsage:
    """Return the last report of a GPU's agent."""
    if number == 1 and 30 * HOUR < at - MONDAY < 33 * HOUR:
        at = MONDAY + 30 * HOUR  # it is silent, and counts on
    began, skew, back = MONDAY - DAY, timedelta(), 0.0
    if number == 2 and at >= MONDAY + 50 * HOUR:
        began = MONDAY + 50 * HOUR  # it has lost its sums
    if number == 3:
        skew = HOUR
    if number == 4 and at >= MONDAY + 60 * HOUR:
        back = 5000.0
    if number == 0 and 70 * HOUR < at - MONDAY < 70 * HOUR + 3 * MINUTE and at.second < 30:
        at -= 40 * SECOND  # of the agent that is being replaced
    sampled = (at - began).total_seconds() - back
    base = gpu.active_until(began) if began >= MONDAY else -9000.0
    active = gpu.active_until(at) - base - back
    latest = GpuSample(0.0, None, 30.0)
    return GpuUsage(began + skew, at + skew, latest, timedelta(seconds=sampled), active=timedelta(seconds=active))


# --- those who count -------------------------------------------------------------------------------------------------


@dataclass
class KeptSums:
    """What a database keeps, with the same promise."""

    progress: Progress = field(default_factory=lambda: Progress(MONDAY))
    sums: dict[UsageKey, UsageAmount] = field(default_factory=lambda: defaultdict(UsageAmount))
    gaps: list[Gap] = field(default_factory=list)


@dataclass
class Counting:
    """A replica of the booking service, which may die and begin again."""

    kept: KeptSums
    counter: UsageCounter | None = None
    looked: datetime = MONDAY
    most_waiting: int = 0

    def look(self, gpus: Sequence[TrueGpu], real: datetime, now: datetime, changes: "Changes") -> None:
        if self.counter is None:
            self.counter = UsageCounter(STOCKHOLM)
            self.counter.begin(self.kept.progress)
            self.looked = real
        with_usage = self.counter.is_slice_over(now)
        looks = [
            GpuLook(
                gpu.name,
                "A100",
                [pod.holding() for pod in gpu.held_at(real)],
                reported(number, gpu, real) if with_usage else None,
                lowest_watts=25.0,
            )
            for number, gpu in enumerate(gpus)
        ]
        self.counter.look(looks, now, changes.between(self.looked, real))
        self.looked = real

    def write(self) -> None:
        assert self.counter is not None
        self.counter.written(self.kept.progress)
        while summed := self.counter.next(self.kept.progress):
            assert summed.start == self.kept.progress.until, "nothing is written twice or left out"
            for key, amount in summed.sums.items():
                self.kept.sums[key] += amount
            self.kept.gaps += summed.gaps
            self.kept.progress = summed.progress
            self.counter.written(summed.progress)


class Changes:
    def __init__(self, gpus: Sequence[TrueGpu]) -> None:
        pods = [pod for gpu in gpus for pod in gpu.pods]
        self._at = sorted([(pod.start, pod.uid) for pod in pods] + [(pod.end, pod.uid) for pod in pods])

    def between(self, start: datetime, end: datetime) -> Mapping[HolderId, datetime]:
        first, last = (bisect_right(self._at, each, key=lambda change: change[0]) for each in (start, end))
        return {uid: at for at, uid in self._at[first:last]}


def is_alive(replica: int, since: timedelta) -> bool:
    both_dead = 100 * HOUR < since < 100 * HOUR + 12 * MINUTE
    dead = (20 * HOUR, 26 * HOUR) if replica == 0 else (80 * HOUR, 81 * HOUR)
    return not (both_dead or dead[0] < since < dead[1])


def clock_at(real: datetime) -> datetime:
    """The clock is set back by ten minutes for a while, and is a minute fast for another."""
    since = real - MONDAY
    if 110 * HOUR < since < 110 * HOUR + 4 * MINUTE:
        return real - 10 * MINUTE
    return real + MINUTE if 120 * HOUR < since < 121 * HOUR else real


def simulated(gpus: Sequence[TrueGpu]) -> KeptSums:
    kept, changes = KeptSums(), Changes(gpus)
    replicas = [Counting(kept), Counting(kept)]
    for step in range(1, WEEK // LOOK_EVERY + 1):
        real = MONDAY + step * LOOK_EVERY
        since = real - MONDAY
        for number, replica in enumerate(replicas):
            if not is_alive(number, since):
                replica.counter = None
                continue
            replica.look(gpus, real + number * SECOND, clock_at(real + number * SECOND), changes)
            is_there = not 40 * HOUR < since < 64 * HOUR
            assert replica.counter is not None
            if is_there and step % (WRITE_EVERY // LOOK_EVERY) == number * 7:
                replica.write()
            assert replica.counter.waiting < 60, "hours are summed up"
    for replica in replicas:
        assert replica.counter is not None
        replica.counter.close()
        replica.write()
    return kept


# --- the promise -----------------------------------------------------------------------------------------------------


def true_sums(gpus: Sequence[TrueGpu]) -> Iterator[tuple[datetime, GpuUuid, str, Tier | None, float, float]]:
    """By the hour: what was held and active of each GPU."""
    for gpu in gpus:
        for pod in gpu.pods:
            at, end = max(pod.start, MONDAY), min(pod.end, MONDAY + WEEK)
            while at < end:
                until = min(hour_of(at, STOCKHOLM) + HOUR, end)
                held = (until - at).total_seconds() * pod.part
                active = (gpu.active_until(until) - gpu.active_until(at)) * (pod.rhythm > 0)
                yield hour_of(at, STOCKHOLM), gpu.name, pod.person, pod.tier, held, active
                at = until


def _sums() -> dict[object, float]:
    return defaultdict(float)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_kept_of_a_week_is_what_happened(seed: int) -> None:
    gpus = a_cluster(Random(seed))
    kept = simulated(gpus)

    held, active, by_hour = _sums(), _sums(), _sums()
    for key, amount in kept.sums.items():
        of_key: tuple[object, ...] = (key.gpu, key.person, key.tier, "all")
        for of in of_key:
            held[of] += amount.held
            active[of] += amount.active
        by_hour[key.hour, key.gpu] += amount.held
    true_held, true_active = _sums(), _sums()
    for _, gpu, person, tier, seconds, active_seconds in true_sums(gpus):
        of_pod: tuple[object, ...] = (gpu, person, tier, "all")
        for each in of_pod:
            true_held[each] += seconds
            true_active[each] += active_seconds

    assert held.keys() == true_held.keys()
    for of, seconds in true_held.items():
        assert held[of] == pytest.approx(seconds, rel=0.01, abs=600), of
        assert active[of] == pytest.approx(true_active[of], rel=0.01, abs=600), of
    assert max(by_hour.values()) <= 3600.001, "an hour has no more than an hour"
    assert len(kept.gaps) == 1
    assert kept.gaps[0].end - kept.gaps[0].start == pytest.approx(12 * MINUTE, abs=2 * MINUTE)
