"""Which pods lose their GPUs when a booked pod needs some and none are free.

Only opportunistic pods are victims. Among the sets of victims that would do, in this order:

1. as few young pods as possible: a pod that has just started loses its GPU only if nothing else will do
2. the least is taken from people who have no more than the equal share (`_EqualShare`). What somebody holds above it
   is taken first, and costs nothing
3. the fewest pods
4. the least work lost
5. the node's name, the indices of the GPUs, the uids

With a random choice, chance takes the place of 2 and 4. No victim is superfluous: without any one of them the booked
pod would not fit. GPUs of pods that are ending anyway are counted as free before victims are chosen, unless such a pod
should be gone by now.

The search visits the node with the lowest bound first, and stops when no other can be better. A bound is what the
victims of a node cost at least, found without trying sets of them. Of pods that are alike, the one that loses least
work goes first, and no other choice among them is tried. All costs are whole numbers, so that no comparison depends on
rounding.

The search ends after a number of steps, however many pods share a GPU. Then the best set found so far is taken: it
will do, and nobody in it is superfluous, but another set might have cost less.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import lcm
from random import Random
from typing import NamedTuple

from carrel.ledger.gpu_choice import by_island
from carrel.ledger.gpus import Gpu
from carrel.ledger.ledger import Card, Ledger
from carrel.ledger.node_room import needs_one_island
from carrel.ledger.placement import Placement, WaitingPod, candidates, place, selected, suits
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.ledger.shares import Holder, Share, ShareState

STEPS_PER_NODE, STEPS = 4_000, 16_000
"""How many pods are looked at on one node, and in all, before the best set found so far is taken. A search ends far
earlier unless many pods of different sizes share one GPU."""
MOST_TRIED = 200
"""Of more pods than this on the chosen GPUs, no sets are tried: the cheapest are taken until there is room."""
ONE_POD = lcm(*range(1, 17))
"""What one pod counts in a cost. It can be divided by the number of GPUs that the pod holds."""
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class OpportunisticPod:
    """A pod that holds a GPU without a booking."""

    holder: Holder
    work: timedelta
    """What is lost if it must stop now: the time since its last checkpoint or its start."""
    person: str
    """Whose it is. A namespace without an owner is one person. Empty, of a pod that is stuck: it does not count."""
    is_young: bool = False
    """Whether it runs for less than the minimum time."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """When these victims are gone, the booked pod fits on these GPUs: keep them for it."""

    node: str
    gpus: tuple[Gpu, ...]
    victims: tuple[Holder, ...]
    """Empty: it is enough to wait for pods that are ending already."""


NOBODY: Mapping[str, OpportunisticPod] = {}


def revoke(
    ledger: Ledger,
    booked: WaitingPod,
    opportunistic: Iterable[OpportunisticPod],
    rng: Random | None = None,
    stuck: Mapping[str, OpportunisticPod] = NOBODY,
) -> Placement | Revocation | Refusal:
    """How a booked pod gets its GPUs: a placement if there is room, else a revocation, else why neither is possible.

    With `rng` the victims are chosen at random among the fewest, whosever they are and whatever work they lose; young
    pods are spared all the same.

    `stuck`, by uid: pods that should have given their GPUs back and have not. Nobody waits for them, and they are no
    victims again; but what they hold counts as held by their person, who is the more likely to lose another GPU.
    """
    keeper = booked.keeper(ledger)
    for node in candidates(ledger, booked.request, booked.nodes, keeper).fitting:
        answer = place(ledger, booked.request, node, keeper)
        if isinstance(answer, Placement):
            return answer
    pods = {each.holder.uid: each for each in opportunistic}
    if rng is not None:
        pods = dict(sorted(pods.items()))  # so that each gets the same random number, in whichever order they come
    holders = _Holders(pods, stuck)
    # First whether it is possible: what the victims cost is worked out over the whole cluster.
    is_possible = any(_could_do(ledger, booked, node, holders) for node in booked.nodes)
    best = _Search(ledger, booked, _Prices(ledger, booked.request, holders, rng)).run() if is_possible else None
    if best is None:
        where = f"{len(booked.nodes)} node{'s' * (len(booked.nodes) != 1)}"
        return Refusal(f"no room for {booked.request} on {where}, even if every pod without a booking ended")
    return Revocation(best.node, best.gpus, tuple(pods[uid].holder for uid in sorted(best.victims)))


def _could_do(ledger: Ledger, booked: WaitingPod, node: str, holders: "_Holders") -> bool:
    """Whether enough GPUs of the node have room when all opportunistic pods are gone, wherever their links are."""
    request, there, keeper = booked.request, ledger.node(node), booked.keeper(ledger)
    if there is None or there.unusable or not selected(there, request):
        return False
    missing = request.cards
    for card in ledger.cards(node):
        lack = request.amount.on(card.gpu.memory) - card.free
        if lack > 0:
            lack -= sum(
                card.held(share)
                for uid, share in card.shares.items()
                if uid in holders.victims or (share.state is ShareState.RELEASING and uid not in holders.stuck)
            )
        missing -= lack <= 0 and suits(card, request, keeper)
        if not missing:
            return True
    return False


# --- what a set of victims costs -------------------------------------------------------------------------------------

Cost = tuple[int, int, int, int]
"""Young pods, what is taken from people at or below the equal share, pods, work. Costs are compared from the left."""
NOTHING: Cost = (0, 0, 0, 0)


def _sum(one: Cost, other: Cost) -> Cost:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


@dataclass(frozen=True, slots=True)
class _Holders:
    """The pods that hold GPUs without a booking, by uid."""

    victims: Mapping[str, OpportunisticPod]
    """Who may lose theirs."""
    stuck: Mapping[str, OpportunisticPod]
    """Who should have given theirs back."""

    def holds(self, share: Share) -> bool:
        """Whether it counts as held without a booking. What a pod that is ending holds will soon be free."""
        stuck = self.stuck.get(share.holder.uid)
        if stuck is not None:
            return bool(stuck.person)
        return share.holder.uid in self.victims and share.state is not ShareState.RELEASING

    def stays(self, share: Share) -> bool:
        """Whether it counts as held by others."""
        is_ending = share.state is ShareState.RELEASING and share.holder.uid not in self.stuck
        return not is_ending and not self.holds(share)

    def person(self, uid: str) -> str:
        return (self.stuck.get(uid) or self.victims[uid]).person


class _EqualShare:
    """What each person holds without a booking, and how much of that is above the equal share.

    The equal share is what is not covered of the GPUs in question, divided by the people who hold some of it without a
    booking. In question are the models that the booked pod may have. If all models counted, a hundred old GPUs that
    nobody wants would raise the share so far that nobody is above it, even who holds all of the new ones.

    A GPU of which booked pods hold a half counts as a half; one that nobody new may have now (out of use, or kept for a
    booked pod) as what opportunistic pods still hold of it. So it never happens that all people are above the share.
    """

    def __init__(self, ledger: Ledger, request: Request, pods: _Holders) -> None:
        closed = {name for name in ledger.nodes if (node := ledger.node(name)) is not None and node.unusable}
        cards = [card for name in ledger.nodes for card in ledger.cards(name) if card.gpu.memory > 0]
        models = {model for model in {card.gpu.model for card in cards} if request.allows_model(model)}
        cards = [card for card in cards if card.gpu.model in models]
        # One GPU is so many parts that every MiB of every GPU is a whole number of them.
        whole = lcm(*{card.gpu.memory for card in cards})
        takes: dict[str, int] = {}
        uncovered = 0
        for card in cards:
            is_open = card.kept_for is None and not card.gpu.unusable and card.gpu.node not in closed
            stays, revocable = _held(card, whole, pods, takes) if card.shares else (0, 0)
            uncovered += max(whole - stays if is_open else 0, revocable)
        people = Counter[str]()
        for uid, part in takes.items():
            people[pods.person(uid)] += part
        # Instead of dividing what is not covered by the number of people, what they hold is multiplied by it.
        self.takes = {uid: part * len(people) for uid, part in takes.items()}
        """What a person loses with each pod, in parts of a GPU."""
        self.above = {person: max(0, held * len(people) - uncovered) for person, held in people.items()}
        """What each person holds above the equal share."""


def _held(card: Card, whole: int, pods: _Holders, takes: dict[str, int]) -> tuple[int, int]:
    """How many parts of it other and opportunistic pods hold. What each of the latter holds is added to `takes`."""
    mib, stays, revocable = whole // card.gpu.memory, 0, 0
    for uid, share in card.shares.items():
        part = mib * min(card.held(share), card.gpu.memory)
        if pods.holds(share):
            revocable += part
            takes[uid] = takes.get(uid, 0) + part
        elif pods.stays(share):
            stays += part
    return stays, revocable


class _Prices:
    """What it costs if pods lose their GPUs."""

    def __init__(self, ledger: Ledger, request: Request, holders: _Holders, rng: Random | None) -> None:
        self.pods = pods = holders.victims
        self.stuck = holders.stuck
        share = _EqualShare(ledger, request, holders) if rng is None else None
        self._takes: Mapping[str, int] = share.takes if share is not None else {}
        self._above: Mapping[str, int] = share.above if share is not None else {}
        takes, above = self._takes.get, self._above.get
        self.alone: dict[str, Cost] = {}
        """What each pod costs if it is the first of its person."""
        for uid, pod in pods.items():
            below = takes(uid, 0) - above(pod.person, 0)
            work = pod.work // MICROSECOND if rng is None else rng.getrandbits(48)
            self.alone[uid] = (ONE_POD if pod.is_young else 0, below if below > 0 else 0, ONE_POD, work)

    def of_one(self, uid: str, taken: int) -> Cost:
        """Of one more pod of a person from whom so much is taken already. Of several, it is never less than the sum."""
        young, below, pods, work = self.alone[uid]
        if taken:
            above = self._above[self.pods[uid].person]
            below = max(0, taken + self._takes[uid] - above) - max(0, taken - above)
        return (young, below, pods, work)

    def of(self, uids: Iterable[str]) -> tuple[Cost, Mapping[str, int]]:
        """Of all of them, and what they take from each person."""
        cost, taken = NOTHING, dict[str, int]()
        for uid in uids:
            person = self.pods[uid].person
            cost = _sum(cost, self.of_one(uid, taken.get(person, 0)))
            taken[person] = taken.get(person, 0) + self._takes.get(uid, 0)
        return cost, taken


# --- the search ------------------------------------------------------------------------------------------------------


class _Wanted(NamedTuple):
    """A GPU that the booked pod might have. One is made for every GPU of the cluster."""

    gpu: Gpu
    lack: int
    """MiB that victims must give back; not above zero: none need to."""
    parts: Mapping[str, int]
    """Possible victims → MiB."""
    bound: Cost
    """What its victims cost at least. Of several GPUs, never less than the sum: a pod that holds several counts on each
    only in part."""


@dataclass(frozen=True, slots=True)
class _Found:
    cost: Cost
    node: str
    gpus: tuple[Gpu, ...]
    victims: frozenset[str]


class _Search:
    def __init__(self, ledger: Ledger, booked: WaitingPod, prices: _Prices) -> None:
        self._ledger = ledger
        self._booked = booked
        self._keeper = booked.keeper(ledger)
        self._prices = prices
        self._needs: dict[int, int] = {}  # by the memory of a GPU
        self._steps = 0  # left on this node
        self.best: _Found | None = None

    def run(self) -> _Found | None:
        request, steps = self._booked.request, STEPS
        bounds = []
        for node in self._booked.nodes:
            found = [_lowest(pool, request.cards) for pool in self._pools(node)]
            if found:
                bounds.append((min(found), node))
        for bound, node in sorted(bounds):
            if self._is_no_better(bound, node) or (self.best is not None and steps <= 0):
                break
            self._steps = given = min(steps, STEPS_PER_NODE)
            for pool in self._pools(node):
                self._choose_gpus(node, sorted(pool, key=lambda wanted: wanted.bound), (), NOTHING)
            steps -= given - self._steps
        return self._pruned(self.best) if self.best is not None else None

    def _pruned(self, found: _Found) -> _Found:
        """A search that was cut short may not have seen that other GPUs of the node need fewer victims."""
        cards, pools, gpus = self._booked.request.cards, self._pools(found.node), found.gpus
        left = {wanted.gpu.uuid: _lack(wanted, found.victims) for pool in pools for wanted in pool}
        needed = set(found.victims)
        for uid in sorted(found.victims):
            for pool in pools:
                enough = [wanted.gpu for wanted in pool if left[wanted.gpu.uuid] + wanted.parts.get(uid, 0) <= 0]
                if len(enough) >= cards:
                    gpus = tuple(sorted(enough, key=lambda gpu: gpu.index)[:cards])
                    needed.remove(uid)
                    for wanted in (wanted for each in pools for wanted in each):
                        left[wanted.gpu.uuid] += wanted.parts.get(uid, 0)
                    break
        return _Found(self._prices.of(sorted(needed))[0], found.node, gpus, frozenset(needed))

    def _is_no_better(self, bound: Cost, node: str) -> bool:
        return self.best is not None and (bound, node) >= (self.best.cost, self.best.node)

    def _pools(self, node: str) -> list[list[_Wanted]]:
        """The sets of GPUs of the node out of which all must come: as many as are asked for, or more."""
        request, there = self._booked.request, self._ledger.node(node)
        if there is None or there.unusable or not selected(there, request):
            return []
        cards = [card for card in self._ledger.cards(node) if suits(card, request, self._keeper)]
        # One island only where it is required: a preference is not worth a victim.
        islands = [found for island, found in by_island(cards).items() if island]
        pools = []
        for cards_together in islands if needs_one_island(request) else [cards]:
            pool = [wanted for card in cards_together if (wanted := self._wanted(card)) is not None]
            if len(pool) >= request.cards:
                pools.append(pool)
        return pools

    def _wanted(self, card: Card) -> _Wanted | None:
        """None: there would be no room even if all possible victims were gone."""
        request, memory = self._booked.request, card.gpu.memory
        if memory not in self._needs:
            self._needs[memory] = request.amount.on(memory)
        lack = self._needs[memory] - card.free
        parts = {}
        for uid, share in card.shares.items():
            if uid in self._prices.stuck:
                continue
            if share.state is ShareState.RELEASING:
                lack -= card.held(share)
            elif uid in self._prices.pods:
                parts[uid] = card.held(share)
        if lack <= 0:
            return _Wanted(card.gpu, lack, parts, NOTHING)
        fewest = _fewest(parts.values(), lack)
        if fewest is None:
            return None
        price = self._prices.alone.__getitem__ if request.cards == 1 else self._price_per_gpu
        if len(parts) == 1:
            return _Wanted(card.gpu, lack, parts, price(next(iter(parts))))
        prices = [price(uid) for uid in parts]
        return _Wanted(card.gpu, lack, parts, _cheapest_sum(prices, fewest))

    def _price_per_gpu(self, uid: str) -> Cost:
        price, held = self._prices.alone[uid], len(self._ledger.shares_of(uid))
        if held == 1:
            return price
        gpus = min(held, self._booked.request.cards)
        return (price[0] // gpus, price[1] // gpus, price[2] // gpus, price[3] // gpus)

    def _choose_gpus(self, node: str, pool: Sequence[_Wanted], chosen: tuple[_Wanted, ...], bound: Cost) -> None:
        """Tries every choice of GPUs that can still be the best; `pool` has those with the lowest bound first."""
        missing = self._booked.request.cards - len(chosen)
        if not missing:
            if sum(len(wanted.parts) for wanted in chosen) > MOST_TRIED:
                self._choose_cheapest(node, chosen)
            else:
                self._choose_victims(node, chosen, (), frozenset())
            return
        self._steps -= 1
        for first in range(len(pool) - missing + 1):
            if self._is_no_better(_sum(bound, _lowest(pool[first:], missing)), node) or self._has_no_steps():
                return
            wanted = pool[first]
            self._choose_gpus(node, pool[first + 1 :], (*chosen, wanted), _sum(bound, wanted.bound))

    def _choose_victims(
        self, node: str, chosen: Sequence[_Wanted], gone: tuple[str, ...], spared: frozenset[str]
    ) -> None:
        """Branch and bound: at the first GPU that lacks memory, each holder in turn is a victim or is spared for good.

        The first set that is tried spares nobody. So there is always one, however few steps are left.
        """
        cost, taken = self._prices.of(gone)
        wanted = next((wanted for wanted in chosen if _lack(wanted, gone) > 0), None)
        if wanted is None:
            self._found(node, chosen, gone)
            return
        self._steps -= len(gone) + len(wanted.parts)
        prices = {
            uid: self._prices.of_one(uid, taken.get(self._prices.pods[uid].person, 0))
            for uid in wanted.parts
            if uid not in gone and uid not in spared
        }
        left = _in_order(prices, wanted)
        while left:
            fewest = _fewest([wanted.parts[uid] for uid in left], _lack(wanted, gone))
            if fewest is None:
                return
            bound = _sum(cost, _cheapest_sum([prices[uid] for uid in left], fewest))
            if self._is_no_better(bound, node) or self._has_no_steps():
                return
            self._steps -= 1
            self._choose_victims(node, chosen, (*gone, left[0]), spared)
            # Who spares it spares those that are alike too: instead of one of these, it could be taken.
            kind = self._kind(left[0], wanted)
            alike = {left[0], *(uid for uid in left[1:] if kind is not None and self._kind(uid, wanted) == kind)}
            left, spared = [uid for uid in left if uid not in alike], spared | alike

    def _kind(self, uid: str, wanted: _Wanted) -> tuple[object, ...] | None:
        """Pods of the same kind differ in the work that they lose only. None: it holds other GPUs too."""
        if len(self._ledger.shares_of(uid)) > 1:
            return None
        pod = self._prices.pods[uid]
        return (wanted.parts[uid], pod.person, pod.is_young)

    def _choose_cheapest(self, node: str, chosen: Sequence[_Wanted]) -> None:
        """One set, without trying others."""
        gone: dict[str, None] = {}
        for wanted in chosen:
            self._steps -= len(wanted.parts)
            taken = self._prices.of(gone)[1]
            prices = {
                uid: self._prices.of_one(uid, taken.get(self._prices.pods[uid].person, 0))
                for uid in wanted.parts
                if uid not in gone
            }
            lack = _lack(wanted, gone)
            for uid in _in_order(prices, wanted) if lack > 0 else ():
                gone[uid] = None
                lack -= wanted.parts[uid]
                if lack <= 0:
                    break
        self._found(node, chosen, tuple(gone))

    def _found(self, node: str, chosen: Sequence[_Wanted], gone: Sequence[str]) -> None:
        victims = _without_superfluous(chosen, gone)
        cost = self._prices.of(victims)[0]
        if not self._is_no_better(cost, node):
            gpus = sorted((wanted.gpu for wanted in chosen), key=lambda gpu: gpu.index)
            self.best = _Found(cost, node, tuple(gpus), frozenset(victims))

    def _has_no_steps(self) -> bool:
        return self._steps <= 0 and self.best is not None


def _lowest(pool: Iterable[_Wanted], count: int) -> Cost:
    """The lowest bound of so many of the GPUs."""
    return _cheapest_sum([wanted.bound for wanted in pool], count)


def _cheapest_sum(costs: list[Cost], count: int) -> Cost:
    if count == 1:
        return min(costs)
    total = NOTHING
    for cost in sorted(costs)[:count] if count < len(costs) else costs:
        total = _sum(total, cost)
    return total


def _fewest(parts: Collection[int], lack: int) -> int | None:
    """How many of the parts are needed at least; None if all are not enough."""
    if len(parts) == 1:
        return 1 if lack <= next(iter(parts)) else None
    for count, part in enumerate(sorted(parts, reverse=True), start=1):
        lack -= part
        if lack <= 0:
            return count
    return None


def _lack(wanted: _Wanted, gone: Iterable[str]) -> int:
    return wanted.lack - sum(wanted.parts.get(uid, 0) for uid in gone)


def _in_order(prices: Mapping[str, Cost], wanted: _Wanted) -> list[str]:
    """In which order victims are tried."""
    return sorted(prices, key=lambda uid: (prices[uid][:2], -wanted.parts[uid], prices[uid], uid))


def _without_superfluous(chosen: Sequence[_Wanted], victims: Sequence[str]) -> Sequence[str]:
    """Without those that are not needed because of others that were tried later. Who is needed stays so when others
    are left out, so each is looked at once."""
    left = {wanted.gpu.uuid: _lack(wanted, victims) for wanted in chosen}
    needed = []
    for uid in victims:
        if all(left[wanted.gpu.uuid] + wanted.parts.get(uid, 0) <= 0 for wanted in chosen):
            for wanted in chosen:
                left[wanted.gpu.uuid] += wanted.parts.get(uid, 0)
        else:
            needed.append(uid)
    return needed
