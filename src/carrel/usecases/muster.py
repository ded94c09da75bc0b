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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from carrel.core.gangs import GangPlan, plan_gang
from carrel.core.placement import Placement, Waiting, held_placement
from carrel.core.reasons import Refusal
from carrel.core.requests import Gang, Request
from carrel.core.shares import Holder
from carrel.protocols import Malformed
from carrel.protocols.asks import Ask
from carrel.protocols.kubernetes.shapes import Pod
from carrel.usecases.hold import Cards
from carrel.usecases.observe import Books, is_going


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds."""

    together_s: float = 120.0
    """How long a plan is kept while its members come to bind: kube-scheduler may look at a pod only once a minute."""
    aside_s: float = 15.0
    """How long a gang whose plan failed lets others go first; without it two gangs could take turns in failing."""


@dataclass(frozen=True, slots=True)
class Roll:
    """Who of a gang there is."""

    waiting: Sequence[tuple[Holder, Request]]
    bound: int


@dataclass(slots=True)
class _Muster:
    """A plan that is being carried out."""

    plan: GangPlan
    until: float
    arrived: set[str] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """All have arrived, or it was decided before."""
    ready: set[str] = field(default_factory=set)
    """Who has its Leases."""
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Barracks:
    """What a muster needs of the world."""

    roll_of: Callable[[Gang], Roll]
    wake: Callable[[Sequence[Holder]], None]
    """Makes kube-scheduler look at these pods now: it puts a pod that it could not place aside for a minute."""
    clock: Callable[[], float]
    """Seconds; only differences mean something."""
    patience: Patience = Patience()


class Musters:
    def __init__(self, books: Books, cards: Cards, around: Barracks) -> None:
        self._books = books
        self._cards = cards
        self._roll_of = around.roll_of
        self._wake = around.wake
        self._clock = around.clock
        self._patience = around.patience
        self._musters: dict[str, _Muster] = {}
        self._aside: dict[str, float] = {}
        self._nodes: dict[str, tuple[str, ...]] = {}  # member → where it may go, as it was last asked

    def place(self, gang: Gang, holder: Holder, nodes: Sequence[str]) -> Placement | Refusal | None:
        """Where the plan puts this member. None: the gang runs already, the member may go wherever it fits."""
        self.expire()
        roll = self._roll_of(gang)
        if roll.bound:
            return None
        self._nodes[holder.uid] = tuple(nodes)
        muster = self._musters.get(gang.name)
        if muster is None or holder.uid not in muster.plan.placements:
            made = self._call_together(gang, roll, nodes)
            if isinstance(made, Refusal):
                return made
            muster = made
        placement = muster.plan.placements[holder.uid]
        if placement.node not in nodes:
            # Something that is not about GPUs has changed since the plan was made.
            refusal = Refusal(f"gang {gang.name} was to have {holder} on {placement.node}, where it may not go now")
            self._fail(gang.name, refusal)
            return refusal
        return placement

    def why(self, gang: Gang, nodes: Sequence[str]) -> Refusal | None:
        """Why the gang cannot come together now; None if it can, or runs already. Changes nothing."""
        roll = self._roll_of(gang)
        plan = None if roll.bound or gang.name in self._musters else self._plan(gang, roll, nodes)
        return plan if isinstance(plan, Refusal) else None

    async def wait_together(self, gang: Gang, holder: Holder) -> Placement | Refusal:
        """Takes the member's cards, then waits for the others. With a placement all are ready: go on and bind."""
        muster = self._musters.get(gang.name)
        placement = muster.plan.placements.get(holder.uid) if muster else None
        if muster is None or placement is None:
            return Refusal(f"gang {gang.name} has no plan for {holder} any more; it is made anew")
        members = muster.plan.placements.keys()
        muster.arrived.add(holder.uid)
        if muster.arrived >= members:
            muster.complete.set()
        await self._wait(gang.name, muster, muster.complete, lambda: len(members) - len(muster.arrived))
        if muster.failure is None:
            refusal = await self._cards.take(placement, holder)
            if refusal is not None:
                self._fail(gang.name, Refusal(f"gang {gang.name} lost a card of {holder}: {refusal.reason}"), muster)
            else:
                muster.ready.add(holder.uid)
                if muster.ready >= members:
                    self._end(gang.name, muster)
                await self._wait(gang.name, muster, muster.decided, lambda: len(members) - len(muster.ready))
        return muster.failure or placement

    async def _wait(self, name: str, muster: _Muster, event: asyncio.Event, missing: Callable[[], int]) -> None:
        try:
            async with asyncio.timeout(max(0.0, muster.until - self._clock())):
                await event.wait()
        except TimeoutError:
            self._fail(name, Refusal(f"gang {name} waited in vain for {missing()} of its members"), muster)

    def expire(self) -> None:
        """Gives up plans whose time is up, also if nobody waits for them."""
        now = self._clock()
        for name, muster in tuple(self._musters.items()):
            if muster.until <= now:
                self._fail(name, Refusal(f"gang {name} did not come together in time"), muster)
        self._aside = {name: until for name, until in self._aside.items() if until > now}

    def _call_together(self, gang: Gang, roll: Roll, nodes: Sequence[str]) -> _Muster | Refusal:
        left = self._aside.get(gang.name, 0.0) - self._clock()
        if left > 0:
            return Refusal(f"gang {gang.name} did not come together and lets others go first for {left:.0f} s")
        self._fail(gang.name, Refusal(f"gang {gang.name} has new members and is planned anew"), aside=False)
        plan = self._plan(gang, roll, nodes)
        if isinstance(plan, Refusal):
            return plan
        muster = self._musters[gang.name] = _Muster(plan, self._clock() + self._patience.together_s)
        for holder, _ in roll.waiting:
            self._books.promise(plan.placements[holder.uid], holder)
        self._wake([holder for holder, _ in roll.waiting])
        return muster

    def _plan(self, gang: Gang, roll: Roll, nodes: Sequence[str]) -> GangPlan | Refusal:
        ledger = self._books.ledger
        # Cards that a member has on Leases, from a try that was cut short, it keeps; the plan is for the others.
        kept = {holder.uid: held_placement(ledger, request, holder) for holder, request in roll.waiting}
        others = [
            Waiting(holder, request, self._nodes.get(holder.uid, tuple(nodes)))
            for holder, request in roll.waiting
            if kept[holder.uid] is None
        ]
        missing = gang.size - len(roll.waiting)
        plan = plan_gang(ledger, Gang(gang.name, len(others) + max(missing, 0)), others)
        if isinstance(plan, Refusal):
            return plan
        return GangPlan({uid: placement for uid, placement in kept.items() if placement} | dict(plan.placements))

    def _fail(self, name: str, why: Refusal, muster: _Muster | None = None, aside: bool = True) -> None:
        muster = muster or self._musters.get(name)
        if muster is None or muster.decided.is_set():
            return
        muster.failure = why
        if aside:
            self._aside[name] = self._clock() + self._patience.aside_s
        self._end(name, muster)

    def _end(self, name: str, muster: _Muster) -> None:
        muster.complete.set()
        muster.decided.set()
        if self._musters.get(name) is muster:
            del self._musters[name]
        for uid in muster.plan.placements:
            self._nodes.pop(uid, None)
            self._books.keep_promise(uid)


class Roster:
    """Calls the roll of a gang from the pods that there are."""

    def __init__(self, pods_of: Callable[[str], Iterable[Pod]], ask_of: Callable[[Pod], Ask | Refusal | None]) -> None:
        """`pods_of` gives the pods of a namespace."""
        self._pods_of = pods_of
        self._ask_of = ask_of

    def __call__(self, gang: Gang) -> Roll:
        waiting: list[tuple[Holder, Request]] = []
        bound = 0
        for pod in self._pods_of(gang.name.partition("/")[0]):
            if is_going(pod):
                continue
            try:
                ask = self._ask_of(pod)
            except Malformed:
                continue  # it is told so when it is its turn
            if not isinstance(ask, Ask) or ask.request.gang is None or ask.request.gang.name != gang.name:
                continue
            if pod.spec.node_name:
                bound += 1
            else:
                holder = Holder(pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}")
                waiting.append((holder, ask.request))
        return Roll(waiting, bound)
