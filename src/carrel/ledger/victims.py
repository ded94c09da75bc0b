"""Which pods lose their GPUs when a booked pod needs some and none are free.

Only opportunistic pods are victims. A set of victims is better than another, in this order, if it has

1. fewer young pods: a pod that has just started loses its GPU only if nothing else will do
2. takes less from people who have no more than the equal share (`EqualShare`): what somebody holds above it is taken
   first, and costs nothing
3. fewer pods
4. less work lost
5. the node's name that comes first

With a random choice, chance takes the place of 2 and 4. No victim is superfluous: without any one of them the booked
pod would not fit on the node. GPUs of pods that are ending anyway count as free, unless such a pod should be gone by
now.

Nodes are looked into in the order of what their victims cost at least. On a node two ways are tried, and the cheaper
result counts. By GPU: the one that costs least is freed, then the next, until there are enough; on a GPU, the cheapest
pods go, of equally cheap ones the largest first. By pod, if some hold several GPUs: the cheapest go, of equally cheap
ones those that hold the most. Then those are taken back that were superfluous. Not all sets are tried: the best one may
have one pod less, on nodes with many GPUs rarely two, or spare one more young pod.

What it costs if pods lose their GPUs is counted in whole numbers, so that no comparison depends on rounding.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import lcm
from random import Random
from typing import NamedTuple

from carrel.ids import NO_PERSON, GpuUuid, HolderId, NodeName, PersonId
from carrel.ledger.gpus import Gpu
from carrel.ledger.ledger import GpuEntry, Ledger
from carrel.ledger.placement import Placement, WaitingPod, by_island, candidates, place, suits
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.ledger.shares import Holder, Share, ShareState

MICROSECOND = timedelta(microseconds=1)
LONG_AGO, NEVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
ONE_POD = lcm(*range(1, 17))
"""What one pod counts in a cost. It can be divided by the number of GPUs that the pod holds."""

Cost = tuple[int, int, int, int]
"""Young pods, what is taken from people at or below the equal share, pods, work. Costs are compared from the left."""
NOTHING: Cost = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class OpportunisticPod:
    """A pod that holds a GPU without a booking. It says nothing that changes with time alone, so that as long as the
    pod is the same, this may be the same object."""

    uid: HolderId
    person: PersonId
    """Whose it is. A namespace without an owner is one person. Empty: it counts for nobody."""
    started: datetime | None = None
    """The work since then is lost if it must stop. None: it has not started."""
    young_until: datetime = LONG_AGO
    """Until then it has run for less than the minimum time."""


@dataclass(frozen=True, slots=True)
class Opportunists:
    """The pods that hold GPUs without a booking, by uid; nobody is in both."""

    victims: Mapping[HolderId, OpportunisticPod]
    """Who may lose their GPUs."""
    stuck: Mapping[HolderId, OpportunisticPod] = field(default_factory=dict)
    """Who should have given theirs back and has not. Nobody waits for such a pod, and it is no victim again; but what
    it holds counts as held by its person, who is the more likely to lose another GPU."""


def sum_of(costs: Iterable[Cost]) -> Cost:
    total = NOTHING
    for cost in costs:
        total = (total[0] + cost[0], total[1] + cost[1], total[2] + cost[2], total[3] + cost[3])
    return total


class EqualShare:
    """What each person holds without a booking, and how much of that is above the equal share.

    The equal share is what is not covered of the GPUs in question, divided by the people who hold some of it without a
    booking. In question are the models that the booked pod may have. If all models counted, a hundred old GPUs that
    nobody wants would raise the share so far that nobody is above it, even who holds all of the new ones.

    A GPU of which booked pods hold a half counts as a half; one that nobody new may have now (out of use, or kept for a
    booked pod) as what opportunistic pods still hold of it. So it never happens that all people are above the share.
    What a pod that is ending holds will soon be free, so it counts for nobody, unless the pod is stuck.
    """

    def __init__(self, ledger: Ledger, pods: Opportunists, request: Request) -> None:
        stuck, victims, releasing = pods.stuck, pods.victims, ShareState.RELEASING
        allowed: dict[str, bool] = {}
        in_question = []
        for name in ledger.nodes:
            node = ledger.node(name)
            is_closed = node is None or bool(node.out_of_use)
            for entry in ledger.entries(name):
                model = entry.gpu.model
                if model not in allowed:
                    allowed[model] = request.allows_model(model)
                is_of_kind = (entry.gpu.slice is None and not request.slices) or request.allows_slice(entry.gpu.slice)
                if allowed[model] and entry.gpu.memory > 0 and is_of_kind:
                    in_question.append((entry, is_closed))
        # One GPU is so many parts that every MiB of every GPU is a whole number of them.
        whole = lcm(*{entry.gpu.memory for entry, _ in in_question})
        people: dict[PersonId, int] = {}
        taken_with: dict[HolderId, int] = {}
        uncovered = 0
        for entry, is_closed in in_question:
            gpu, stays, revocable = entry.gpu, 0, 0
            parts_of_mib = whole // gpu.memory
            for uid, share in entry.shares.items():
                part = gpu.memory if share.memory is None else min(share.memory, gpu.memory)
                if uid in stuck:
                    person = stuck[uid].person
                elif share.state is releasing:
                    continue
                else:
                    person = victims[uid].person if uid in victims else NO_PERSON
                if person:
                    revocable += part
                    people[person] = people.get(person, 0) + part * parts_of_mib
                    taken_with[uid] = taken_with.get(uid, 0) + part * parts_of_mib
                else:
                    stays += part
            is_open = not is_closed and entry.kept_for is None and not gpu.unusable
            uncovered += max(gpu.memory - stays if is_open else 0, revocable) * parts_of_mib
        # Instead of dividing what is not covered by the number of people, what they hold is multiplied by it.
        self.above = {person: max(0, held * len(people) - uncovered) for person, held in people.items()}
        """What each person holds above the equal share."""
        self.taken_with = {uid: taken * len(people) for uid, taken in taken_with.items()}
        """What a person loses with each pod."""


class Prices:
    """What it costs if pods lose their GPUs."""

    def __init__(self, ledger: Ledger, pods: Opportunists, request: Request, now: datetime, rng: Random | None) -> None:
        """With `rng`, chance takes the place of what people hold, and of the work that is lost."""
        self._victims = pods.victims
        share = EqualShare(ledger, pods, request) if rng is None else None
        self._above: Mapping[PersonId, int] = share.above if share is not None else {}
        self._taken_with: Mapping[HolderId, int] = share.taken_with if share is not None else {}
        # In a fixed order, so that each gets the same number in whichever order they come.
        drawn = {uid: rng.getrandbits(48) for uid in sorted(self._victims)} if rng is not None else None
        above, taken_with = self._above, self._taken_with
        self.alone: dict[HolderId, Cost] = {}
        """What each pod costs if it is the first of its person."""
        for uid, pod in self._victims.items():
            below = taken_with.get(uid, 0) - above.get(pod.person, 0)
            work = 0 if pod.started is None or pod.started > now else (now - pod.started) // MICROSECOND
            if drawn is not None:
                work = drawn[uid]
            self.alone[uid] = (ONE_POD if now < pod.young_until else 0, below if below > 0 else 0, ONE_POD, work)

    def of_next(self, uid: HolderId, taken: Mapping[PersonId, int]) -> Cost:
        """Return what a further pod costs, if so much is taken from each person already: never less than alone."""
        young, below, pods, work = self.alone[uid]
        person = self._victims[uid].person
        if before := taken.get(person, 0):
            above = self._above[person]
            below = max(0, before + self._taken_with.get(uid, 0) - above) - max(0, before - above)
        return (young, below, pods, work)

    def take(self, uid: HolderId, taken: dict[PersonId, int]) -> Cost:
        """Return what the further pod costs, and add to `taken` what its person loses."""
        cost, person = self.of_next(uid, taken), self._victims[uid].person
        taken[person] = taken.get(person, 0) + self._taken_with.get(uid, 0)
        return cost


MOST_NODES = 50
"""So many nodes are looked into, after which the best victims found so far are taken. Mostly the first one is the best;
the others matter where much is asked for, and people hold only a little more than the equal share."""


class Revocation(NamedTuple):
    """When these victims are gone, the booked pod fits on these GPUs: keep them for it."""

    node: NodeName
    gpus: tuple[Gpu, ...]
    victims: tuple[Holder, ...]
    """Empty: it is enough to wait for pods that are ending already."""


def revoke(
    ledger: Ledger, pods: Opportunists, booked: WaitingPod, now: datetime, rng: Random | None = None
) -> Placement | Revocation | Refusal:
    """How a booked pod gets its GPUs: a placement if there is room, else a revocation, else why neither is possible."""
    return place_anywhere(ledger, booked) or choose_victims(ledger, pods, booked, now, rng)


def place_anywhere(ledger: Ledger, booked: WaitingPod) -> Placement | None:
    """Place the pod on the first of its nodes that has room; None: there is none."""
    keeper = booked.keeper(ledger)
    for node in candidates(ledger, booked.request, booked.nodes, keeper).fitting:
        answer = place(ledger, booked.request, node, keeper)
        if isinstance(answer, Placement):
            return answer
    return None


def choose_victims(
    ledger: Ledger, pods: Opportunists, booked: WaitingPod, now: datetime, rng: Random | None = None
) -> Revocation | Refusal:
    """Choose who loses GPUs to a booked pod for which there is no room.

    With `rng` the victims are chosen at random among the fewest, whosever they are and whatever work they lose; young
    pods are spared all the same.
    """
    search = _Search(ledger, pods, booked, Prices(ledger, pods, booked.request, now, rng))
    best: tuple[Cost, NodeName, Revocation] | None = None
    for number, (bound, node) in enumerate(sorted(search.bounds())):
        if best is not None and ((bound, node) >= best[:2] or number >= MOST_NODES):
            break
        for cost, found in search.on(node):
            if best is None or (cost, node) < best[:2]:
                best = (cost, node, found)
    if best is None:
        where = f"{len(booked.nodes)} node{'s' * (len(booked.nodes) != 1)}"
        return Refusal(f"no room for {booked.request} on {where}, even if every pod without a booking ended")
    return best[2]


class _Candidate(NamedTuple):
    """A pod that may have to go from a GPU. The least goes first."""

    young: int
    below: int
    minus_part: int
    work: int
    uid: HolderId

    @property
    def part(self) -> int:
        """MiB of the GPU."""
        return -self.minus_part


class _Search:
    def __init__(self, ledger: Ledger, pods: Opportunists, booked: WaitingPod, prices: Prices) -> None:
        self._ledger = ledger
        self._pods = pods
        self._request = booked.request
        self._nodes = booked.nodes
        self._keeper = booked.keeper(ledger)
        self._prices = prices

    def bounds(self) -> Iterator[tuple[Cost, NodeName]]:
        """Yield the nodes that could do, with what their victims cost at least."""
        request, only = self._request, self._request.selector.only
        there = {entry.gpu.node for entry in map(self._ledger.entry, only) if entry is not None} if only else None
        for name in self._nodes:
            node = self._ledger.node(name)
            is_open = node is not None and not node.unusable and request.selects(node)
            if not is_open or (there is not None and name not in there):
                continue
            bounds = [bound for entry in self._ledger.entries(name) if (bound := self._bound(entry)) is not None]
            if len(bounds) >= request.gpus:
                yield sum_of(sorted(bounds)[: request.gpus]), name

    def _bound(self, entry: GpuEntry) -> Cost | None:
        """What the victims on the GPU cost at least; None: there would be no room even if all were gone. The bounds of
        several GPUs may be added: a pod that holds several counts on each only in part."""
        stuck, alone, several = self._pods.stuck, self._prices.alone, self._request.gpus > 1
        lack, parts, lowest = self._request.amount.on(entry.gpu.memory) - entry.free, list[int](), None
        for uid, share in entry.shares.items():
            if uid in stuck:
                continue
            if share.state is ShareState.RELEASING:
                lack -= entry.held(share)
            elif uid in alone:
                parts.append(entry.held(share))
                price = self._price_on_one(uid) if several else alone[uid]
                lowest = price if lowest is None or price < lowest else lowest
        if not suits(entry, self._request, self._keeper):
            return None
        if lack <= 0 or lowest is None:
            return NOTHING if lack <= 0 else None
        for number, part in enumerate(sorted(parts, reverse=True), start=1):
            lack -= part
            if lack <= 0:
                young, below, pods, work = lowest
                return (number * young, number * below, number * pods, number * work)
        return None

    def _price_on_one(self, uid: HolderId) -> Cost:
        """The part of a pod's price that counts on each of the GPUs that it holds."""
        price, gpus = self._prices.alone[uid], min(len(self._ledger.shares_of(uid)), self._request.gpus)
        return price if gpus == 1 else (price[0] // gpus, price[1] // gpus, price[2] // gpus, price[3] // gpus)

    def on(self, node: NodeName) -> list[tuple[Cost, Revocation]]:
        """Return cheap victims on the node: of each island, where one is required."""
        ledger, request = self._ledger, self._request
        entries = [entry for entry in ledger.entries(node) if suits(entry, request, self._keeper)]
        # One island only where it is required: a preference is not worth a victim.
        islands = [found for island, found in by_island(entries).items() if island]
        ending = {
            uid for entry in entries for uid, share in entry.shares.items() if share.state is ShareState.RELEASING
        }
        # By GPU, what a pod holds of the others is not seen.
        has_large_pods = any(len(ledger.shares_of(uid)) > 1 for entry in entries for uid in entry.shares)
        answers = []
        for pool in islands if request.needs_one_island else [entries]:
            for free in (self._free_gpus, self._free_pods) if has_large_pods else (self._free_gpus,):
                with ledger.what_if():
                    for uid in ending - self._pods.stuck.keys():
                        ledger.give_back(uid)
                    held = free(pool)
                    if held is not None:
                        answers.append(self._without_superfluous(node, held))
        return answers

    def _free_pods(self, pool: Sequence[GpuEntry]) -> dict[HolderId, Mapping[GpuUuid, Share]] | None:
        """Gives back the cheapest pods, of equally cheap ones those first that hold the most of the GPUs that lack
        room, until enough of these have it; None: there are too few."""
        held: dict[HolderId, Mapping[GpuUuid, Share]] = {}
        taken: dict[PersonId, int] = {}
        amount, pods = self._request.amount, self._pods
        while True:
            lacks = {each.gpu.index: lack for each in pool if (lack := amount.on(each.gpu.memory) - each.free) > 0}
            if len(pool) - len(lacks) >= self._request.gpus:
                return held
            gains: dict[HolderId, int] = {}
            for entry in pool:
                for uid, share in entry.shares.items() if entry.gpu.index in lacks else ():
                    if uid in pods.victims and uid not in pods.stuck:
                        gains[uid] = gains.get(uid, 0) + min(entry.held(share), lacks[entry.gpu.index])
            options = [(*self._prices.of_next(uid, taken)[:2], -gain, uid) for uid, gain in gains.items()]
            if not options:
                return None
            *_, uid = min(options)
            self._prices.take(uid, taken)
            held[uid] = dict(self._ledger.shares_of(uid))
            self._ledger.give_back(uid)

    def _free_gpus(self, pool: Sequence[GpuEntry]) -> dict[HolderId, Mapping[GpuUuid, Share]] | None:
        """Gives back pods until enough of the GPUs have room, and returns what they held; None: there are too few."""
        held: dict[HolderId, Mapping[GpuUuid, Share]] = {}
        taken: dict[PersonId, int] = {}
        left = {entry.gpu.index: entry for entry in pool}
        for _ in range(self._request.gpus):
            options = [(*found, index) for index, entry in left.items() if (found := self._cheapest(entry, taken))]
            if not options:
                return None
            _, uids, index = min(options)
            del left[index]
            for uid in uids:
                self._prices.take(uid, taken)
                held[uid] = dict(self._ledger.shares_of(uid))
                self._ledger.give_back(uid)
        return held

    def _cheapest(self, entry: GpuEntry, taken: Mapping[PersonId, int]) -> tuple[Cost, list[HolderId]] | None:
        """Return the cheapest pods that have to go from one GPU, and what they cost there; None: all are too little."""
        prices, taken, chosen = self._prices, dict(taken), list[_Candidate]()
        lack = self._request.amount.on(entry.gpu.memory) - entry.free
        left = []
        for uid, share in entry.shares.items() if lack > 0 else ():
            if uid in self._pods.victims and uid not in self._pods.stuck:
                young, below, _, work = prices.of_next(uid, taken)
                left.append(_Candidate(young, below, -entry.held(share), work, uid))
        heapq.heapify(left)
        while lack > 0:
            if not left:
                return None
            first = heapq.heappop(left)
            below = prices.of_next(first.uid, taken)[1]
            if below > first.below:  # others of its person have gone meanwhile
                heapq.heappush(left, first._replace(below=below))
                continue
            if first.part >= lack:  # of those that are enough, the one that loses the least work
                enough = [each for each in left if each[:2] == first[:2] and each.part >= lack]
                as_cheap = [each for each in enough if prices.of_next(each.uid, taken)[1] == below]
                first = min([first, *as_cheap], key=lambda each: (each.work, each.uid))
            prices.take(first.uid, taken)
            chosen.append(first)
            lack -= first.part
        needed = []
        for each in reversed(chosen):
            if lack + each.part <= 0:
                lack += each.part
            else:
                needed.append(each.uid)
        return sum_of(map(self._price_on_one, needed)), needed

    def _without_superfluous(
        self, node: NodeName, held: Mapping[HolderId, Mapping[GpuUuid, Share]]
    ) -> tuple[Cost, Revocation]:
        """Takes back, the most expensive first, who is not needed because of others, or because other GPUs will do."""
        ledger, needed = self._ledger, list[Holder]()
        placement = place(ledger, self._request, node, self._keeper)
        for uid in sorted(held, key=lambda uid: (self._prices.alone[uid], uid), reverse=True):
            ledger.restore(held[uid].values())
            answer = place(ledger, self._request, node, self._keeper)
            if isinstance(answer, Placement):
                placement = answer
            else:
                ledger.give_back(uid)
                needed.append(next(iter(held[uid].values())).holder)
        assert isinstance(placement, Placement), "its GPUs have room now"
        victims = tuple(sorted(needed, key=lambda holder: holder.uid))
        taken: dict[PersonId, int] = {}
        cost = sum_of(self._prices.take(victim.uid, taken) for victim in victims)
        return cost, Revocation(node, placement.gpus, victims)
