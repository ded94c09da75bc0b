"""PURE. Counts what is held and used, from looks at the cluster: what is counted waits here until it is written.

Between two looks, a GPU is held by who held it at both. Who came counts from when the pod was bound, and who went until
its GPU was given back, as far as that is known. So it does not matter how often somebody looks, and after a restart, a
pod that held its GPU before it counts throughout; what ended in between is not known and counts for nothing.

What was counted is kept in slices of a minute, one after the other. Several processes may count: who writes begins
where the last one has stopped, even in the middle of a slice. The activity of a slice is the difference between the
running totals that a node's agent had reported at its end and those up to which was counted before, whoever did that:
who was away loses in which minutes a GPU was active, and nothing else.

The instants that the node writes are never compared with ours: its clock may be wrong.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.usage.sums import HOUR, Gap, GpuTotals, Progress, UsageAmount, UsageKey, hour_of
from carrel.ids import GpuUuid, HolderId
from carrel.ledger.gpu_activity import draws_like_idle
from carrel.ledger.gpu_usage import GpuUsage
from carrel.ledger.tiers import Tier

SLICE = timedelta(minutes=1)
LONGEST_PAUSE = timedelta(minutes=2)
"""Between two looks. After a longer one, who is gone may have gone at any time."""
SHORTEST_GAP = timedelta(minutes=5)
"""A shorter time in which nobody looked is not worth telling."""
LONGEST_FILLED = timedelta(days=1)
"""A pod that holds its GPU counts so far back, if nobody looked before. Its tier may have been another one."""
DETAILED = 15
"""Slices that are kept as they are. Older ones, which could not be written, are summed up by the hour."""
MOST_SUMS = 200_000
"""Waiting. Of 500 GPUs, these are the sums of two weeks. What comes on top of it takes the place of the oldest hour,
which is a gap then."""
BELIEVED_AFTER = timedelta(minutes=10)
"""A report that seems older than the last one comes from an agent that is being replaced; if it goes on for so long,
it is the last one that was wrong."""
LATE = timedelta(seconds=30)
"""So much later than it was made may a report be seen."""


@dataclass(frozen=True, slots=True)
class HeldPart:
    """A pod that holds a GPU, or a part of it."""

    holder: HolderId
    person: str = ""
    tier: Tier | None = None
    part: float = 1.0
    since: datetime | None = None
    """When it was bound; None: nobody says."""
    of: float = 1.0
    """How much of a physical GPU the GPU is: a MIG slice counts for so many GPU hours."""


@dataclass(frozen=True, slots=True)
class GpuLook:
    """A GPU as it is now."""

    gpu: GpuUuid
    model: str
    holdings: Sequence[HeldPart] = ()
    usage: GpuUsage | None = None
    lowest_watts: float | None = None
    """What the GPU of its model draws that draws least."""


# --- what waits ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Presence:
    """For how long somebody held the same."""

    holding: HeldPart
    start: datetime
    end: datetime


@dataclass(slots=True)
class _GpuSlice:
    model: str
    steady_since: datetime
    """Since when nobody has come or gone."""
    presences: list[_Presence] = field(default_factory=list)
    totals: GpuTotals | None = None
    is_quiet: bool = False
    """It draws no more power than an idle one. There are counters that are stuck at zero."""


@dataclass(slots=True)
class Slice:
    start: datetime
    end: datetime
    gpus: dict[GpuUuid, _GpuSlice] = field(default_factory=dict)
    is_gap: bool = False

    def counted(self, base: Progress, zone: tzinfo) -> "Summed":
        """Return what it is in sums, from where counting has stopped."""
        start, sums, totals = max(self.start, base.until), _Adding(zone), dict(base.totals)
        for gpu, seen in self.gpus.items():
            for each in seen.presences:
                sums.hold(gpu, seen.model, each.holding, max(each.start, start), each.end)
            if seen.totals is not None:
                known = totals.get(gpu)
                totals[gpu], used = progressed(known, seen.totals)
                if known is not None and used is not None:
                    _use(sums, gpu, seen, _Window(known.at, seen.totals.at, *used), start, self.end)
        gaps = [Gap(start, self.end)] if self.is_gap and self.end - start >= SHORTEST_GAP else []
        return Summed(start, self.end, sums.found, totals, gaps)


@dataclass(frozen=True, slots=True)
class Summed:
    """What was counted in a time, and the totals of the GPUs at its end."""

    start: datetime
    end: datetime
    sums: dict[UsageKey, UsageAmount]
    totals: Mapping[GpuUuid, GpuTotals]
    gaps: Sequence[Gap] = ()

    def counted(self, base: Progress, zone: tzinfo) -> "Summed":
        """Return it from where counting has stopped: of a part of the time, so much of everything."""
        if base.until <= self.start:
            return self
        part = (self.end - base.until) / (self.end - self.start)
        sums = {key: each * part for key, each in self.sums.items()}
        gaps = [Gap(max(each.start, base.until), each.end) for each in self.gaps if each.end > base.until]
        return Summed(base.until, self.end, sums, self.totals, gaps)

    @property
    def progress(self) -> Progress:
        return Progress(self.end, self.totals)


class UsageCounter:
    def __init__(self, zone: tzinfo) -> None:
        self.zone = zone
        self._base: Progress | None = None
        self._gpus: dict[GpuUuid, _Before] = {}
        self._looked: datetime | None = None
        self.is_new = True
        """It has not looked yet."""
        self._summed: list[Summed] = []
        self._slices: list[Slice] = []
        self._open: Slice | None = None

    @property
    def looked(self) -> datetime | None:
        """Up to when it has looked."""
        return self._looked

    @property
    def waiting(self) -> int:
        """How many slices wait to be written, with those that are summed up."""
        return len(self._summed) + len(self._slices)

    @property
    def waiting_sums(self) -> int:
        return sum(len(each.sums) for each in self._summed)

    def begin(self, progress: Progress) -> None:
        """To be called first: so far usage is counted."""
        self._base, self._looked = progress, progress.until

    def is_slice_over(self, now: datetime) -> bool:
        """Whether a look ends a slice: only that one needs what the GPUs are used for."""
        start = self._open.start if self._open is not None else self._looked
        return self._was_away(now) or start is None or now - start >= SLICE

    def look(self, looks: Iterable[GpuLook], now: datetime, changed: Mapping[HolderId, datetime]) -> None:
        """Count until now. `changed`: when these holders have got or given back GPUs since the last look.

        If the clock was set back, nothing is counted until it is where it was.
        """
        assert self._looked is not None, "begin"
        start = self._looked
        if now <= start:
            return
        was_away = self._was_away(now)
        if was_away:
            self.close()
        over = self._open or Slice(start, start, is_gap=was_away)
        time, gone = _Time(start, now, changed, was_away), dict(self._gpus)
        for look in looks:
            self._count(over, look, gone.pop(look.gpu, _Before(look.model, {}, now)), time)
        for gpu, before in gone.items():
            self._count(over, GpuLook(gpu, before.model), before, time)
            del self._gpus[gpu]
        over.end = self._looked = now
        self._open, self.is_new = over, False
        if was_away or now - over.start >= SLICE:
            self.close()

    def _was_away(self, now: datetime) -> bool:
        return self.is_new or self._looked is None or now - self._looked > LONGEST_PAUSE

    def _count(self, over: Slice, look: GpuLook, before: "_Before", time: "_Time") -> None:
        held = {each.holder: each for each in _fitting(look.holdings)}
        steady = before.steady_since
        if held.keys() != before.holdings.keys():
            # Of a GPU that is held whole, nobody else had a part since then.
            alone = len(held) == 1 and all(each.part == 1 and each.since is not None for each in held.values())
            steady = min((each.since for each in held.values() if alone and each.since), default=time.now)
        self._gpus[look.gpu] = _Before(look.model, held, steady)
        seen = over.gpus.setdefault(look.gpu, _GpuSlice(look.model, steady))
        seen.steady_since = steady
        came = {uid: time.came(each) for uid, each in held.items() if uid not in before.holdings}
        for uid, holding in held.items():
            _hold(seen.presences, holding, came.get(uid, time.first), time.now)
        for uid, holding in before.holdings.items():
            if uid not in held and (end := time.went(uid)) is not None:
                crowding = [at for other, at in came.items() if held[other].part + holding.part > 1]
                _hold(seen.presences, holding, time.start, min([end, *crowding]))
        if look.usage is not None:
            of = look.usage
            sums = of.sampled.total_seconds(), of.active.total_seconds()
            seen.totals = GpuTotals(time.now, of.since, of.until, *sums)
            seen.is_quiet = draws_like_idle(of.latest.power_watts, look.lowest_watts)

    def close(self) -> None:
        """End the slice that is under way, so that it can be written."""
        if self._open is not None:
            self._slices.append(self._open)
            self._open = None
        if len(self._slices) > DETAILED:
            self._sum_up()

    # --- writing -----------------------------------------------------------------------------------------------------

    def next(self, progress: Progress) -> Summed | None:
        """Return what is to be written next, of an hour at most; None: nothing. `progress`: how far is written."""
        found: list[Summed] = []
        base = progress
        waiting: Sequence[Summed | Slice] = (*self._summed, *self._slices)
        for each in waiting:
            if each.end <= base.until:
                continue
            if found and each.end - found[0].start > HOUR:
                break
            found.append(_after_gap(each.counted(base, self.zone), base))
            base = found[-1].progress
        return _together(found) if found else None

    def written(self, progress: Progress) -> None:
        """Forget what is written, by whomever."""
        self._base = progress
        self._summed = [each for each in self._summed if each.end > progress.until]
        self._slices = [each for each in self._slices if each.end > progress.until]

    def _sum_up(self) -> None:
        """Keep the oldest slices as sums by the hour: they have waited for long."""
        old, self._slices = self._slices[:-DETAILED], self._slices[-DETAILED:]
        for each in old:
            base = self._summed[-1].progress if self._summed else self._base
            assert base is not None, "begin"
            if each.end <= base.until:
                continue
            counted = each.counted(base, self.zone)
            if self._summed and counted.end - self._summed[-1].start <= HOUR:
                counted = _together([self._summed.pop(), counted])
            self._summed.append(counted)
        while self._summed and self.waiting_sums > MOST_SUMS:
            del self._summed[0]


@dataclass(frozen=True, slots=True)
class _Before:
    """A GPU at the last look."""

    model: str
    holdings: Mapping[HolderId, HeldPart]
    steady_since: datetime


@dataclass(frozen=True, slots=True)
class _Time:
    """Between two looks."""

    start: datetime
    now: datetime
    changed: Mapping[HolderId, datetime]
    was_away: bool

    @property
    def first(self) -> datetime:
        """The earliest instant of which something is counted."""
        return max(self.start, self.now - LONGEST_FILLED)

    def came(self, holding: HeldPart) -> datetime:
        """Return since when a holder that was not there before counts."""
        at = holding.since or self.changed.get(holding.holder) or self.now
        return min(max(at, self.first), self.now)

    def went(self, holder: HolderId) -> datetime | None:
        """Return until when a holder counts that is not there any more; None: that is not known."""
        if self.was_away:
            return None
        return min(max(self.changed.get(holder, self.now), self.start), self.now)


def _hold(presences: list[_Presence], holding: HeldPart, start: datetime, end: datetime) -> None:
    if end > start:
        last = next((each for each in presences if each.holding == holding and each.end == start), None)
        if last is not None:
            last.end = end
        else:
            presences.append(_Presence(holding, start, end))


def _fitting(holdings: Sequence[HeldPart]) -> Sequence[HeldPart]:
    """Return them so that together they hold no more than the GPU, whatever the cluster says."""
    whole = sum(each.part for each in holdings)
    return holdings if whole <= 1 else [replace(each, part=each.part / whole) for each in holdings]


def _after_gap(summed: Summed, base: Progress) -> Summed:
    """Return it with the time before it that nobody has counted."""
    if summed.start - base.until < SHORTEST_GAP:
        return summed
    return replace(summed, gaps=[Gap(base.until, summed.start), *summed.gaps])


def _together(parts: Sequence[Summed]) -> Summed:
    sums = defaultdict[UsageKey, UsageAmount](UsageAmount)
    for part in parts:
        for key, amount in part.sums.items():
            sums[key] += amount
    gaps = [gap for part in parts for gap in part.gaps]
    return Summed(parts[0].start, parts[-1].end, dict(sums), parts[-1].totals, gaps)


# --- activity --------------------------------------------------------------------------------------------------------


def progressed(base: GpuTotals | None, new: GpuTotals) -> tuple[GpuTotals, tuple[float, float] | None]:
    """Return up to which totals is counted with this report, and the seconds that were sampled and active since then;
    None: that cannot be said, or there is nothing new."""
    if base is None:
        return new, None
    if (new.since, new.until) == (base.since, base.until):
        return base, None
    if new.since == base.since and new.sampled >= base.sampled and new.active >= base.active:
        return new, (new.sampled - base.sampled, new.active - base.active)
    if new.since >= base.until:
        return new, (max(new.sampled, 0.0), max(new.active, 0.0))  # an agent that began anew, after the last report
    is_older = new.since < base.since or new.until <= base.until
    return (base if is_older and new.at - base.at < BELIEVED_AFTER else new), None


@dataclass(frozen=True, slots=True)
class _Window:
    """The time between two reports, by our clock, and what they say of it."""

    start: datetime
    end: datetime
    sampled: float
    active: float


def _use(sums: "_Adding", gpu: GpuUuid, seen: _GpuSlice, window: _Window, start: datetime, end: datetime) -> None:
    """Add what the GPU did in a slice from `start` to `end` to the sums of those who held it."""
    sampled = min(window.sampled, (window.end - window.start + LATE).total_seconds())
    if not sampled or not (window.active or seen.is_quiet):
        return
    if start - window.start <= LONGEST_PAUSE:
        spread = [(each.holding, max(each.start, start), each.end) for each in seen.presences if each.end > start]
        length = (end - start).total_seconds()
    else:
        # The agent or we were away: who held it all the time is known only if nobody has come or gone since.
        steady = {each.holding.holder: each.holding for each in seen.presences if seen.steady_since <= window.start}
        spread = [(each, window.start, window.end) for each in steady.values()]
        length = (window.end - window.start).total_seconds()
    if window.active and len({holding.holder for holding, _, _ in spread}) > 1:
        return  # which of them was active is not known
    held = sum((until - since).total_seconds() for _, since, until in spread)
    # A minute becomes active as a whole, also what is counted of it already.
    active = min(window.active, sampled + 60.0 if held >= length else sampled * held / length)
    for holding, since, until in spread:
        seconds = (until - since).total_seconds()
        sums.use(gpu, seen.model, holding, since, until, sampled * seconds / length, active * seconds / held)


class _Adding:
    """Sums by the hour."""

    def __init__(self, zone: tzinfo) -> None:
        self._zone = zone
        self.found: dict[UsageKey, UsageAmount] = defaultdict(UsageAmount)
        self._hour: tuple[datetime, datetime] | None = None

    def hold(self, gpu: GpuUuid, model: str, holding: HeldPart, start: datetime, end: datetime) -> None:
        for hour, seconds in self._hours(start, end):
            self._add(hour, gpu, model, holding, UsageAmount(seconds * holding.part * holding.of))

    def use(
        self, gpu: GpuUuid, model: str, holding: HeldPart, start: datetime, end: datetime, known: float, active: float
    ) -> None:
        length = (end - start).total_seconds()
        for hour, seconds in self._hours(start, end):
            part = seconds / length * holding.part * holding.of
            self._add(hour, gpu, model, holding, UsageAmount(0.0, known * part, active * part))

    def _add(self, hour: datetime, gpu: GpuUuid, model: str, holding: HeldPart, amount: UsageAmount) -> None:
        key = UsageKey(hour, gpu, model, holding.person, holding.tier)
        self.found[key] += amount

    def _hours(self, start: datetime, end: datetime) -> Iterable[tuple[datetime, float]]:
        """Return each hour that begins before `end`, and how much of it is within."""
        while start < end:
            if self._hour is None or not self._hour[0] <= start < self._hour[1]:
                first = hour_of(start, self._zone)
                self._hour = first, first + HOUR
            hour, until = self._hour
            yield hour, (min(end, until) - start).total_seconds()
            start = until
