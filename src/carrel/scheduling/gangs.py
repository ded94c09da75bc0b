"""How the pods of a gang get their GPUs together, although kube-scheduler asks about one pod at a time.

    filter of a member     too few members: refused, with the number that is missing;
                           else one plan for all members is made, and its GPUs are promised to them for a while
    bind of a member       waits for the other members, without a Lease; when all are there, each takes its Leases
    all have theirs        every member writes its Binding
    one fails or is late   every member is refused and gives everything back; the gang backs off for a while

So the Leases of all members are written before any Binding: after a crash between two Bindings, the rest of the gang
finds its GPUs again. And they are written late, so that no Lease names a pod for long before the pod is bound.
A member that comes after others are bound is placed by itself.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.lease_writer import LeaseWriter
from carrel.ledger.gangs import GangMembers, GangPlan, GangPlanner
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang
from carrel.ledger.shares import Coverage, Holder

HISTORY_S = 600.0

LedgerView = Callable[[], AbstractContextManager[None]]
"""The ledger for which a gang is planned: as it is, or as if booked pods that wait had their GPUs already."""


@dataclass(frozen=True, slots=True)
class GangTimeouts:
    """In seconds."""

    together_s: float = 120.0
    """How long a plan waits for the binds of its members: kube-scheduler may try a pod only once a minute."""
    take_s: float = 20.0
    """How long all members may take to write their Leases; the collector waits longer."""
    back_off_s: float = 15.0
    """How long a gang whose plan failed lets others go first; without it two gangs could block each other."""


DEFAULT_GANG_TIMEOUTS = GangTimeouts()


@dataclass(slots=True)
class _PlannedGang:
    """A plan whose members are being bound."""

    plan: GangPlan
    until: float
    asked: frozenset[str]
    """All members that waited when it was made; some of them may have no placement in it."""
    owner: str
    """The owner of the promises of its GPUs."""
    arrived: set[str] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """All have arrived, or the plan has ended."""
    ready: set[str] = field(default_factory=set)
    """The members that have their Leases."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Refusal | None = None


@dataclass(slots=True)
class _GangHistory:
    """What kube-scheduler asked about a gang lately."""

    at: float = 0.0
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Member → the nodes of its last filter call."""


@dataclass(frozen=True, slots=True)
class GangContext:
    """What gangs need of their surroundings."""

    members_of: Callable[[Gang], GangMembers]
    wake: Callable[[Sequence[Holder]], None]
    """Makes kube-scheduler try these pods now: it tries a pod that it could not place only once a minute."""
    clock: Callable[[], float]
    """Seconds; only differences mean something."""
    timeouts: GangTimeouts = DEFAULT_GANG_TIMEOUTS


class GangScheduler:
    def __init__(self, cluster_ledger: ClusterLedger, lease_writer: LeaseWriter, context: GangContext) -> None:
        self._cluster_ledger = cluster_ledger
        self._lease_writer = lease_writer
        self._planner = GangPlanner(cluster_ledger.ledger)
        self._members_of = context.members_of
        self._wake = context.wake
        self._clock = context.clock
        self._timeouts = context.timeouts
        self._gangs: dict[str, _PlannedGang] = {}
        self._plans_made = 0
        self._backing_off: dict[str, float] = {}
        self._history: dict[str, _GangHistory] = {}

    # --- the plan ----------------------------------------------------------------------------------------------------

    def place(
        self, gang: Gang, holder: Holder, nodes: Sequence[str], view: LedgerView = nullcontext
    ) -> Placement | Refusal | None:
        """Where the plan puts this member. None: the gang runs already, and the member may go wherever it fits."""
        self.expire()
        members = self._members_of(gang)
        if members.bound:
            return None
        if gang.unplanned:
            return Refusal(gang.unplanned)
        if holder not in (member for member, _ in members.waiting):
            return Refusal(f"gang {gang.name} does not know {holder} yet")
        self._remember(gang, members, holder, nodes)
        planned = self._gangs.get(gang.name)
        if planned is None or not self._is_still_right(planned, members, holder):
            made = self._make_plan(gang, members, nodes, view)
            if isinstance(made, Refusal):
                return made
            planned = made
        placement = planned.plan.placements.get(holder.uid)
        if placement is None:
            return Refusal(f"gang {gang.name} has room for {gang.size} members now; {holder} joins them when they run")
        if placement.node not in nodes:
            # Something that is not about GPUs has changed since the plan was made.
            refusal = Refusal(f"gang {gang.name} planned {holder} on {placement.node}, where it may not run now")
            self._fail(gang.name, refusal)
            return refusal
        return placement

    def expire(self) -> None:
        """Ends plans whose time is up, and forgets gangs that kube-scheduler has not asked about for a while."""
        now = self._clock()
        for name, planned in tuple(self._gangs.items()):
            if planned.until <= now:
                self._fail(name, Refusal(f"gang {name} was not complete in time"), planned)
        self._backing_off = {name: until for name, until in self._backing_off.items() if until > now}
        self._history = {name: history for name, history in self._history.items() if now - history.at <= HISTORY_S}

    def _remember(self, gang: Gang, members: GangMembers, holder: Holder, nodes: Sequence[str]) -> None:
        history = self._history.setdefault(gang.name, _GangHistory())
        history.at = self._clock()
        uids = {member.uid for member, _ in members.waiting}
        history.nodes = {uid: known for uid, known in history.nodes.items() if uid in uids}
        history.nodes[holder.uid] = tuple(nodes)

    def _is_still_right(self, planned: _PlannedGang, members: GangMembers, holder: Holder) -> bool:
        """Whether all members of the plan still wait, and this one was among those it was made for."""
        uids = {member.uid for member, _ in members.waiting}
        return planned.plan.placements.keys() <= uids and holder.uid in planned.asked

    def _make_plan(
        self, gang: Gang, members: GangMembers, nodes: Sequence[str], view: LedgerView
    ) -> _PlannedGang | Refusal:
        left = self._backing_off.get(gang.name, 0.0) - self._clock()
        if left > 0:
            return Refusal(f"gang {gang.name} could not be bound together and lets others go first for {left:.0f} s")
        self._fail(gang.name, Refusal(f"gang {gang.name} has other members now and is planned again"), backs_off=False)
        with view():
            plan = self._planner.plan(gang, members, nodes, self._history[gang.name].nodes)
        if isinstance(plan, Refusal):
            return plan
        self._plans_made += 1
        asked = frozenset(holder.uid for holder, _ in members.waiting)
        until = self._clock() + self._timeouts.together_s
        planned = self._gangs[gang.name] = _PlannedGang(plan, until, asked, owner=f"{gang.name} #{self._plans_made}")
        placed = [holder for holder, _ in members.waiting if holder.uid in plan.placements]
        for holder in placed:
            self._cluster_ledger.promise(plan.placements[holder.uid], holder, planned.owner)
        self._wake(placed)
        return planned

    # --- bind all together -------------------------------------------------------------------------------------------

    async def wait_together(
        self, gang: Gang, holder: Holder, node: str, coverage: Coverage | None = None
    ) -> Placement | Refusal | None:
        """Waits for the others, takes the member's GPUs, and waits until all have theirs: then the caller may bind.
        `coverage` is recorded with its shares.

        None: the gang runs already, and the member is placed by itself.
        """
        planned = self._gangs.get(gang.name)
        placement = planned.plan.placements.get(holder.uid) if planned else None
        if planned is None or placement is None or placement.node != node:
            if self._members_of(gang).bound:
                return None
            return Refusal(f"gang {gang.name} has no plan for {holder} on {node} any more; a new one is made")
        members = planned.plan.placements.keys()
        planned.arrived.add(holder.uid)
        if planned.arrived >= members:
            planned.complete.set()
        await self._wait(gang.name, planned, planned.complete, lambda: len(members) - len(planned.arrived))
        if planned.failure is None:
            await self._take(gang.name, planned, replace(placement, coverage=coverage), holder)
            await self._wait(gang.name, planned, planned.decided, lambda: len(members) - len(planned.ready))
        return planned.failure or placement

    async def _take(self, name: str, planned: _PlannedGang, placement: Placement, holder: Holder) -> None:
        try:
            refusal = await self._lease_writer.take(placement, holder, is_promised=True)
        except BaseException as error:
            self._fail(name, Refusal(f"gang {name} could not take the GPUs of {holder}: {error}"), planned)
            raise
        if refusal is not None:
            self._fail(name, Refusal(f"gang {name} lost a GPU of {holder}: {refusal.reason}"), planned)
            return
        planned.ready.add(holder.uid)
        if planned.decided.is_set() or planned.ready < planned.plan.placements.keys():
            return
        if max(map(self._lease_writer.held_for, planned.ready)) > self._timeouts.take_s:
            # Checked once for all members: half a gang must not fail.
            self._fail(name, Refusal(f"gang {name} took too long to take its GPUs"), planned)
        else:
            self._end(name, planned)

    async def _wait(self, name: str, planned: _PlannedGang, event: asyncio.Event, missing: Callable[[], int]) -> None:
        try:
            async with asyncio.timeout(max(0.0, planned.until - self._clock())):
                await event.wait()
        except TimeoutError:
            self._fail(name, Refusal(f"gang {name} waited too long for {missing()} of its members"), planned)

    def _fail(self, name: str, why: Refusal, planned: _PlannedGang | None = None, backs_off: bool = True) -> None:
        planned = planned or self._gangs.get(name)
        if planned is None or planned.decided.is_set():
            return
        planned.failure = why
        if name in self._history:
            self._history[name].nodes.clear()  # it may be out of date, which may be why the plan failed
        if backs_off:
            self._backing_off[name] = self._clock() + self._timeouts.back_off_s
        self._end(name, planned)

    def _end(self, name: str, planned: _PlannedGang) -> None:
        planned.complete.set()
        planned.decided.set()
        if self._gangs.get(name) is planned:
            del self._gangs[name]
        for uid in planned.plan.placements:
            self._cluster_ledger.withdraw(uid, planned.owner)
