"""Leader election by a Lease: at most one process leads, and it knows that it has lost before another can win.

How it stays safe
- No clocks of two machines are compared. A candidate waits until *it has seen* the Lease unchanged for the full
  duration written in it, on its own clock. A leader counts from the moment *before it sent* the renewal. The
  candidate's wait begins after the leader's count, so the leader's deadline (`renew_within_s`) passes before the
  candidate's (`lease_s`), as long as the speeds of the two clocks differ by less than a third.
- Every change of the Lease carries its resourceVersion: of two who try, one gets 409.
- A process that was paused finds that its deadline has passed: `Leadership.holds` reads the clock, not a flag.
- With an event loop of its own, the Lease is renewed however long a decision of the process takes: otherwise one long
  search would cost the leadership, and the next leader would begin the same search.

`decide` is the whole state machine, and pure: from the observed state and the time it gives one step.
"""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar

from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, Conflict, Json, NotFound
from carrel.kubernetes.objects.resources import LEASES
from carrel.kubernetes.timing import REAL_TIME, Timing

T = TypeVar("T")


class OwnLoop:
    """An event loop in a thread of its own, for the few things that may never wait for a long decision of the process.

    What runs there shares no connection with the rest: whoever uses it makes a client for it.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> "OwnLoop":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Runs it there. The future belongs to the caller's loop; if it is cancelled, so is the work."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ElectionTiming:
    lease_s: int = 15
    """How long a Lease is valid after its last change. No other process takes over sooner."""
    renew_within_s: float = 10.0
    """A leader that could not renew for so long stops. The difference to `lease_s` is its time to stop."""
    retry_s: float = 2.0
    """How often a leader renews the Lease and a candidate reads it."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_within_s < self.lease_s:
            raise ValueError(f"expected 0 < retry_s < renew_within_s < lease_s, got {self}")


DEFAULT_ELECTION_TIMING = ElectionTiming()


@dataclass(frozen=True, slots=True)
class Candidate:
    namespace: str
    lease: str
    identity: str
    """Unique to this run of this process: a restarted process is another candidate."""
    election_timing: ElectionTiming = DEFAULT_ELECTION_TIMING


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """The Lease as last read, and since when it has been unchanged."""

    lease: Json
    since: float

    @property
    def holder(self) -> str:
        return self._spec.get("holderIdentity") or ""

    @property
    def transitions(self) -> int:
        return self._spec.get("leaseTransitions") or 0

    @property
    def duration_s(self) -> int:
        return self._spec.get("leaseDurationSeconds") or 0

    @property
    def version(self) -> str:
        return str(self.lease["metadata"]["resourceVersion"])

    def changed(self, spec: Json) -> Json:
        """The Lease to write: with the version and uid that were seen, so that it replaces nothing else."""
        return {**self.lease, "spec": {**self._spec, **spec}}

    @property
    def _spec(self) -> Json:
        return self.lease.get("spec") or {}


class ElectionStep(Enum):
    CREATE = "there is no Lease: create it"
    TAKE = "the Lease has no holder, or it expired: become its holder, and count one more leader"
    RENEW = "this process holds it: renew it"
    WAIT = "another process holds it"


def decide(seen: ObservedLease | None, candidate: Candidate, now: float, *, is_leading: bool) -> ElectionStep:
    if seen is None:
        return ElectionStep.CREATE
    if seen.holder == candidate.identity:
        # We hold it and do not lead: the answer to our own TAKE was lost, or we stopped and could not release it. It
        # is taken again, so that every leadership has a term of its own.
        return ElectionStep.RENEW if is_leading else ElectionStep.TAKE
    if not seen.holder or now - seen.since >= max(seen.duration_s, candidate.election_timing.lease_s):
        return ElectionStep.TAKE
    return ElectionStep.WAIT


class LeadershipLost(Exception):
    """The leader's work was stopped: it could not renew in time, or another process holds the Lease."""


@dataclass(slots=True)
class Leadership:
    """The right to act, until the deadline."""

    term: int
    """Grows with every change of leader (`leaseTransitions`)."""
    safe_until: float
    """On this process's own clock."""
    _now: Callable[[], float]

    def holds(self) -> bool:
        """To be called before every write: true only while no other process can lead."""
        return self._now() < self.safe_until

    def require(self) -> None:
        if not self.holds():
            raise LeadershipLost(f"the leadership of term {self.term} has expired")


class Election:
    """The election as one candidate sees it."""

    def __init__(
        self,
        cluster: Cluster,
        candidate: Candidate,
        *,
        timing: Timing = REAL_TIME,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        own_loop: OwnLoop | None = None,
    ) -> None:
        """`own_loop`: where the Lease is read and written; then nothing else may use `cluster`. None: on the loop of
        the caller."""
        self._start = own_loop.start if own_loop is not None else asyncio.ensure_future
        self._cluster = cluster
        self._candidate = candidate
        self._timing = timing
        self._wall_clock = wall_clock
        """For people who read the Lease; no decision depends on it."""
        self._observed: ObservedLease | None = None
        self._is_certain = False
        """Whether `_observed` is the answer to our own last write: then it is not read again before the next write."""

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Leadership]:
        """Waits until this process leads, and releases the Lease afterwards.

        When leadership is lost, the block is cancelled and raises `LeadershipLost`.
        """
        leadership = await self._start(self._wait_elected())
        log.info("leadership_won lease=%s term=%d", self._candidate.lease, leadership.term)
        worker = asyncio.current_task()
        assert worker is not None, "leading() is used inside a task"
        cancels_before = worker.cancelling()
        is_lost = is_over = False

        def stop_work(ended: asyncio.Future[None]) -> None:
            nonlocal is_lost
            if not is_over and not is_lost:
                is_lost = True
                worker.cancel()

        keepers = [self._start(self._renew(leadership)), asyncio.ensure_future(self._wait_expired(leadership))]
        for keeper in keepers:
            keeper.add_done_callback(stop_work)
        try:
            yield leadership
        except asyncio.CancelledError:
            # Only if the task was not cancelled for another reason too.
            if is_lost and worker.uncancel() <= cancels_before:
                raise LeadershipLost(f"the leadership of term {leadership.term} was lost") from None
            raise
        finally:
            is_over = True
            leadership.safe_until = -math.inf
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._start(self._release())

    async def _wait_elected(self) -> Leadership:
        election_timing = self._candidate.election_timing
        while True:
            sent_at = self._timing.now()
            if (
                await self._attempt(is_leading=False) in (ElectionStep.CREATE, ElectionStep.TAKE)
                and self._observed is not None
            ):
                safe_until = sent_at + election_timing.renew_within_s
                return Leadership(self._observed.transitions, safe_until, self._timing.now)
            await self._timing.sleep(self._timing.spread(election_timing.retry_s))

    async def _renew(self, leadership: Leadership) -> None:
        """Renews until another process holds the Lease, or has held it in the meantime."""
        election_timing = self._candidate.election_timing
        while True:
            await self._timing.sleep(election_timing.retry_s)
            sent_at = self._timing.now()
            step = await self._attempt(is_leading=True)
            if step is ElectionStep.RENEW:
                leadership.safe_until = sent_at + election_timing.renew_within_s
            elif step is not None:
                return

    async def _wait_expired(self, leadership: Leadership) -> None:
        while (left := leadership.safe_until - self._timing.now()) > 0:
            await self._timing.sleep(left)

    async def _attempt(self, *, is_leading: bool) -> ElectionStep | None:
        """The step that was taken. None: it did not succeed, or its answer was lost; read and try again."""
        try:
            if not self._is_certain:
                await self._look()
            self._is_certain = False
            step = decide(self._observed, self._candidate, self._timing.now(), is_leading=is_leading)
            if step is not ElectionStep.WAIT:
                self._observed = ObservedLease(await self._write(step), self._timing.now())
                self._is_certain = True
        except (Conflict, AlreadyExists):
            return None
        except ClusterError as error:
            log.warning("election_retried lease=%s: %s", self._candidate.lease, error)
            return None
        return step

    async def _look(self) -> None:
        candidate = self._candidate
        try:
            lease = await self._cluster.get(LEASES, candidate.lease, candidate.namespace)
        except NotFound:
            self._observed = None
            return
        seen = ObservedLease(lease, self._timing.now())
        if self._observed is None or self._observed.version != seen.version:
            self._observed = seen

    async def _write(self, step: ElectionStep) -> Json:
        candidate, now = self._candidate, _micro_time(self._wall_clock())
        if self._observed is None:
            spec = self._mine(now) | {"acquireTime": now, "leaseTransitions": 0}
            metadata = {"name": candidate.lease, "namespace": candidate.namespace}
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
            return await self._cluster.create(LEASES, body, candidate.namespace)
        changes = self._mine(now)
        if step is ElectionStep.TAKE:
            changes |= {"acquireTime": now, "leaseTransitions": self._observed.transitions + 1}
        return await self._cluster.update(LEASES, self._observed.changed(changes))

    def _mine(self, now: str) -> Json:
        election_timing = self._candidate.election_timing
        return {
            "holderIdentity": self._candidate.identity,
            "leaseDurationSeconds": election_timing.lease_s,
            "renewTime": now,
        }

    async def _release(self) -> None:
        """Best effort, with a short time-out: if it fails, the others wait until the Lease expires."""
        try:
            async with asyncio.timeout(self._candidate.election_timing.retry_s):
                await self._look()
                if self._observed is not None and self._observed.holder == self._candidate.identity:
                    free = {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._cluster.update(LEASES, self._observed.changed(free))
        except (ClusterError, TimeoutError) as error:
            log.warning("release_failed lease=%s: %s", self._candidate.lease, error)
        finally:
            self._is_certain = False


def _micro_time(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
