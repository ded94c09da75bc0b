"""Which of several nodes should take a request: the one where the least becomes unusable for recent requests.

A free piece of a GPU is *stranded* for a request if it cannot be used for it: it is too small, of the wrong model,
or the node has too few such GPUs. How much is stranded for the mix of recent requests, before and after the
placement, is what the placement costs. Ties go to the node where the pod leaves the least over.

Before all that counts what the pod itself prefers: a node where its GPUs are neighbours, in one NVLink island and with
the bandwidth that it asks for comes before one where they are not.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carrel.ledger.gpus import Gpu
from carrel.ledger.ledger import Ledger
from carrel.ledger.node_room import NodeRoom
from carrel.ledger.placement import Placement, place
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import GpuPolicy, Request, TopologyMode

WINDOW = 500
"""How many requests count as recent: enough to know the mix, few enough to follow it when it changes."""
TYPICAL = 8
"""How many different requests are weighed; the rare rest would cost time and change little."""
RECOUNT = 50
"""Requests after which the mix is weighed anew."""
GRAIN = 0.02
"""Differences of less than a fiftieth of a GPU are noise, and should not outweigh the tie-break."""

Free = tuple[Gpu, int]
"""A GPU and its free MiB."""


Typical = Sequence[tuple[Request, float]]
"""The most frequent requests and their share of all that were asked."""


class Demand:
    """The mix of recent requests. It is counted again only now and then: a single request changes little."""

    def __init__(self, window: int = WINDOW) -> None:
        self._recent: deque[Request] = deque()
        self._window = window
        self._counts: Counter[Request] = Counter()
        self._unheard = 0
        self.typical: Typical = ()

    def saw(self, request: Request) -> None:
        self._recent.append(request)
        self._counts[request] += 1
        if len(self._recent) > self._window:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._unheard += 1
        if not self.typical or self._unheard >= RECOUNT:
            self._unheard = 0
            counted = self._counts.most_common(TYPICAL)
            total = sum(count for _, count in counted)
            self.typical = tuple((request, count / total) for request, count in counted)


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """How bad it is to place a request on a node; less is better."""

    apart: int
    """How far the GPUs are from what the request prefers: missing bandwidth, further islands, gaps between indices."""
    stranded: float
    left_over: float
    """In GPUs: what stays free on the GPUs that the pod takes, or how many free GPUs it leaves behind."""
    node: str


class Ranking:
    """Orders nodes by cost, and remembers the costs until a node's room or the mix of requests changes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.demand = Demand()
        self._counted_for: Typical = ()
        self._known: dict[str, tuple[NodeRoom, dict[Request, Cost | Refusal]]] = {}

    def costs(self, request: Request, nodes: Iterable[str], pod: str = "") -> list[Cost]:
        """The nodes that will do, the best first. `pod` is the uid of who asks: GPUs may be kept for it."""
        if self._counted_for is not self.demand.typical:
            self._counted_for, self._known = self.demand.typical, {}
        one_for_all = not self._ledger.kept_for(pod)
        answers = (self._cost(request, name) if one_for_all else self._count(request, name, pod) for name in nodes)
        return sorted(answer for answer in answers if isinstance(answer, Cost))

    def _cost(self, request: Request, node: str) -> Cost | Refusal:
        room = self._ledger.rooms.get(node)
        if room is None:
            return Refusal(f"{node} has no GPU that Carrel knows of")
        known_room, costs = self._known.get(node, (None, {}))
        if known_room is not room:
            costs = {}
            self._known[node] = (room, costs)
        if request not in costs:
            costs[request] = self._count(request, node)
        return costs[request]

    def _count(self, request: Request, node: str, pod: str = "") -> Cost | Refusal:
        return cost(self._ledger, request, node, self._counted_for, pod)


def cost(ledger: Ledger, request: Request, node: str, typical: Typical, pod: str = "") -> Cost | Refusal:
    answer = place(ledger, request, node, pod)
    if isinstance(answer, Refusal):
        return answer
    before = [(card.gpu, max(card.free, 0)) for card in ledger.cards(node) if not card.gpu.unusable]
    after = [(gpu, free - _taken(answer, gpu)) for gpu, free in before]
    change = stranded(after, typical) - stranded(before, typical)
    left_over = sum(free / gpu.memory for gpu, free in after)
    return Cost(_apart(answer), round(change / GRAIN) * GRAIN, left_over, node)


def _apart(placement: Placement) -> int:
    request, gpus = placement.request, placement.gpus
    if request.cards == 1 or request.policy in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS):
        return 0
    apart = 0
    if request.topology.mode is not TopologyMode.IGNORE:
        islands = {gpu.island or gpu.uuid for gpu in gpus}
        slow = sum(gpu.bandwidth_gbps < request.topology.min_bandwidth_gbps for gpu in gpus)
        apart += len(islands) - 1 + slow
    if request.policy is GpuPolicy.CONTIGUOUS:
        indices = sorted(gpu.index for gpu in gpus)
        apart += indices[-1] - indices[0] + 1 - len(indices)
    return apart


def stranded(cards: Iterable[Free], typical: Typical) -> float:
    """How much of the free memory no typical request could use, in GPUs."""
    cards = list(cards)
    total = 0.0
    for request, weight in typical:
        useful = [gpu.uuid for gpu, free in cards if _serves(gpu, free, request)]
        useless = cards if len(useful) < request.cards else [each for each in cards if each[0].uuid not in useful]
        total += weight * sum(free / gpu.memory for gpu, free in useless)
    return total


def _serves(gpu: Gpu, free: int, request: Request) -> bool:
    return (
        request.allows_model(gpu.model) and request.selector.allows_uuid(gpu) and free >= request.amount.on(gpu.memory)
    )


def _taken(placement: Placement, gpu: Gpu) -> int:
    return placement.request.amount.on(gpu.memory) if gpu in placement.gpus else 0
