"""How much of what is free on a node is of no use for the requests that are usual.

A free piece of a GPU is a *fragment* for a request that cannot have it: the piece is too small, its model is not
allowed, the node has too few such GPUs, or the machine has too little CPU for the pod. How much of the free GPUs are
fragments, averaged over the mix, is the measure of the FGD paper (Weng and others, USENIX ATC 2023).

A GPU is *stranded* if its machine has not as much CPU and memory left as usually goes with a GPU, whatever the single
requests are. Both are counted in GPUs. What no request could use anyway is a fragment already, so it counts half as
stranded; not less, because that was worse on most traces (decision 52).

A free GPU that is wanted more than others (`contention`) is worth more than they are.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from carrel.ledger.contention import GpuKind
from carrel.ledger.demand import Mix
from carrel.ledger.gpus import MiB
from carrel.ledger.machines import MachineRoom
from carrel.ledger.node_room import NodeRoom
from carrel.ledger.requests import Amount, GpuSelector, Request

Alike = tuple[str, MiB, tuple[int, ...]]
"""The usable GPUs of a node that are alike: model, memory of each, free MiB of each, largest first."""
Pieces = tuple[Alike, ...]

NO_DIFFERENCE: Mapping[GpuKind, float] = MappingProxyType({})

REMEMBERED_STATES = 20_000
"""Of the GPUs of a node: as they are, and as they would be after a pod. So many that were asked for lately are kept,
and at most as many again: some 40 MB in all."""


def pieces_of(room: NodeRoom) -> Pieces:
    if room.model is not None:
        return ((room.model, room.memory, room.pieces),)
    return pieces_on((group.model, group.memory, piece) for group in room.groups for piece in group.pieces)


def pieces_on(gpus: Iterable[tuple[str, MiB, int]]) -> Pieces:
    """Of single GPUs: model, memory, free MiB."""
    alike: dict[tuple[str, MiB], list[int]] = {}
    for model, memory, free in gpus:
        alike.setdefault((model, memory), []).append(free)
    return tuple((*kind, tuple(sorted(free, reverse=True))) for kind, free in sorted(alike.items()))


class FreePieces:
    """What is free on the GPUs of a node, and of how much use it is. Nodes in the same state share it."""

    __slots__ = ("fragments", "gpus", "pieces", "usable", "worth")

    def __init__(self, pieces: Pieces, wanted_more: Mapping[GpuKind, float]) -> None:
        self.pieces = pieces
        self.gpus: float = sum(sum(free) / memory for _, memory, free in pieces)
        """How much is free in all."""
        self.worth: float = sum(
            wanted_more.get((model, memory), 0.0) * sum(free) / memory for model, memory, free in pieces
        )
        """By how much that is more than as much of average GPUs, in these."""
        self.usable: float | None = None
        """Which part of the mix could use something of it, had the machine the CPU; None: not counted yet."""
        self.fragments: dict[int, float] = {}
        """By how many steps of CPU the machine has; what is missing is not counted yet."""


class Fragmentation:
    """Counts for one mix. `wanted_more`: by how much more than the average GPU one of a kind is wanted."""

    def __init__(self, mix: Mix, wanted_more: Mapping[GpuKind, float] = NO_DIFFERENCE) -> None:
        self._wanted_more = wanted_more
        self._cpu_per_gpu, self._memory_per_gpu = mix.cpu_milli_per_gpu, mix.memory_mib_per_gpu
        self._cpu_steps = sorted({typical.cpu_milli for typical in mix.typical})
        by_gpus: dict[tuple[int, Amount, str, GpuSelector], _SameGpus] = {}
        for typical in mix.typical:
            request = typical.request
            key = (request.gpus, request.amount, request.model, request.selector)
            same = by_gpus.setdefault(key, _SameGpus(request, len(self._cpu_steps)))
            same.weights[bisect_right(self._cpu_steps, typical.cpu_milli)] += typical.weight
        self._same = tuple(by_gpus.values())
        for same in self._same:
            same.sum_up()
        self._known: dict[Pieces, FreePieces] = {}
        self._older: dict[Pieces, FreePieces] = {}  # what was known when there were too many

    def free(self, pieces: Pieces) -> FreePieces:
        known = self._known.get(pieces)
        if known is None:
            if len(self._known) >= REMEMBERED_STATES:
                self._older, self._known = self._known, {}
            known = self._older.pop(pieces, None) or FreePieces(pieces, self._wanted_more)
            self._known[pieces] = known
        return known

    def loss(self, free: FreePieces, cpu_milli: int, memory_mib: int) -> float:
        """How many of the free GPUs are fragments or stranded, in GPUs, on a machine with so much CPU and memory; less
        what they are worth above the average."""
        fragments = self.fragments(free, cpu_milli) - free.worth
        if not self._cpu_per_gpu:
            return fragments
        stranded = free.gpus - cpu_milli / self._cpu_per_gpu
        if self._memory_per_gpu:
            stranded = max(stranded, free.gpus - memory_mib / self._memory_per_gpu)
        return fragments + stranded * (1 + self._usable(free)) / 2 if stranded > 0 else fragments

    def _usable(self, free: FreePieces) -> float:
        if free.usable is None:
            free.usable = sum(same.weight for same in self._same if same.is_served(free))
        return free.usable

    def fragments(self, free: FreePieces, cpu_milli: int) -> float:
        step = bisect_right(self._cpu_steps, cpu_milli)
        known = free.fragments.get(step)
        if known is None:
            known = free.fragments[step] = sum(same.fragments(free, step) for same in self._same)
        return known

    def of(self, room: NodeRoom, machine: MachineRoom) -> float:
        return self.fragments(self.free(pieces_of(room)), machine.cpu_milli)


class _SameGpus:
    """Requests of the mix that differ only in their CPU."""

    def __init__(self, request: Request, cpu_steps: int) -> None:
        self._request = request
        self.weights = [0.0] * (cpu_steps + 1)
        """By how many steps of CPU a machine must have at least."""
        self._served: Sequence[float] = ()
        self._needs: dict[tuple[str, MiB], int] = {}

    def sum_up(self) -> None:
        self._served = [sum(self.weights[: step + 1]) for step in range(len(self.weights))]

    @property
    def weight(self) -> float:
        return self._served[-1]

    def is_served(self, on_node: FreePieces) -> bool:
        """Whether the node has the GPUs for one of them."""
        able = 0
        for model, memory, free in on_node.pieces:
            need = self._need(model, memory)
            able += sum(piece >= need for piece in free)
        return able >= self._request.gpus

    def fragments(self, on_node: FreePieces, step: int) -> float:
        able, useless = 0, 0.0
        for model, memory, free in on_node.pieces:
            need = self._need(model, memory)
            if free[0] < need:
                useless += sum(free) / memory
            elif free[-1] >= need:
                able += len(free)
            else:
                small = [piece for piece in free if piece < need]
                able += len(free) - len(small)
                useless += sum(small) / memory
        served = self._served[step]
        if able < self._request.gpus:
            useless = on_node.gpus
        return served * useless + (self._served[-1] - served) * on_node.gpus

    def _need(self, model: str, memory: MiB) -> int:
        """How much of such a GPU is asked; more than it has, if the request does not allow it."""
        if (model, memory) not in self._needs:
            allowed = self._request.allows_model(model)
            self._needs[model, memory] = self._request.amount.on(memory) if allowed else memory + 1
        return self._needs[model, memory]
