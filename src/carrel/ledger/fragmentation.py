"""How much of what is free on a node is of no use for the requests that are usual.

A free piece of a GPU is a *fragment* for a request that cannot have it: the piece is too small, its model is not
allowed, the node has too few such GPUs, or the machine has too little CPU for the pod. How much of the free GPUs are
fragments, averaged over the mix, is the measure of the FGD paper (Weng and others, USENIX ATC 2023).

A GPU is *stranded* if its machine has not as much CPU and memory left as usually goes with a GPU, whatever the single
requests are. Both are counted in GPUs.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from carrel.ledger.demand import Mix
from carrel.ledger.machines import MachineRoom
from carrel.ledger.node_room import NodeRoom
from carrel.ledger.requests import Amount, Request

Pieces = tuple[tuple[str, int, tuple[int, ...]], ...]
"""The free GPUs of a node that are alike: model, memory of each, free MiB of each, largest first."""

REMEMBERED_STATES = 100_000


def pieces_of(room: NodeRoom) -> Pieces:
    if room.model is not None:
        return ((room.model, room.memory, room.pieces),)
    alike: dict[tuple[str, int], list[int]] = {}
    for group in room.groups:
        alike.setdefault((group.model, group.memory), []).extend(group.pieces)
    return tuple((*kind, tuple(sorted(free, reverse=True))) for kind, free in sorted(alike.items()))


def free_gpus(pieces: Pieces) -> float:
    return sum(sum(free) / memory for _, memory, free in pieces)


class Fragmentation:
    """Counts for one mix. Nodes in the same state, of which there are many, are counted once."""

    def __init__(self, mix: Mix) -> None:
        self._mix = mix
        self._cpu_steps = sorted({typical.cpu_milli for typical in mix.typical})
        by_gpus: dict[tuple[int, Amount, str, tuple[str, ...], tuple[str, ...]], _Alike] = {}
        for typical in mix.typical:
            request, selector = typical.request, typical.request.selector
            key = (request.cards, request.amount, request.model, selector.models, selector.not_models)
            alike = by_gpus.setdefault(key, _Alike(request, len(self._cpu_steps)))
            alike.add(bisect_right(self._cpu_steps, typical.cpu_milli), typical.weight)
        self._alike = tuple(by_gpus.values())
        self._known: dict[tuple[Pieces, int], float] = {}

    def cost(self, pieces: Pieces, machine: MachineRoom | None) -> float:
        """How many of the free GPUs are of no use, in GPUs. Without a machine: as if it had enough of everything."""
        steps = self._cpu_steps
        enough_for = len(steps) if machine is None else bisect_right(steps, machine.cpu_milli)
        key = (pieces, enough_for)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > REMEMBERED_STATES:
                self._known.clear()
            known = self._known[key] = sum(alike.fragments(pieces, enough_for) for alike in self._alike)
        return known + self.stranded(pieces, machine)

    def stranded(self, pieces: Pieces, machine: MachineRoom | None) -> float:
        mix = self._mix
        if machine is None or not mix.cpu_milli_per_gpu:
            return 0.0
        served = machine.cpu_milli / mix.cpu_milli_per_gpu
        if mix.memory_mib_per_gpu:
            served = min(served, machine.memory_mib / mix.memory_mib_per_gpu)
        return max(0.0, free_gpus(pieces) - served)


class _Alike:
    """Requests of the mix that differ only in their CPU."""

    def __init__(self, request: Request, cpu_steps: int) -> None:
        self._request = request
        self._cards = request.cards
        self._weights = [0.0] * (cpu_steps + 1)  # by how many steps of CPU a machine must have at least
        self._needs: dict[tuple[str, int], int | None] = {}
        self._enough: Sequence[float] = ()
        self._known: dict[tuple[str, int, tuple[int, ...]], tuple[int, float, float]] = {}

    def add(self, cpu_step: int, weight: float) -> None:
        self._weights[cpu_step] += weight
        # One addition after the other, so that the order does not matter to the last digit.
        self._enough = [sum(self._weights[: step + 1]) for step in range(len(self._weights))]

    def fragments(self, pieces: Pieces, enough_for: int) -> float:
        served = self._enough[enough_for]
        able, useless, total = 0, 0.0, 0.0
        for model, memory, free in pieces:
            need = self._need(model, memory)
            in_all = sum(free) / memory
            total += in_all
            if need is None or free[0] < need:
                useless += in_all
            elif free[-1] >= need:
                able += len(free)
            else:
                small = [piece for piece in free if piece < need]
                able += len(free) - len(small)
                useless += sum(small) / memory
        return served * (useless if able >= self._cards else total) + (self._enough[-1] - served) * total

    def _need(self, model: str, memory: int) -> int | None:
        """How much of such a GPU is asked; None: none of it will do."""
        known: Mapping[tuple[str, int], int | None] = self._needs
        if (model, memory) not in known:
            allowed = self._request.allows_model(model)
            self._needs[model, memory] = self._request.amount.on(memory) if allowed else None  # type: ignore[arg-type] # MiB
        return self._needs[model, memory]
