"""Fragmentation gradient descent (Weng and others, USENIX ATC 2023), as a policy to compare with.

Of the whole trace, the most frequent requests that make up 95 % are typical. A node scores by how much less, or more,
of its free GPUs they could use after the placement: `int(100 · sigmoid(change))`. A share goes to the GPU of the node
where that is best. Pods without a GPU cannot use any, which is the same on all nodes; but they count among the 95 %.
"""

from collections import Counter
from collections.abc import Sequence
from math import exp

from carrel.ledger.demand import Mix, Typical
from carrel.ledger.fragmentation import Fragmentation, Pieces, pieces_of, pieces_on
from carrel.ledger.gpus import Gpu
from carrel.ledger.machines import ENOUGH
from carrel.ledger.placement import Placement, able_cards, place
from carrel.simulation.cluster import ClusterInRun
from carrel.simulation.workload import SimulatedPod

TYPICAL_PART = 0.95


def fgd_mix(trace: Sequence[SimulatedPod]) -> Mix:
    counts = Counter((pod.request, pod.machine.cpu_milli) for pod in trace)
    frequent, seen = [], 0
    for kind, count in counts.most_common():
        if seen >= TYPICAL_PART * len(trace):
            break
        frequent.append((kind, count))
        seen += count
    return Mix(tuple(Typical(request, cpu, count / seen) for (request, cpu), count in frequent if request is not None))


class Fgd:
    def __init__(self, cluster: ClusterInRun, mix: Mix) -> None:
        self._cluster = cluster
        self._fragmentation = Fragmentation(mix)

    def score(self, pod: SimulatedPod, node: str) -> int:
        return int(100 / (1 + exp(self._best(pod, node)[0])))

    def placement(self, pod: SimulatedPod, node: str) -> Placement | None:
        return self._best(pod, node)[1]

    def _best(self, pod: SimulatedPod, node: str) -> tuple[float, Placement | None]:
        """By how much the fragmentation of the node grows, at least, and how."""
        ledger, request = self._cluster.ledger, pod.request
        room, cpu = ledger.rooms[node], self._cluster.machines.free.get(node, ENOUGH).cpu_milli
        cpu_left = cpu - pod.machine.cpu_milli
        before = self._fragments(pieces_of(room), cpu)
        if request is None:
            return self._fragments(pieces_of(room), cpu_left) - before, None
        if request.cards > 1:
            placement = place(ledger, request, node)
            assert isinstance(placement, Placement), f"{node} has room, as its summary says"
            return self._fragments(_left(room.gpus, placement), cpu_left) - before, placement
        by_piece = {card.free: card.gpu for card in reversed(able_cards(ledger, request, node, ""))}
        placements = [Placement(node, (by_piece[piece],), request) for piece in sorted(by_piece)]
        grown = [self._fragments(_left(room.gpus, each), cpu_left) - before for each in placements]
        least = min(grown)
        return least, placements[grown.index(least)]

    def _fragments(self, pieces: Pieces, cpu_milli: int) -> float:
        return self._fragmentation.fragments(self._fragmentation.free(pieces), cpu_milli)


def _left(gpus: Sequence[tuple[Gpu, int]], placement: Placement) -> Pieces:
    on, taken = placement.request.amount.on, placement.gpus
    return pieces_on((gpu.model, gpu.memory, free - (on(gpu.memory) if gpu in taken else 0)) for gpu, free in gpus)
