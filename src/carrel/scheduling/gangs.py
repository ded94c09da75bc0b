"""How the pods of a gang get their cards together, although kube-scheduler asks for one pod at a time.

    filter of a member     too few members: refused, with who is missing
                           else one plan for all of them; its cards are promised from here on, for a while
    bind of a member       waits for the others, without a Lease; when all are there, each takes its Leases
    all have theirs        all of them go on to their Bindings
    one fails, or late     everybody is refused and gives everything back; the gang steps aside for others for a while

So every member's Leases are written before any member's Binding: after a crash between two Bindings the rest of the
gang finds its own cards again. And they are written late, so that a card is never on a Lease for long without a pod.
A member that comes when others are bound already joins them by itself.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from carrel.leases.cluster_ledger import Books
from carrel.leases.lease_writer import Cards
from carrel.ledger.gangs import GangMembers, GangPlan, GangPlanner
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Gang
from carrel.ledger.shares import Holder

FORGOTTEN_AFTER_S = 600.0

View = Callable[[], AbstractContextManager[None]]
"""How a gang sees the ledger while it is planned: as it is, or as if others, who go first, had their cards."""


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds."""

    together_s: float = 120.0
    """How long a plan is kept while its members come to bind: kube-scheduler may look at a pod only once a minute."""
    take_s: float = 20.0
    """How long all members may take to write their Leases; the collector waits longer."""
    aside_s: float = 15.0
    """How long a gang whose plan failed lets others go first; without it two gangs could take turns in failing."""


NORMAL_PATIENCE = Patience()


@dataclass(slots=True)
class _Muster:
    """A plan that is being carried out."""

    plan: GangPlan
    until: float
    asked: frozenset[str]
    """All who waited when it was made; some of them may have found no place in it."""
    owner: str
    """In whose name its cards are promised."""
    arrived: set[str] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """All have arrived, or it was decided before."""
    ready: set[str] = field(default_factory=set)
    """Who has its Leases."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Refusal | None = None


@dataclass(slots=True)
class _Heard:
    """What was heard of a gang lately."""

    at: float = 0.0
    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Member → where it may go, as it was last asked."""


@dataclass(frozen=True, slots=True)
class Barracks:
    """What a muster needs of the world."""

    roll_of: Callable[[Gang], GangMembers]
    wake: Callable[[Sequence[Holder]], None]
    """Makes kube-scheduler look at these pods now: it puts a pod that it could not place aside for a minute."""
    clock: Callable[[], float]
    """Seconds; only differences mean something."""
    patience: Patience = NORMAL_PATIENCE


class Musters:
    def __init__(self, books: Books, cards: Cards, around: Barracks) -> None:
        self._books = books
        self._cards = cards
        self._planner = GangPlanner(books.ledger)
        self._roll_of = around.roll_of
        self._wake = around.wake
        self._clock = around.clock
        self._patience = around.patience
        self._musters: dict[str, _Muster] = {}
        self._called = 0
        self._aside: dict[str, float] = {}
        self._heard: dict[str, _Heard] = {}

    # --- the plan ----------------------------------------------------------------------------------------------------

    def place(
        self, gang: Gang, holder: Holder, nodes: Sequence[str], view: View = nullcontext
    ) -> Placement | Refusal | None:
        """Where the plan puts this member. None: the gang runs already, the member may go wherever it fits."""
        self.expire()
        roll = self._roll_of(gang)
        if roll.bound:
            return None
        if holder not in (member for member, _ in roll.waiting):
            return Refusal(f"gang {gang.name} has not heard of {holder} yet")
        self._hear(gang, roll, holder, nodes)
        muster = self._musters.get(gang.name)
        if muster is None or not self._is_still_right(muster, roll, holder):
            made = self._call_together(gang, roll, nodes, view)
            if isinstance(made, Refusal):
                return made
            muster = made
        placement = muster.plan.placements.get(holder.uid)
        if placement is None:
            return Refusal(f"gang {gang.name} has room for {gang.size} members now; {holder} joins them when they run")
        if placement.node not in nodes:
            # Something that is not about GPUs has changed since the plan was made.
            refusal = Refusal(f"gang {gang.name} was to have {holder} on {placement.node}, where it may not go now")
            self._fail(gang.name, refusal)
            return refusal
        return placement

    def expire(self) -> None:
        """Gives up plans whose time is up, also if nobody waits for them, and forgets gangs that nobody asks for."""
        now = self._clock()
        for name, muster in tuple(self._musters.items()):
            if muster.until <= now:
                self._fail(name, Refusal(f"gang {name} did not come together in time"), muster)
        self._aside = {name: until for name, until in self._aside.items() if until > now}
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard.at <= FORGOTTEN_AFTER_S}

    def _hear(self, gang: Gang, roll: GangMembers, holder: Holder, nodes: Sequence[str]) -> None:
        heard = self._heard.setdefault(gang.name, _Heard())
        heard.at = self._clock()
        members = {member.uid for member, _ in roll.waiting}
        heard.nodes = {uid: known for uid, known in heard.nodes.items() if uid in members}
        heard.nodes[holder.uid] = tuple(nodes)

    def _is_still_right(self, muster: _Muster, roll: GangMembers, holder: Holder) -> bool:
        """Whether all for whom the plan was made are still there, and this one was among those it was made for."""
        members = {member.uid for member, _ in roll.waiting}
        return muster.plan.placements.keys() <= members and holder.uid in muster.asked

    def _call_together(self, gang: Gang, roll: GangMembers, nodes: Sequence[str], view: View) -> _Muster | Refusal:
        left = self._aside.get(gang.name, 0.0) - self._clock()
        if left > 0:
            return Refusal(f"gang {gang.name} did not come together and lets others go first for {left:.0f} s")
        self._fail(gang.name, Refusal(f"gang {gang.name} has other members now and is planned anew"), aside=False)
        with view():
            plan = self._planner.plan(gang, roll, nodes, self._heard[gang.name].nodes)
        if isinstance(plan, Refusal):
            return plan
        self._called += 1
        asked = frozenset(holder.uid for holder, _ in roll.waiting)
        until = self._clock() + self._patience.together_s
        muster = self._musters[gang.name] = _Muster(plan, until, asked, owner=f"{gang.name} #{self._called}")
        members = [holder for holder, _ in roll.waiting if holder.uid in plan.placements]
        for holder in members:
            self._books.promise(plan.placements[holder.uid], holder, muster.owner)
        self._wake(members)
        return muster

    # --- coming together ---------------------------------------------------------------------------------------------

    async def wait_together(self, gang: Gang, holder: Holder, node: str) -> Placement | Refusal | None:
        """Waits for the others, takes the member's cards, and waits until all have theirs: then go on and bind.

        None: the gang runs already, the member goes by itself.
        """
        muster = self._musters.get(gang.name)
        placement = muster.plan.placements.get(holder.uid) if muster else None
        if muster is None or placement is None or placement.node != node:
            if self._roll_of(gang).bound:
                return None
            return Refusal(f"gang {gang.name} has no plan for {holder} on {node} any more; it is made anew")
        members = muster.plan.placements.keys()
        muster.arrived.add(holder.uid)
        if muster.arrived >= members:
            muster.complete.set()
        await self._wait(gang.name, muster, muster.complete, lambda: len(members) - len(muster.arrived))
        if muster.failure is None:
            await self._take(gang.name, muster, placement, holder)
            await self._wait(gang.name, muster, muster.decided, lambda: len(members) - len(muster.ready))
        return muster.failure or placement

    async def _take(self, name: str, muster: _Muster, placement: Placement, holder: Holder) -> None:
        try:
            refusal = await self._cards.take(placement, holder, is_promised=True)
        except BaseException as error:
            self._fail(name, Refusal(f"gang {name} could not take the cards of {holder}: {error}"), muster)
            raise
        if refusal is not None:
            self._fail(name, Refusal(f"gang {name} lost a card of {holder}: {refusal.reason}"), muster)
            return
        muster.ready.add(holder.uid)
        if muster.decided.is_set() or muster.ready < muster.plan.placements.keys():
            return
        if max(map(self._cards.held_for, muster.ready)) > self._patience.take_s:
            # Looked at once for all: half a gang must not turn back.
            self._fail(name, Refusal(f"gang {name} took too long to take its cards"), muster)
        else:
            self._end(name, muster)

    async def _wait(self, name: str, muster: _Muster, event: asyncio.Event, missing: Callable[[], int]) -> None:
        try:
            async with asyncio.timeout(max(0.0, muster.until - self._clock())):
                await event.wait()
        except TimeoutError:
            self._fail(name, Refusal(f"gang {name} waited in vain for {missing()} of its members"), muster)

    def _fail(self, name: str, why: Refusal, muster: _Muster | None = None, aside: bool = True) -> None:
        muster = muster or self._musters.get(name)
        if muster is None or muster.decided.is_set():
            return
        muster.failure = why
        if name in self._heard:
            self._heard[name].nodes.clear()  # some of it may be why it failed
        if aside:
            self._aside[name] = self._clock() + self._patience.aside_s
        self._end(name, muster)

    def _end(self, name: str, muster: _Muster) -> None:
        muster.complete.set()
        muster.decided.set()
        if self._musters.get(name) is muster:
            del self._musters[name]
        for uid in muster.plan.placements:
            self._books.withdraw(uid, muster.owner)
