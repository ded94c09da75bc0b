"""What it costs to place one kind of pod on each node, remembered until something changes on the node.

A cluster of thousands of nodes is asked about by hundreds of kinds of pods, so a table is small: it has one entry for
each node of the ledger, equal costs are one object, and only the best nodes are kept in order.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from carrel.ledger.gpu_choice import AS_PREFERRED, Apart
from carrel.ledger.machines import MachineRoom
from carrel.ledger.node_room import NodeRoom, fit_test
from carrel.ledger.requests import GpuPolicy, Request

BEST_NODES = 256
"""So many of the best nodes are kept in order. They are looked for again when most of them have been taken."""
LOOKED_UP = 32
"""So many of the best nodes are looked up in a question. If it is about none of them, all its nodes are compared."""


class Cost(NamedTuple):
    """How bad it is to place a pod on a node; less is better. Nodes in the same state share it."""

    is_short: bool
    """The machine has too little CPU or memory for the pod: kube-scheduler will hardly send it there."""
    apart: Apart
    """How far the GPUs are from what the request prefers."""
    wasted: float
    """In GPUs: what becomes useless for usual requests, and what others need more, as a multiple of `GRAIN`."""
    left_over: float
    """In GPUs: what stays free on the node."""

    @property
    def by_spreading(self) -> tuple[bool, Apart, float]:
        """The order for pods that want the emptiest node."""
        return (self.is_short, self.apart, -self.left_over)


class NodeCost(NamedTuple):
    """How bad it is to place a pod on this node."""

    not_kept: int
    """GPUs that it would take although others are kept for it. Zero if none are kept."""
    cost: Cost
    node: str

    @property
    def wasted(self) -> float:
        return self.cost.wasted

    @property
    def left_over(self) -> float:
        return self.cost.left_over

    @property
    def preference(self) -> tuple[int, Apart]:
        """What comes before all that is wasted: GPUs that were freed for the pod, and the links that it asks for."""
        return (self.not_kept, self.cost.apart)

    @property
    def by_spreading(self) -> tuple[int, tuple[bool, Apart, float], str]:
        return (self.not_kept, self.cost.by_spreading, self.node)


NO_LOSS = Cost(False, AS_PREFERRED, 0.0, 0.0)
"""Of a machine without GPUs, for a pod without."""


class CostTable:
    """The costs of one kind of pod on all nodes of the ledger; None: the node will not do."""

    __slots__ = (
        "_best",
        "_best_are_all",
        "costs",
        "fits",
        "ledger_moment",
        "machine",
        "machines_moment",
        "request",
        "takes_one_piece",
        "uncounted",
        "without_gpus",
    )

    def __init__(self, request: Request | None, machine: MachineRoom) -> None:
        self.request = request
        self.machine = machine
        self.takes_one_piece = request is not None and _takes_one_piece(request)
        """Whether only the sizes of the free pieces decide which GPU it gets."""
        self.fits: Callable[[NodeRoom], bool] = fit_test(request) if request is not None else lambda room: True
        self.without_gpus = NO_LOSS if request is None else None
        """The cost on a node of which the ledger does not know."""
        self.costs: dict[str, Cost | None] = {}
        self.uncounted: set[str] = set()
        """The nodes of the ledger whose costs are missing."""
        self.ledger_moment = self.machines_moment = -1
        self._best: list[tuple[Cost, str]] | None = None  # None: not looked for yet
        self._best_are_all = False  # no other node will do

    def begin(self, nodes: Collection[str]) -> None:
        self.costs, self._best, self.uncounted = {}, None, set(nodes)

    def set(self, node: str, cost: Cost | None) -> None:
        self.costs[node] = cost
        self.uncounted.discard(node)
        if self._best is not None and cost is not None:
            pair = (cost, node)
            if self._best_are_all or (self._best and pair < self._best[-1]):
                insort(self._best, pair)
                if len(self._best) > 2 * BEST_NODES:
                    del self._best[BEST_NODES:]
                    self._best_are_all = False

    def forget(self, node: str) -> None:
        """The node has changed, or is new."""
        cost = self.costs.pop(node, None)
        self.uncounted.add(node)
        if self._best is not None and cost is not None:
            place = bisect_left(self._best, (cost, node))
            if place < len(self._best) and self._best[place][1] == node:
                del self._best[place]

    def is_complete(self) -> bool:
        """Whether no cost is missing. Then `best` may be asked."""
        if self.uncounted:
            return False
        self.uncounted = set()  # a set that was large stays slow
        if self._best is None or (len(self._best) < LOOKED_UP and not self._best_are_all):
            will_do = ((cost, node) for node, cost in self.costs.items() if cost is not None)
            self._best = nsmallest(BEST_NODES, will_do)
            self._best_are_all = len(self._best) < BEST_NODES
        return True

    def best(self, nodes: Collection[str]) -> tuple[Cost, str] | None:
        """The best of these nodes if it is one of the best of all; None: that is not known."""
        assert self._best is not None, "the table is complete"
        for pair in islice(self._best, LOOKED_UP):
            if pair[1] in nodes:
                return pair
        return None

    def is_nowhere(self) -> bool:
        """No node at all will do."""
        return self._best_are_all and not self._best


def _takes_one_piece(request: Request) -> bool:
    return (
        request.cards == 1
        and request.policy is not GpuPolicy.PREFER_IDS
        and not request.selector.names_uuids
        and not request.topology.min_bandwidth_gbps
    )
