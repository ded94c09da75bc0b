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
victims of a node cost at least. There are three, each closer and slower than the one before, and only a node that may
be the best gets the next one: by what is kept of the node, by who is on its GPUs, by which of its GPUs would do. Of
pods that are alike, the one that loses least work goes first, and no other choice among them is tried.

The search ends after a number of steps, however many pods share a GPU. Then the best set found so far is taken: it
will do, and nobody in it is superfluous, but another set might have cost less.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import NamedTuple

from carrel.ledger.gpu_choice import by_island
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.ledger import Card
from carrel.ledger.node_room import needs_one_island
from carrel.ledger.placement import Placement, WaitingPod, candidates, place, selected, suits
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder, ShareState
from carrel.lifecycle.holdings import Holdings, Kind, NodeHoldings, micro_seconds
from carrel.lifecycle.victim_prices import NOTHING, ONE_POD, Cost, Prices, sum_of

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


def revoke(
    holdings: Holdings, booked: WaitingPod, now: datetime, rng: Random | None = None
) -> Placement | Revocation | Refusal:
    """How a booked pod gets its GPUs: a placement if there is room, else a revocation, else why neither is possible.

    With `rng` the victims are chosen at random among the fewest, whosever they are and whatever work they lose; young
    pods are spared all the same.
    """
    ledger = holdings.ledger
    keeper = booked.keeper(ledger)
    for node in candidates(ledger, booked.request, booked.nodes, keeper).fitting:
        answer = place(ledger, booked.request, node, keeper)
        if isinstance(answer, Placement):
            return answer
    holdings.update()
    best = _Search(holdings, booked, Prices(holdings, booked.request, now, rng)).run()
    if best is None:
        where = f"{len(booked.nodes)} node{'s' * (len(booked.nodes) != 1)}"
        return Refusal(f"no room for {booked.request} on {where}, even if every pod without a booking ended")
    shares = [next(iter(ledger.shares_of(uid).values())) for uid in sorted(best.victims)]
    return Revocation(best.node, best.gpus, tuple(share.holder for share in shares))


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
    def __init__(self, holdings: Holdings, booked: WaitingPod, prices: Prices) -> None:
        self._ledger = ledger = holdings.ledger
        self._booked = booked
        self._keeper = booked.keeper(ledger)
        self._holdings = holdings
        self._prices = prices
        self._kept_on = {card.gpu.node for card in map(ledger.card, ledger.kept_for(self._keeper)) if card is not None}
        self._most_above = max(prices.above.values(), default=0)
        self._needs: dict[int, int] = {}  # by the memory of a GPU
        self._steps = 0  # left on this node
        self.best: _Found | None = None

    def run(self) -> _Found | None:
        request, steps = self._booked.request, STEPS
        first = list(self._first_bounds())
        heapq.heapify(first)
        looked_into: set[str] = set()
        pools: dict[str, list[list[_Wanted]]] = {}
        while first:
            bound, node = heapq.heappop(first)
            if self._is_no_better(bound, node) or (self.best is not None and steps <= 0):
                break
            if node not in looked_into:
                looked_into.add(node)
                closer = self._rough_bound(node) if self._could_do(node) else None
                if closer is not None:
                    heapq.heappush(first, (closer, node))
                continue
            if node not in pools:
                # Only now, for few nodes: what its victims cost at least if it is looked at which GPUs would do.
                pools[node] = self._pools(node)
                if pools[node]:
                    heapq.heappush(first, (min(_lowest(pool, request.cards) for pool in pools[node]), node))
                continue
            self._steps = given = min(steps, STEPS_PER_NODE)
            for pool in pools[node]:
                self._choose_gpus(node, sorted(pool, key=lambda wanted: wanted.bound), (), NOTHING)
            steps -= given - self._steps
        return self._pruned(self.best) if self.best is not None else None

    def _nodes(self) -> Sequence[str]:
        """Where the booked pod may run; of those, where the GPUs are that its booking covers."""
        request, nodes, only = self._booked.request, self._booked.nodes, self._booked.request.selector.only
        if request.node_labels:
            nodes = tuple(node for node in nodes if selected(self._ledger.node(node), request))
        if not only:
            return nodes
        there = {card.gpu.node for card in map(self._ledger.card, only) if card is not None}
        return [node for node in nodes if node in there]

    def _first_bounds(self) -> Iterator[tuple[Cost, str]]:
        """What the victims of each node cost at least, by what is kept of it, without a look at its GPUs. Nodes where
        none can be had are left out. This goes over all nodes of the cluster, so it is one loop."""
        request, holdings, rooms = self._booked.request, self._holdings.nodes, self._ledger.rooms
        count, kept_on, drawn, parts_of_mib = (
            request.cards,
            self._kept_on,
            self._prices.drawn,
            self._prices.parts_of_mib,
        )
        now, now_us = self._prices.now, micro_seconds(self._prices.now)
        needs = dict[Kind, int | None]()
        for node in self._nodes():
            here = holdings.get(node)
            if here is None or not here.is_usable:
                continue
            kind = here.kind
            if kind is None or here.has_ending or node in kept_on:
                yield NOTHING, node
                continue
            if kind not in needs:
                needs[kind] = self._need(kind[1]) if request.allows_model(kind[0]) else None
            need = needs[kind]
            if need is None:
                continue
            if rooms[node].largest >= need:
                yield NOTHING, node
                continue
            # From each of the GPUs at least one pod has to go.
            fewest = count if here.gpus_each and here.gpus_each[0] == 1 else _fewest(here.gpus_each, count)
            if fewest is None or fewest > len(here.pods):
                continue
            starts, young = here.starts_us, 0
            if now < here.young_until:
                starts, young = self._starts_without_young(here, fewest)
            if drawn is not None:
                least = sorted([drawn[pod.uid] for pod in here.pods])[:fewest]
                yield (young * ONE_POD, 0, fewest * ONE_POD, sum(least)), node
                continue
            below = here.least * parts_of_mib.get(kind, 0) - self._most_above
            work = now_us - starts[0] if fewest == 1 else sum([now_us - start for start in starts[:fewest]])
            yield (young * ONE_POD, fewest * below if below > 0 else 0, fewest * ONE_POD, work), node

    def _starts_without_young(self, here: NodeHoldings, count: int) -> tuple[tuple[int, ...], int]:
        """When so many of the pods have started, and how many of them are young: only as many as there must be."""
        now, pods = self._prices.now, list(zip(here.pods, here.starts_us, strict=True))
        old = [start for pod, start in pods if now >= pod.young_until][:count]
        young = [start for pod, start in pods if now < pod.young_until][: count - len(old)]
        return (*old, *young), len(young)

    def _could_do(self, node: str) -> bool:
        """Whether enough GPUs of the node have room when all opportunistic pods are gone, wherever their links are."""
        request, holdings = self._booked.request, self._holdings
        missing = request.cards
        for card in self._ledger.cards(node):
            lack = self._need(card.gpu.memory) - card.free
            if lack > 0:
                lack -= sum(
                    card.held(share)
                    for uid, share in card.shares.items()
                    if uid not in holdings.stuck and (uid in holdings.victims or share.state is ShareState.RELEASING)
                )
            missing -= lack <= 0 and suits(card, request, self._keeper)
            if not missing:
                return True
        return False

    def _rough_bound(self, node: str) -> Cost | None:
        """The same by who holds its GPUs, whichever of them would do."""
        request, stuck, victims = self._booked.request, self._holdings.stuck, self._holdings.victims
        count = request.cards
        price = self._prices.alone if count == 1 else self._price_of_part
        costs = []
        for card in self._ledger.cards(node):
            lack, lowest = self._need(card.gpu.memory) - card.free, None
            for uid, share in card.shares.items():
                if uid in stuck:
                    continue
                if share.state is ShareState.RELEASING:
                    lack -= card.held(share)
                elif uid in victims and (lowest is None or price(uid) < lowest):
                    lowest = price(uid)
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
            if uid in self._holdings.stuck:
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
        price = self._prices.alone if request.cards == 1 else self._price_of_part
        if len(parts) == 1:
            return _Wanted(card.gpu, lack, parts, price(next(iter(parts))))
        prices = [price(uid) for uid in parts]
        return _Wanted(card.gpu, lack, parts, _cheapest_sum(prices, fewest))

    def _need(self, memory: int) -> int:
        """How much of a GPU with so much memory is asked for."""
        if memory not in self._needs:
            self._needs[memory] = self._booked.request.amount.on(MiB(memory))
        return self._needs[memory]

    def _price_of_part(self, uid: str) -> Cost:
        """On each of the GPUs that it holds."""
        price, held = self._prices.alone(uid), len(self._ledger.shares_of(uid))
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
        is_young = self._prices.alone(uid)[0] > 0
        return (wanted.parts[uid], self._prices.pods[uid].person, is_young)

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
