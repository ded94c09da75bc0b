"""How much of what is free on a node is of no use for the requests that are usual.

A free piece of a GPU is a *fragment* for a request that cannot have it: the piece is too small, its model is not
allowed, the node has too few such GPUs, or the machine has too little CPU for the pod. How much of the free GPUs are
fragments, averaged over the mix, is the measure of the FGD paper (Weng and others, USENIX ATC 2023).

A GPU is *stranded* if its machine has not as much CPU and memory left as usually goes with a GPU, whatever the single
requests are. Both are counted in GPUs. What no request could use anyway is a fragment already, so it counts half as
stranded; not less, because that was worse on most traces (decision 52).

A free GPU that is wanted more than others (`Mix.wanted_more`) is worth more than they are.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from carrel.ledger.demand import Mix
from carrel.ledger.node_room import NodeRoom, Pieces, alike
from carrel.ledger.placement import Placement
from carrel.ledger.requests import Amount, GpuSelector, Request

REMEMBERED_STATES = 20_000
"""Of the GPUs of a node: as they are, and as they would be after a pod. When there are more, all are forgotten."""


def pieces_after(room: NodeRoom, placement: Placement) -> Pieces:
    """What stays free on a node after the placement."""
    on, taken = placement.request.amount.on, placement.gpus
    return alike((gpu.model, gpu.memory, free - (on(gpu.memory) if gpu in taken else 0)) for gpu, free in room.gpus)


class FreePieces:
    """What is free on the GPUs of a node, and of how much use it is. Nodes in the same state share it."""

    __slots__ = ("fragments", "gpus", "pieces", "useless", "worth")

    def __init__(self, pieces: Pieces, mix: Mix, requests: Sequence[Request]) -> None:
        self.pieces = pieces
        self.gpus: float = sum(sum(free) / memory for _, memory, free in pieces)
        """How much is free in all."""
        self.worth: float = sum(
            mix.wanted_more.get((model, memory), 0.0) * sum(free) / memory for model, memory, free in pieces
        )
        """By how much that is more than as much of average GPUs, in these."""
        self.useless = [_useless(pieces, self.gpus, request) for request in requests]
        """How much of it each request of the mix cannot use, had the machine the CPU."""
        self.fragments: dict[int, float] = {}
        """By how many steps of CPU the machine has; what is missing is not counted yet."""


def _useless(pieces: Pieces, gpus: float, request: Request) -> float:
    """How much of the pieces the request cannot use; all of them, if it is too little for it."""
    able, useless = 0, 0.0
    for model, memory, free in pieces:
        need = request.amount.on(memory) if request.allows_model(model) else memory + 1
        small = [piece for piece in free if piece < need]
        able += len(free) - len(small)
        useless += sum(small) / memory
    return useless if able >= request.gpus else gpus


class _SameGpus(NamedTuple):
    """Requests of the mix that differ only in their CPU."""

    request: Request
    served: Sequence[float]
    """How much of the mix they are that a machine has the CPU for, by how many steps of CPU it has."""


class Fragmentation:
    """Counts for one mix."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._cpu_steps = sorted({typical.cpu_milli for typical in mix.typical})
        by_gpus: dict[tuple[int, Amount, str, GpuSelector], tuple[Request, list[float]]] = {}
        for typical in mix.typical:
            request = typical.request
            key = (request.gpus, request.amount, request.model, request.selector)
            _, weights = by_gpus.setdefault(key, (request, [0.0] * (len(self._cpu_steps) + 1)))
            weights[bisect_right(self._cpu_steps, typical.cpu_milli)] += typical.weight
        self._same = [_SameGpus(request, tuple(accumulate(weights))) for request, weights in by_gpus.values()]
        self._requests = [same.request for same in self._same]
        self._known: dict[Pieces, FreePieces] = {}

    def free(self, pieces: Pieces) -> FreePieces:
        known = self._known.get(pieces)
        if known is None:
            if len(self._known) >= REMEMBERED_STATES:
                self._known.clear()
            known = self._known[pieces] = FreePieces(pieces, self._mix, self._requests)
        return known

    def loss(self, free: FreePieces, cpu_milli: int, memory_mib: int) -> float:
        """How many of the free GPUs are fragments or stranded, in GPUs, on a machine with so much CPU and memory; less
        what they are worth above the average."""
        mix, fragments = self._mix, self.fragments(free, cpu_milli) - free.worth
        if not mix.cpu_milli_per_gpu:
            return fragments
        stranded = free.gpus - cpu_milli / mix.cpu_milli_per_gpu
        if mix.memory_mib_per_gpu:
            stranded = max(stranded, free.gpus - memory_mib / mix.memory_mib_per_gpu)
        if stranded <= 0:
            return fragments
        counted = zip(self._same, free.useless, strict=True)
        usable = sum(same.served[-1] for same, useless in counted if useless < free.gpus)
        return fragments + stranded * (1 + usable) / 2

    def fragments(self, free: FreePieces, cpu_milli: int) -> float:
        step = bisect_right(self._cpu_steps, cpu_milli)
        known = free.fragments.get(step)
        if known is None:
            counted = zip(self._same, free.useless, strict=True)
            known = free.fragments[step] = sum(
                served[step] * useless + (served[-1] - served[step]) * free.gpus for (_, served), useless in counted
            )
        return known
