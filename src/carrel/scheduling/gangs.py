"""How the pods of a gang get their GPUs together, although kube-scheduler asks about one pod at a time.

    filter of a member     too few members: refused, with the number that is missing;
                           else one plan for all members is made, and its GPUs are promised to them for a while
    bind of a member       waits for the other members, without a Lease; when all are there, each takes its Leases
    all have theirs        every member writes its Binding
    one fails or is late   every member is refused and gives everything back; the gang backs off for a while
    one asks again         it was told its node and never came to be bound: something else than GPUs failed there. If
                           there is room elsewhere, the plan ends, and the next leaves this node out for this member
    one is gone, or bound  the plan ends at once
    by another replica
    one is asked about     in a large cluster kube-scheduler asks about a part of the nodes for each pod. So members
    without its node       are nominated for their nodes, which it then tries first. It is refused and nominated again;
                           if that does not help, it may not run there, as if an attempt had failed

So the Leases of all members are written before any Binding: after a crash between two Bindings, the rest of the gang
finds its GPUs again. And they are written late, so that no Lease names a pod for long before the pod is bound.
A member that comes after others are bound is placed by itself.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from carrel.cluster.pod_progress import holder_of, is_ending
from carrel.cluster.state import ClusterState
from carrel.cluster.watches import gang_keys
from carrel.ids import NO_NODE, HolderId, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gangs import GangMembers, GangPlan, GangPlanner
from carrel.ledger.node_room import fit_test
from carrel.ledger.placement import Placement, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Gang, GpuPolicy, Request
from carrel.ledger.shares import Coverage, Holder
from carrel.scheduling.gang_nodes import GangHistory, SampledNodes
from carrel.scheduling.offers import Offers
from carrel.scheduling.scheduler_config import LONGEST_GANG_S

HISTORY_S = 600.0
MOST_MISSES = 3
"""How often a member may be asked about without its planned node before it counts as one that may not run there: once
because the attempt had begun before the nomination was written, once because kube-scheduler learnt of it late. The
third time kube-scheduler has tried the node."""

LedgerView = Callable[[], AbstractContextManager[None]]
"""The ledger for which a gang is planned: as it is, or as if booked pods that wait had their GPUs already."""


@dataclass(frozen=True, slots=True)
class GangTimeouts:
    """In seconds."""

    together_s: float = LONGEST_GANG_S
    """How long a plan waits for the binds of its members."""
    take_s: float = 20.0
    """How long all members may take to write their Leases; the collector waits longer."""
    back_off_s: float = 15.0
    """How long a gang whose plan failed lets others go first; without it two gangs could block each other."""


DEFAULT_GANG_TIMEOUTS = GangTimeouts()


@dataclass(frozen=True, slots=True)
class NotTogether(Refusal):
    """The gang was not bound, which says nothing about the node of this member."""


@dataclass(slots=True)
class _PlannedGang:
    """A plan whose members are being bound."""

    plan: GangPlan
    until: float
    asked: frozenset[HolderId]
    """All members that waited when it was made; some of them may have no placement in it."""
    owner: str
    """The owner of the promises of its GPUs."""
    arrived: set[HolderId] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """All have arrived, or the plan has ended."""
    ready: set[HolderId] = field(default_factory=set)
    """The members that have their Leases."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Refusal | None = None
    failed_by: str = ""
    """The member that could not take its GPUs; empty: it failed for another reason."""
    nominated: dict[Holder, NodeName] = field(default_factory=dict)
    """The members that kube-scheduler was told to try on their nodes first."""
    misses: Counter[HolderId] = field(default_factory=Counter)
    """Member → how often it was asked about without its node."""

    def why_not(self, uid: HolderId) -> Refusal | None:
        """Why this member may not be bound."""
        if self.failure is None or self.failed_by == uid:
            return self.failure
        return NotTogether(self.failure.reason, self.failure.details)


def spread_out(request: Request) -> Request:
    """The request on the emptiest node, and parts of GPUs also on its emptiest GPU, unless the pod says how it wants to
    be placed."""
    if request.spreads_over_nodes is not None:
        return request
    is_packed_part = request.policy is GpuPolicy.PACK and request.amount != WHOLE
    policy = GpuPolicy.EMPTIEST if is_packed_part else request.policy
    return replace(request, policy=policy, spreads_over_nodes=True)


class GangScheduler:
    def __init__(
        self,
        state: ClusterState,
        offers: Offers,
        sampled: SampledNodes,
        timeouts: GangTimeouts = DEFAULT_GANG_TIMEOUTS,
        *,
        spread: bool = False,
    ) -> None:
        """`spread`: members get parts of the emptiest GPUs."""
        self._cluster_ledger = state.cluster_ledger
        self._lease_writer = state.lease_writer
        self._gang_members = state.gang_members
        self._wake = state.wake
        self._nominations = state.nominations
        self._clock = state.options.clock
        self._offers = offers
        self._sampled = sampled
        self._timeouts = timeouts
        self._spread = spread
        self._planner = GangPlanner(state.ledger)
        self._wide_planner = GangPlanner(state.ledger)  # each remembers one refusal for a gang
        self._gangs: dict[str, _PlannedGang] = {}
        self._planned_in: dict[HolderId, str] = {}  # uid → the gang whose plan has a placement for it
        self._plans_made = 0
        self._backing_off: dict[str, float] = {}
        self._history: dict[str, GangHistory] = {}

    # --- the plan ----------------------------------------------------------------------------------------------------

    def place(
        self, gang: Gang, holder: Holder, nodes: Sequence[NodeName], view: LedgerView = nullcontext
    ) -> Placement | Refusal | None:
        """Where the plan puts this member. None: the gang runs already, and the member may go wherever it fits."""
        self.expire()
        self._heed_question(gang.name, holder, nodes)
        self._heed_missing_node(gang.name, holder, nodes)
        planned = self._gangs.get(gang.name)
        if planned is None or holder.uid not in planned.plan.placements or gang.unplanned:
            made = self._planned_for(gang, holder, nodes, view)
            if not isinstance(made, _PlannedGang):
                return made
            planned = made
        else:  # `on_pod` sees to it that all members of a plan still wait: those of a large gang need not be read again
            self._remember(gang, None, holder, nodes)
        placement = planned.plan.placements.get(holder.uid)
        if placement is None:
            return Refusal(f"gang {gang.name} has room for {gang.size} members now; {holder} joins them when they run")
        if placement.node not in nodes and self._sampled.are_possible:
            self._nominate(planned, {holder: placement.node})
            return Refusal(f"gang {gang.name} planned {holder} on {placement.node}; kube-scheduler tries it there next")
        if placement.node not in nodes:
            # Something that is not about GPUs has changed since the plan was made.
            refusal = Refusal(f"gang {gang.name} planned {holder} on {placement.node}, where it may not run now")
            self._fail(gang.name, refusal)
            self._remember(gang, None, holder, nodes)  # or the next plan would make the same mistake
            return refusal
        if holder.uid not in planned.arrived:
            self._history[gang.name].told[holder.uid] = placement.node
        return placement

    def _planned_for(
        self, gang: Gang, holder: Holder, nodes: Sequence[NodeName], view: LedgerView
    ) -> _PlannedGang | Refusal | None:
        members = self._members_of(gang)
        if members.bound:
            return None
        if gang.unplanned:
            return Refusal(gang.unplanned)
        if holder not in (member for member, _ in members.waiting):
            return Refusal(f"gang {gang.name} does not know {holder} yet")
        self._remember(gang, members, holder, nodes)
        planned = self._gangs.get(gang.name)
        if planned is not None and self._is_still_right(planned, members, holder):
            return planned
        return self._make_plan(gang, members, holder, view)

    def _members_of(self, gang: Gang) -> GangMembers:
        members = self._gang_members(gang)
        if not self._spread:
            return members
        return replace(members, waiting=[(holder, spread_out(request)) for holder, request in members.waiting])

    def _heed_question(self, name: str, holder: Holder, nodes: Sequence[NodeName]) -> None:
        """kube-scheduler does not ask about a pod that it is binding. So a member that was told its node, and has not
        come to be bound since, could not be bound there."""
        node = self._history[name].told.pop(holder.uid, NO_NODE) if name in self._history else NO_NODE
        if node:
            self._offers.failed(holder.uid, node)
            self.attempt_failed(holder, node, nodes)

    def _heed_missing_node(self, name: str, holder: Holder, nodes: Sequence[NodeName]) -> None:
        """Of many nodes kube-scheduler asks about a part, else about all where the pod may run. And it asks about a
        member that was nominated for its node on that node alone, if it may run there."""
        planned = self._gangs.get(name)
        placement = planned.plan.placements.get(holder.uid) if planned else None
        if planned is None or placement is None or placement.node in nodes or not self._sampled.are_possible:
            return
        planned.misses[holder.uid] += 1
        if planned.misses[holder.uid] >= MOST_MISSES:
            self._offers.failed(holder.uid, placement.node)
            self.attempt_failed(holder, placement.node, nodes)

    def _nominate(self, planned: _PlannedGang, nodes: Mapping[Holder, NodeName]) -> None:
        planned.nominated.update(nodes)
        self._nominations.nominate(nodes)

    def attempt_failed(self, holder: Holder, node: NodeName, nodes: Sequence[NodeName] | None = None) -> None:
        """The pod could not be bound there, for a reason of its own: if it is a member of a gang, its plan may end.
        `nodes`: where it may go now; else as it was last asked."""
        name = self._planned_in.get(holder.uid, "")
        planned, history = self._gangs.get(name), self._history.get(name)
        if planned is None or history is None or holder.uid in planned.arrived:
            return
        history.told.pop(holder.uid, None)
        placement = planned.plan.placements[holder.uid]
        if placement.node != node:
            return
        # Those that wait to be bound are not disturbed for nothing: then the plan stays, until its time is up.
        allowed = history.nodes.get(holder.uid, ()) if nodes is None else nodes
        if self._sampled.are_possible:
            allowed = self._sampled.reach([holder.uid], {holder.uid: tuple(allowed)}).get(holder.uid, allowed)
        if not planned.arrived or self._could_go_elsewhere(placement, holder, allowed):
            history.until = planned.until
            why = Refusal(f"gang {name} is planned again, because {holder} could not be bound to {node}")
            self._fail(name, why, planned, backs_off=False)

    def _could_go_elsewhere(self, placement: Placement, holder: Holder, nodes: Sequence[NodeName]) -> bool:
        """Besides the other members, and not to a node that it avoids."""
        ledger, avoided = self._cluster_ledger.ledger, self._offers.avoided_by(holder.uid)
        rooms, fits = ledger.rooms, fit_test(placement.request)
        with_room = (name for name in nodes if name not in avoided and name in rooms and fits(rooms[name]))
        return any(isinstance(place(ledger, placement.request, name, holder.uid), Placement) for name in with_room)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A plan ends when one of its members is gone, bound by another replica, or names another gang now. Nobody is
        to blame for it, so the gang need not back off."""
        pod = new or old
        if pod is None or pod.metadata.uid not in self._planned_in:
            return
        if what := _why_no_member(old, new):
            name = self._planned_in[pod.metadata.uid]
            why = Refusal(f"gang {name} is planned again, because {holder_of(pod)} {what}")
            self._fail(name, why, backs_off=False)

    def expire(self) -> None:
        """Ends plans whose time is up, and forgets gangs that kube-scheduler has not asked about for a while."""
        now = self._clock()
        for name, planned in tuple(self._gangs.items()):
            if planned.until <= now:
                self._fail(name, Refusal(f"gang {name} was not complete in time"), planned)
        self._backing_off = {name: until for name, until in self._backing_off.items() if until > now}
        self._history = {name: history for name, history in self._history.items() if now - history.at <= HISTORY_S}

    def _remember(self, gang: Gang, members: GangMembers | None, holder: Holder, nodes: Sequence[NodeName]) -> None:
        history = self._history.setdefault(gang.name, GangHistory())
        history.at = self._clock()
        if members is not None:
            history.forget_others({member.uid for member, _ in members.waiting})
        asked = frozenset(nodes)
        history.remember(holder.uid, tuple(name for name in self._cluster_ledger.ledger.rooms if name in asked))

    def _is_still_right(self, planned: _PlannedGang, members: GangMembers, holder: Holder) -> bool:
        """Whether all members of the plan still wait, and this one was among those it was made for."""
        uids = {member.uid for member, _ in members.waiting}
        return planned.plan.placements.keys() <= uids and holder.uid in planned.asked

    def _make_plan(self, gang: Gang, members: GangMembers, holder: Holder, view: LedgerView) -> _PlannedGang | Refusal:
        left = self._backing_off.get(gang.name, 0.0) - self._clock()
        if left > 0:
            return Refusal(f"gang {gang.name} could not be bound together and lets others go first for {left:.0f} s")
        self._fail(gang.name, Refusal(f"gang {gang.name} has other members now and is planned again"), backs_off=False)
        with view():
            plan = self._search(gang, members, holder)
        if isinstance(plan, Refusal):
            self._history[gang.name].until = 0.0  # it holds nothing now, so the next plan has all the time
            return plan
        self._plans_made += 1
        history, asked = self._history[gang.name], frozenset(member.uid for member, _ in members.waiting)
        until = history.until if history.until > self._clock() else self._clock() + self._timeouts.together_s
        history.until = 0.0
        planned = self._gangs[gang.name] = _PlannedGang(plan, until, asked, owner=f"{gang.name} #{self._plans_made}")
        placed = [member for member, _ in members.waiting if member.uid in plan.placements]
        for member in placed:
            self._planned_in[member.uid] = gang.name
            self._cluster_ledger.promise(plan.placements[member.uid], member, planned.owner)
        if self._sampled.are_possible:
            others = {member: plan.placements[member.uid].node for member in placed if member != holder}
            self._nominate(planned, others)
        else:
            self._wake(placed)
        return planned

    def _search(self, gang: Gang, members: GangMembers, holder: Holder) -> GangPlan | Refusal:
        known, uids = self._history[gang.name].nodes, [member.uid for member, _ in members.waiting]
        avoided = {uid: names for uid in uids if (names := self._offers.avoided_by(uid))}
        nodes = known[holder.uid]
        if not self._sampled.are_possible or len(uids) < gang.size:
            return self._planner.plan(gang, members, nodes, known, avoided)
        # What kube-scheduler has asked about suits the members for sure. Only if that is not enough, they are planned
        # where they may run as far as Carrel knows; and where they have failed lately, only then too.
        untried = {uid: tuple(name for name in known.get(uid, nodes) if name not in avoided[uid]) for uid in avoided}
        plan = self._planner.plan(gang, members, nodes, {**known, **untried})
        if isinstance(plan, Refusal):
            return self._wide_planner.plan(gang, members, (), self._sampled.reach(uids, known), avoided)
        return plan

    # --- bind all together -------------------------------------------------------------------------------------------

    async def wait_together(
        self, gang: Gang, holder: Holder, node: NodeName, coverage: Coverage | None = None
    ) -> Placement | Refusal | None:
        """Waits for the others, takes the member's GPUs, and waits until all have theirs: then the caller may bind.
        `coverage` is recorded with its shares.

        None: the gang runs already, and the member is placed by itself.
        """
        if gang.name in self._history:
            self._history[gang.name].told.pop(holder.uid, None)
        planned = self._gangs.get(gang.name)
        placement = planned.plan.placements.get(holder.uid) if planned else None
        if planned is None or placement is None or placement.node != node:
            if self._members_of(gang).bound:
                return None
            return NotTogether(f"gang {gang.name} has no plan for {holder} on {node} any more; a new one is made")
        members = planned.plan.placements.keys()
        planned.arrived.add(holder.uid)
        if planned.arrived >= members:
            planned.complete.set()
        try:
            await self._wait(gang.name, planned, planned.complete, lambda: len(members) - len(planned.arrived))
        except asyncio.CancelledError:
            planned.arrived.discard(holder.uid)
            raise
        if planned.failure is None:
            await self._take(gang.name, planned, replace(placement, coverage=coverage), holder)
            await self._wait(gang.name, planned, planned.decided, lambda: len(members) - len(planned.ready))
        return planned.why_not(holder.uid) or placement

    async def _take(self, name: str, planned: _PlannedGang, placement: Placement, holder: Holder) -> None:
        try:
            refusal = await self._lease_writer.take(placement, holder, is_promised=True)
        except BaseException as error:
            self._fail(name, Refusal(f"gang {name} could not take the GPUs of {holder}: {error}"), planned)
            raise
        if refusal is not None:
            why = Refusal(f"gang {name} lost a GPU of {holder}: {refusal.reason}")
            self._fail(name, why, planned, failed_by=holder.uid)
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

    def _fail(
        self,
        name: str,
        why: Refusal,
        planned: _PlannedGang | None = None,
        *,
        backs_off: bool = True,
        failed_by: str = "",
    ) -> None:
        planned = planned or self._gangs.get(name)
        if planned is None or planned.decided.is_set():
            return
        planned.failure, planned.failed_by = why, failed_by
        if backs_off:
            self._backing_off[name] = self._clock() + self._timeouts.back_off_s
            if name in self._history:
                self._history[name].nodes.clear()  # it may be out of date, which may be why the plan failed
        self._end(name, planned)
        self._nominations.withdraw(planned.nominated)

    def _end(self, name: str, planned: _PlannedGang) -> None:
        planned.complete.set()
        planned.decided.set()
        if self._gangs.get(name) is planned:
            del self._gangs[name]
        for uid in planned.plan.placements:
            if self._planned_in.get(uid) == name:
                del self._planned_in[uid]
            self._cluster_ledger.withdraw(uid, planned.owner)


def _why_no_member(old: Pod | None, new: Pod | None) -> str:
    """Why the pod waits no more as a member of its gang; empty: it does."""
    if new is None or is_ending(new):
        return "is gone"
    if new.spec.node_name:
        return "is bound"
    return "names another gang" if old is not None and list(gang_keys(old)) != list(gang_keys(new)) else ""
