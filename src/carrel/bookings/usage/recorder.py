"""Counts usage and writes it, in every replica: whoever writes first writes, and the others forget what is written.

While the database is away, what was counted waits. Before the process ends, the last minutes are written.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo

from carrel.bookings.records import StoreUnavailable
from carrel.bookings.store.usage import SqlUsage
from carrel.bookings.usage.counter import UsageCounter
from carrel.bookings.usage.looks import ClusterLooks
from carrel.bookings.usage.sums import Progress

log = logging.getLogger(__name__)

LOOK_EVERY = timedelta(seconds=10)
WRITE_EVERY = timedelta(minutes=5)
ROUND_S = 20.0
LAST_S = 10.0
"""How long the last write may take when the process ends."""
JUMP = timedelta(minutes=2)
"""The clock was set if it went on by so much more than time did."""
BELIEVED_AFTER_S = 600.0
"""A clock that was set is believed after so long: it may be wrong for a while."""
AHEAD = timedelta(days=1)
"""Usage that is counted so far into the future was counted by a wrong clock."""


class UsageRecorder:
    def __init__(
        self,
        store: SqlUsage,
        looks: ClusterLooks,
        zone: tzinfo,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds that never jump."""
        self._store = store
        self._looks = looks
        self._now = now
        self._clock = clock
        self._counter = UsageCounter(zone)
        self._progress: Progress | None = None
        self._ahead = timedelta()  # of the clock that may be set, before the one that never is
        self._jumped_at: float | None = None
        self._ahead_since: float | None = None
        self._failed_since: datetime | None = None
        self.gaps = 0
        """How many this process has written."""

    @property
    def waiting(self) -> int:
        """How many slices of time wait to be written."""
        return self._counter.waiting

    @property
    def age_s(self) -> float:
        """For how long nothing was written, by whichever replica; 0 as long as nothing was read."""
        return (self._now() - self._progress.until).total_seconds() if self._progress is not None else 0.0

    def observe(self) -> None:
        """Look at the cluster, if it is time to. To be called every few seconds."""
        now, looked = self._now(), self._counter.looked
        if looked is None:
            self._looks.changed()  # nothing is counted yet: it shall not pile up while the database is away
            return
        if not self._looks.is_possible or now - looked < LOOK_EVERY or self._was_set(now):
            return
        looks = self._looks.take(self._counter.is_slice_over(now))
        self._counter.look(looks, now, self._looks.changed())

    def _was_set(self, now: datetime) -> bool:
        """Whether the clock was just set forward: then it has to prove right first."""
        at = self._clock()
        ahead = timedelta(seconds=now.timestamp() - at)
        if self._counter.is_new or ahead - self._ahead <= JUMP:
            self._ahead, self._jumped_at = ahead, None
            return False
        if self._jumped_at is None:
            self._jumped_at = at
            log.warning("usage_waits: the clock was set forward by %s", ahead - self._ahead)
        if at - self._jumped_at < BELIEVED_AFTER_S:
            return True
        self._ahead, self._jumped_at = ahead, None
        return False

    async def run(self) -> None:
        """Write again and again, until it is cancelled: then what is left is written."""
        try:
            while True:
                await self.round()
                await asyncio.sleep(ROUND_S)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self.round(is_last=True)

    async def round(self, is_last: bool = False) -> None:
        """Write what has waited long enough, or all of it. A database that is away is tried again by the next round."""
        try:
            await self._write(is_last)
        except StoreUnavailable as error:
            if self._failed_since is None:
                self._failed_since = self._now()
                log.warning("usage_waits: %s", error)
        else:
            if self._failed_since is not None:
                log.info("usage_goes_on after=%s", self._now() - self._failed_since)
            self._failed_since = None

    async def _write(self, is_last: bool) -> None:
        now, until = self._now(), (await self._store.counted()).until
        if until is None or self._is_ahead(until, now):
            await self._begin(until, now)
        elif self._progress is None or self._progress.until != until:
            self._learn(await self._store.progress())
        if is_last and self._counter.looked is not None:
            self.observe()
            self._counter.close()
        while self._progress is not None and (is_last or now - self._progress.until >= WRITE_EVERY):
            summed = self._counter.next(self._progress)
            if summed is None:
                return
            seen, zone = self._progress.until, self._counter.zone
            if not await self._store.write(seen, summed.progress, summed.sums, zone, summed.gaps):
                return  # another replica was first: the next round reads how far it came
            for gap in summed.gaps:
                log.warning("usage_gap from=%s until=%s: nobody counted", gap.start, gap.end)
            self.gaps += len(summed.gaps)
            self._learn(summed.progress)

    def _is_ahead(self, until: datetime, now: datetime) -> bool:
        """Whether usage was counted by a wrong clock. It may be ours that is wrong, for a while."""
        if until - now <= AHEAD:
            self._ahead_since = None
            return False
        if self._ahead_since is None:
            self._ahead_since = self._clock()
        return self._clock() - self._ahead_since >= BELIEVED_AFTER_S

    async def _begin(self, until: datetime | None, now: datetime) -> None:
        """Count from now on: nothing was counted yet, or only by a wrong clock."""
        if until is not None:
            log.warning("usage_counted_ahead until=%s: it is counted from now on", until)
            self._counter = UsageCounter(self._counter.zone)
        await self._store.write(until, Progress(now), {}, self._counter.zone)
        self._learn(await self._store.progress())

    def _learn(self, progress: Progress | None) -> None:
        self._progress = progress
        if progress is not None and self._counter.looked is None:
            self._counter.begin(progress)
        elif progress is not None:
            self._counter.written(progress)
