"""Fragmentation gradient descent (Weng and others, USENIX ATC 2023), as a policy to compare with.

Of the whole trace, the most frequent requests that make up 95 % are typical. A node scores by how much less, or more,
of its free GPUs they could use after the placement: `int(100 · sigmoid(change))`. A share goes to the GPU of the node
where that is best. Pods without a GPU cannot use any, which is the same on all nodes; but they count among the 95 %.
"""

from collections import Counter
from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from carrel.ids import NO_POD, NodeName
from carrel.ledger.demand import Mix, Typical
from carrel.ledger.machines import ENOUGH
from carrel.ledger.node_room import Pieces
from carrel.ledger.placement import Placement, able_entries
from carrel.ledger.requests import Request
from carrel.ledger.scoring import Fragmentation, FreePieces, pieces_after
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
        self._known: dict[tuple[Request, Pieces], Sequence[_Way]] = {}

    def score(self, pod: SimulatedPod, node: NodeName) -> int:
        growth = self._growth(pod, node, self._ways(pod, node))
        return int(100 / (1 + exp(min(growth))))

    def placement(self, pod: SimulatedPod, node: NodeName) -> Placement | None:
        """Where fragmentation grows least; of equals, the fullest GPU, then the lowest index."""
        if pod.request is None or pod.request.gpus > 1:
            return self._cluster.placed(pod.request, node)
        ways = self._ways(pod, node)
        growth = self._growth(pod, node, ways)
        taken = ways[growth.index(min(growth))].taken
        able = able_entries(self._cluster.ledger, pod.request, node, NO_POD)
        gpu = next(entry.gpu for entry in able if (entry.gpu.model, entry.gpu.memory, entry.free) == taken)
        return Placement(node, (gpu,), pod.request)

    def _growth(self, pod: SimulatedPod, node: NodeName, ways: "Sequence[_Way]") -> list[float]:
        """By how much the fragmentation of the node grows."""
        fragments, cpu = self._fragmentation.fragments, self._cluster.machines.free.get(node, ENOUGH).cpu_milli
        before = fragments(self._fragmentation.free(self._cluster.ledger.rooms[node].alike), cpu)
        return [fragments(way.left, cpu - pod.machine.cpu_milli) - before for way in ways]

    def _ways(self, pod: SimulatedPod, node: NodeName) -> "Sequence[_Way]":
        """In which the pod may be placed there. Remembered for a single GPU: most requests, and the same on all nodes
        with the same free pieces."""
        room, request = self._cluster.ledger.rooms[node], pod.request
        free = self._fragmentation.free
        if request is None:
            return [_Way(free(room.alike))]
        if request.gpus > 1:
            placement = self._cluster.placed(pod.request, node)
            assert placement is not None, "it asks for GPUs"
            return [_Way(free(pieces_after(room, placement)))]
        pieces = room.alike
        # What a booking allows are certain GPUs, so it is not the same on all nodes.
        known = self._known.get((request, pieces)) if not request.selector.names_uuids else None
        if known is None:
            able = {
                (entry.gpu.model, entry.gpu.memory, entry.free): entry.gpu
                for entry in able_entries(self._cluster.ledger, request, node, NO_POD)
            }
            by_size = sorted(able.items(), key=lambda item: item[0][2])
            known = self._known[request, pieces] = [
                _Way(free(pieces_after(room, Placement(node, (gpu,), request))), piece) for piece, gpu in by_size
            ]
        return known


class _Way(NamedTuple):
    """One way to place a pod on a node."""

    left: FreePieces
    """What stays free."""
    taken: tuple[str, int, int] = ("", 0, 0)
    """Of which GPU it takes a part: its model, its memory, and what was free."""
