"""What a GPU is used for, apart from who holds it: sums of what its samples say.

    sampled   the time for which it is known how busy the GPU was
    busy      the part of it in which the GPU computed: ten seconds at 30 % are three
    active    the minutes in which it computed at all

Sums only grow. So whoever reads them twice knows what was between, however long it was away. Time between two samples
that are far apart is in no sum: nothing is known of it. What a GPU or its driver does not say is None, and never zero.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from carrel.ledger.gpus import MiB

LONGEST_GAP = timedelta(seconds=30)
"""Between two samples. Three times the usual interval: one that was missed does not count as a gap."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """What a GPU does now."""

    utilisation: float | None = None
    """From 0 to 1: the part of the time since the last sample in which it computed."""
    used: MiB | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None


NOTHING_KNOWN = GpuSample()


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """The sums of one GPU from `since` to `until`, and its last sample."""

    since: datetime
    until: datetime
    latest: GpuSample = NOTHING_KNOWN
    sampled: timedelta = timedelta()
    busy: timedelta = timedelta()
    active: timedelta = timedelta()
    used_mib_seconds: float = 0.0
    energy_joules: float = 0.0
    last_active: datetime | None = None
    """The last sample in which it computed."""
    sampled_since: datetime | None = None
    """Since when it is known without a gap how busy it was. Before, it may have computed without being seen."""
    idle_in_minute: timedelta = timedelta()
    """Sampled in the minute of `until`, as long as the GPU did not compute in it."""

    def after(self, sample: GpuSample, now: datetime, passed: timedelta) -> "GpuUsage":
        """Return the sums with one more sample. `passed`: since the last one, by a clock that never jumps."""
        known = passed if passed <= LONGEST_GAP else timedelta()
        seconds = known.total_seconds()
        summed = replace(
            self,
            until=now,
            latest=sample,
            used_mib_seconds=self.used_mib_seconds + (sample.used or 0) * seconds,
            energy_joules=self.energy_joules + (sample.power_watts or 0.0) * seconds,
        )
        if sample.utilisation is None:
            return replace(summed, sampled_since=None)
        return summed._with_activity(self.until, sample.utilisation, known)

    def _with_activity(self, before: datetime, utilisation: float, known: timedelta) -> "GpuUsage":
        minute = self.until.replace(second=0, microsecond=0)
        is_active = self.last_active is not None and self.last_active >= minute
        idle = self.idle_in_minute if before >= minute else timedelta()
        is_gap = self.sampled_since is None or not timedelta() <= self.until - before <= LONGEST_GAP
        summed = replace(
            self,
            sampled=self.sampled + known,
            busy=self.busy + known * utilisation,
            sampled_since=self.until if is_gap else self.sampled_since,
        )
        if utilisation > 0:
            return replace(
                summed, active=self.active + idle + known, last_active=self.until, idle_in_minute=timedelta()
            )
        if is_active:
            return replace(summed, active=self.active + known)
        return replace(summed, idle_in_minute=idle + known)
