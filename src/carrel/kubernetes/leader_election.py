"""Leader election by a Lease: at most one process leads, and it knows it has lost before another can win.

How it stays safe
- Nobody compares clocks. A candidate waits until *it has seen* the Lease unchanged for the full duration written in it,
  on its own clock. A leader counts from the moment *before it sent* the renewal. What the candidate waits for began
  after the leader's count did, so the leader's deadline (`renew_within_s`) passes before the candidate's (`lease_s`),
  as long as the two clocks run equally fast to within a third.
- Every change of the Lease carries its resourceVersion: of two who try, one gets 409.
- A process that was paused finds its deadline passed: `Leadership.holds` asks the clock, not a flag.
- The fencing token grows with every change of leader (`leaseTransitions`). What a leader writes may carry it; a token
  that is smaller than one already seen is from a leader of the past.

`decide` is the whole state machine, pure: the state, seen at a time, gives one step. The rest only acts.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from carrel.kubernetes.backoff import REAL_PACE, Timing
from carrel.kubernetes.cluster import AlreadyExists, Cluster, ClusterError, Conflict, Json, NotFound
from carrel.kubernetes.objects.resources import LEASES

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    lease_s: int = 15
    """How long a Lease counts after its last change. Another takes over no sooner."""
    renew_within_s: float = 10.0
    """A leader that could not renew for so long stops. The difference to `lease_s` is its time to wind down."""
    retry_s: float = 2.0
    """How often a leader renews and a candidate looks."""

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_within_s < self.lease_s:
            raise ValueError(f"expected 0 < retry_s < renew_within_s < lease_s, got {self}")


NORMAL_TERMS = Terms()


@dataclass(frozen=True, slots=True)
class Candidate:
    namespace: str
    lease: str
    identity: str
    """Unique to this run of this process: a restarted process is another candidate."""
    terms: Terms = NORMAL_TERMS


@dataclass(frozen=True, slots=True, order=True)
class FencingToken:
    """Grows with every change of leader."""

    transitions: int
    holder: str

    def __str__(self) -> str:
        return f"{self.transitions}/{self.holder}"


@dataclass(frozen=True, slots=True)
class Seen:
    """The Lease as last read, and since when it has looked like this."""

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


class Step(Enum):
    CREATE = "there is no Lease: make it"
    TAKE = "nobody leads by this Lease, or its holder let it run out: write my name, and count one more leader"
    RENEW = "it is mine: say so again"
    WAIT = "somebody else holds it"


def decide(seen: Seen | None, candidate: Candidate, now: float, *, is_leading: bool) -> Step:
    if seen is None:
        return Step.CREATE
    if seen.holder == candidate.identity:
        # Ours without leading: the answer to our own TAKE was lost, or we stopped and could not say so. Taken again,
        # so that every leadership has a token of its own.
        return Step.RENEW if is_leading else Step.TAKE
    if not seen.holder or now - seen.since >= max(seen.duration_s, candidate.terms.lease_s):
        return Step.TAKE
    return Step.WAIT


class LeadershipLost(Exception):
    """Raised where the leader's work was stopped: it could not renew in time, or another holds the Lease."""


@dataclass(slots=True)
class Leadership:
    """The right to act, until the deadline."""

    token: FencingToken
    safe_until: float
    """On this process's own clock."""
    _now: Callable[[], float]

    def holds(self) -> bool:
        """Ask before every write: true only while no other process can lead."""
        return self._now() < self.safe_until

    def require(self) -> FencingToken:
        if not self.holds():
            raise LeadershipLost(f"the leadership {self.token} ran out")
        return self.token


class Election:
    """One candidate's side of it."""

    def __init__(
        self,
        cluster: Cluster,
        candidate: Candidate,
        *,
        pace: Timing = REAL_PACE,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._candidate = candidate
        self._pace = pace
        self._wall_clock = wall_clock
        """Only for people who read the Lease; no decision depends on it."""
        self._seen: Seen | None = None
        self._is_certain = False
        """Whether `_seen` is our own last write, answered: then it is not read again before the next one."""

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Leadership]:
        """Waits until this process leads, and gives the Lease back afterwards.

        When leadership is lost, what runs inside is cancelled and `LeadershipLost` comes out of the block.
        """
        leadership = await self._wait_elected()
        log.info("leadership_won lease=%s token=%s", self._candidate.lease, leadership.token)
        worker = asyncio.current_task()
        assert worker is not None, "leading() is used inside a task"
        cancels_before = worker.cancelling()
        is_lost = is_over = False

        def stop_work(ended: asyncio.Task[None]) -> None:
            nonlocal is_lost
            if not is_over and not is_lost:
                is_lost = True
                worker.cancel()

        keepers = [asyncio.create_task(keep(leadership)) for keep in (self._renew, self._wait_expired)]
        for keeper in keepers:
            keeper.add_done_callback(stop_work)
        try:
            yield leadership
        except asyncio.CancelledError:
            # Only if nobody else wants this task to end as well.
            if is_lost and worker.uncancel() <= cancels_before:
                raise LeadershipLost(f"leadership {leadership.token} was lost") from None
            raise
        finally:
            is_over = True
            leadership.safe_until = -math.inf
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._release()

    async def _wait_elected(self) -> Leadership:
        terms = self._candidate.terms
        while True:
            sent_at = self._pace.now()
            if await self._attempt(is_leading=False) in (Step.CREATE, Step.TAKE) and self._seen is not None:
                token = FencingToken(self._seen.transitions, self._candidate.identity)
                return Leadership(token, sent_at + terms.renew_within_s, self._pace.now)
            await self._pace.sleep(self._pace.spread(terms.retry_s))

    async def _renew(self, leadership: Leadership) -> None:
        """Renews until the Lease is found to be another's, or to have been in the meantime."""
        terms = self._candidate.terms
        while True:
            await self._pace.sleep(terms.retry_s)
            sent_at = self._pace.now()
            step = await self._attempt(is_leading=True)
            if step is Step.RENEW:
                leadership.safe_until = sent_at + terms.renew_within_s
            elif step is not None:
                return

    async def _wait_expired(self, leadership: Leadership) -> None:
        while (left := leadership.safe_until - self._pace.now()) > 0:
            await self._pace.sleep(left)

    async def _attempt(self, *, is_leading: bool) -> Step | None:
        """The step that was taken. None: it did not succeed, or its answer was lost; look and try again."""
        try:
            if not self._is_certain:
                await self._look()
            self._is_certain = False
            step = decide(self._seen, self._candidate, self._pace.now(), is_leading=is_leading)
            if step is not Step.WAIT:
                self._seen = Seen(await self._write(step), self._pace.now())
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
            self._seen = None
            return
        seen = Seen(lease, self._pace.now())
        if self._seen is None or self._seen.version != seen.version:
            self._seen = seen

    async def _write(self, step: Step) -> Json:
        candidate, now = self._candidate, _micro_time(self._wall_clock())
        if self._seen is None:
            spec = self._mine(now) | {"acquireTime": now, "leaseTransitions": 0}
            metadata = {"name": candidate.lease, "namespace": candidate.namespace}
            body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}
            return await self._cluster.create(LEASES, body, candidate.namespace)
        changes = self._mine(now)
        if step is Step.TAKE:
            changes |= {"acquireTime": now, "leaseTransitions": self._seen.transitions + 1}
        return await self._cluster.update(LEASES, self._seen.changed(changes))

    def _mine(self, now: str) -> Json:
        terms = self._candidate.terms
        return {"holderIdentity": self._candidate.identity, "leaseDurationSeconds": terms.lease_s, "renewTime": now}

    async def _release(self) -> None:
        """Best effort, and soon: if it fails, the others wait until the Lease runs out."""
        try:
            async with asyncio.timeout(self._candidate.terms.retry_s):
                await self._look()
                if self._seen is not None and self._seen.holder == self._candidate.identity:
                    free = {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._cluster.update(LEASES, self._seen.changed(free))
        except (ClusterError, TimeoutError) as error:
            log.warning("release_failed lease=%s: %s", self._candidate.lease, error)
        finally:
            self._is_certain = False


def _micro_time(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
