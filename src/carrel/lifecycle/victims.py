"""Which pods lose their GPUs when a booked pod needs some and none are free.

Only opportunistic pods are victims. Among the sets of victims that would do, in this order:

1. as few young pods as possible: a pod that has just started loses its GPU only if nothing else will do
2. the least is taken from people who have no more than the equal share (`EqualShare`). What somebody holds above it
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

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from carrel.ledger.gpu_choice import by_island
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.ledger import Card, Ledger
from carrel.ledger.node_room import needs_one_island
from carrel.ledger.placement import Placement, WaitingPod, candidates, place, selected, suits
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder, ShareState
from carrel.lifecycle.victim_prices import NOTHING, Cost, Holders, OpportunisticPod, Prices, sum_of

STEPS_PER_NODE, STEPS = 4_000, 16_000
"""How many pods are looked at on one node, and in all, before the best set found so far is taken. A search ends far
earlier unless many pods of different sizes share one GPU."""
MOST_TRIED = 200
"""Of more pods than this on the chosen GPUs, no sets are tried: the cheapest are taken until there is room."""


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
    holders = Holders(pods, stuck)
    # First whether it is possible: what the victims cost is worked out over the whole cluster.
    is_possible = any(_could_do(ledger, booked, node, holders) for node in booked.nodes)
    best = _Search(ledger, booked, holders, rng).run() if is_possible else None
    if best is None:
        where = f"{len(booked.nodes)} node{'s' * (len(booked.nodes) != 1)}"
        return Refusal(f"no room for {booked.request} on {where}, even if every pod without a booking ended")
    return Revocation(best.node, best.gpus, tuple(pods[uid].holder for uid in sorted(best.victims)))


def _could_do(ledger: Ledger, booked: WaitingPod, node: str, holders: Holders) -> bool:
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
    def __init__(self, ledger: Ledger, booked: WaitingPod, holders: Holders, rng: Random | None) -> None:
        self._ledger = ledger
        self._booked = booked
        self._keeper = booked.keeper(ledger)
        self._holders = holders
        self._prices = Prices(ledger, booked.request, holders, rng)
        self._needs: dict[int, int] = {}  # by the memory of a GPU
        self._steps = 0  # left on this node
        self.best: _Found | None = None

    def run(self) -> _Found | None:
        request, steps = self._booked.request, STEPS
        rough = [(bound, node) for node in self._booked.nodes if (bound := self._rough_bound(node)) is not None]
        heapq.heapify(rough)
        pools: dict[str, list[list[_Wanted]]] = {}
        while rough:
            bound, node = heapq.heappop(rough)
            if self._is_no_better(bound, node) or (self.best is not None and steps <= 0):
                break
            if node not in pools:
                # Only now, for few nodes: what its victims cost at least if it is looked at which GPUs would do.
                pools[node] = self._pools(node)
                if pools[node]:
                    heapq.heappush(rough, (min(_lowest(pool, request.cards) for pool in pools[node]), node))
                continue
            self._steps = given = min(steps, STEPS_PER_NODE)
            for pool in pools[node]:
                self._choose_gpus(node, sorted(pool, key=lambda wanted: wanted.bound), (), NOTHING)
            steps -= given - self._steps
        return self._pruned(self.best) if self.best is not None else None

    def _rough_bound(self, node: str) -> Cost | None:
        """What the victims of a node cost at least, whichever of its GPUs would do; None if none can be had. This is
        asked of every node, so nothing is made for each GPU."""
        there, count = self._ledger.node(node), self._booked.request.cards
        if there is None or there.unusable or not selected(there, self._booked.request):
            return None
        price = self._prices.alone.get if count == 1 else self._price_per_gpu
        whole = self._ledger.whole_holders(node)
        if count == 1 and whole is not None and self._holders.are_victims(whole):
            return min(map(self._prices.alone.__getitem__, whole.gpus_of))
        stuck, releasing, costs = self._prices.stuck, ShareState.RELEASING, []
        for card in self._ledger.cards(node):
            lack, lowest = self._need(card.gpu.memory) - card.free, None
            for uid, share in card.shares.items():
                if share.state is releasing and uid not in stuck:
                    lack -= card.held(share)
                elif uid not in stuck and (cost := price(uid)) is not None and (lowest is None or cost < lowest):
                    lowest = cost
            if lack <= 0:
                lowest = NOTHING
            if lowest is not None:
                costs.append(lowest)
        return _cheapest_sum(costs, count) if len(costs) >= count else None

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
        request = self._booked.request
        lack = self._need(card.gpu.memory) - card.free
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
        price = self._prices.alone.__getitem__ if request.cards == 1 else self._price_of_part
        if len(parts) == 1:
            return _Wanted(card.gpu, lack, parts, price(next(iter(parts))))
        prices = [price(uid) for uid in parts]
        return _Wanted(card.gpu, lack, parts, _cheapest_sum(prices, fewest))

    def _need(self, memory: int) -> int:
        """How much of a GPU with so much memory is asked for."""
        if memory not in self._needs:
            self._needs[memory] = self._booked.request.amount.on(MiB(memory))
        return self._needs[memory]

    def _price_per_gpu(self, uid: str) -> Cost | None:
        """None: it may not lose its GPUs."""
        return self._price_of_part(uid) if uid in self._prices.alone else None

    def _price_of_part(self, uid: str) -> Cost:
        """On each of the GPUs that it holds."""
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
            if self._is_no_better(sum_of(bound, _lowest(pool[first:], missing)), node) or self._has_no_steps():
                return
            wanted = pool[first]
            self._choose_gpus(node, pool[first + 1 :], (*chosen, wanted), sum_of(bound, wanted.bound))

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
            bound = sum_of(cost, _cheapest_sum([prices[uid] for uid in left], fewest))
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
        total = sum_of(total, cost)
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
