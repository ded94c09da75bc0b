"""What pods have asked for lately: the mix of requests for which free GPUs should stay usable.

Each pod counts once, however often it is tried. A request weighs half as much after `HALF_LIFE` further pods, so the
mix follows what people do, and what it remembers is bounded. After a restart it is learnt again from the
pods that exist. A pod that no node could serve, were it empty, does not count: room that is kept for it helps nobody,
and one that asks for a million GPUs would outweigh all others.

The mix that scoring uses is replaced only when it has become a different one: every replacement makes all costs that
were counted with the old one void.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from carrel.ledger.machines import NOTHING, MachineRoom
from carrel.ledger.requests import Memory, Request

HALF_LIFE = 1000
"""Pods. About 1,400 of them count then: enough to know the mix, few enough to follow it when it changes."""
REMEMBERED_PODS = 4000
"""Pods that are known to have been counted. What is older hardly weighs, and may be counted again."""
TYPICAL = 128
"""How many different requests are weighed; the rare rest would cost time and change little."""
RECOUNT = 64
"""Pods after which it is looked at whether the mix has changed. Before there are so many: each time it has doubled."""
DIFFERENT = 0.1
"""Which part of the mix must be other requests than before, so that it counts as changed. Less is chance."""
SCALE_LIMIT = 1e100


@dataclass(frozen=True, slots=True)
class Typical:
    """One kind of request of the mix."""

    request: Request
    cpu_milli: int
    weight: float
    """Its part of the mix; all parts make one."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The most frequent requests, and how much CPU and memory goes with a GPU. Two are equal only if the same."""

    typical: Sequence[Typical] = ()
    cpu_milli_per_gpu: float = 0.0
    memory_mib_per_gpu: float = 0.0


NO_MIX = Mix()


@dataclass(frozen=True, slots=True)
class GpuSupply:
    """By which it is judged how many GPUs a request is."""

    mean_memory: float = 0.0
    """MiB of a GPU. Zero: not known, and a part of a GPU in MiB counts as a GPU."""
    most: int = 1 << 30
    """GPUs that one node has. A pod cannot have more, however many it asks for."""


UNKNOWN_SUPPLY = GpuSupply()

_Parts = dict[tuple[Request, MachineRoom], float]
"""How much each kind of request is of a mix."""


class Demand:
    """Counts what pods ask for. `mix` is what scoring should use at the moment. `supply` is asked whenever that has
    changed. `could_serve` says whether a node could serve such a pod, were it empty."""

    def __init__(
        self,
        half_life: int = HALF_LIFE,
        supply: Callable[[], GpuSupply] = lambda: UNKNOWN_SUPPLY,
        could_serve: Callable[[Request, MachineRoom], bool] = lambda request, machine: True,
    ) -> None:
        self._growth = 2 ** (1 / half_life)
        self._supply = supply
        self._could_serve = could_serve
        self._step = 1.0  # how much the next pod weighs: instead of all others becoming lighter, it becomes heavier
        self._weights: _Parts = {}
        self._counted: OrderedDict[str, None] = OrderedDict()
        self._pods = 0
        self._next_look = 1
        self._used: _Parts = {}
        self.mix = NO_MIX

    def saw(self, request: Request, machine: MachineRoom = NOTHING, uid: str = "") -> None:
        """A pod asks for that, and for so much of the machine. With its uid it counts once, however often seen."""
        if uid in self._counted:
            return
        kind = (_general(request), machine)
        if not self._could_serve(*kind):
            return
        if uid:
            self._counted[uid] = None
        if len(self._counted) > REMEMBERED_PODS:
            self._counted.popitem(last=False)
        self._weights[kind] = self._weights.get(kind, 0.0) + self._step
        self._step *= self._growth
        if self._step > SCALE_LIMIT:
            self._forget_the_lightest()
        self._pods += 1
        if self._pods >= self._next_look:
            self._next_look = self._pods + min(self._pods, RECOUNT)
            self._look()

    def has_counted(self, uid: str) -> bool:
        return uid in self._counted

    def supply_changed(self) -> None:
        """The mix is counted anew, with the GPUs that there are now. What was counted before any were known may turn
        out to be more than a node has."""
        self._weights = {kind: weight for kind, weight in self._weights.items() if self._could_serve(*kind)}
        if self._used:
            left = {kind: part for kind, part in self._used.items() if kind in self._weights}
            self._used = _as_parts(left.items())
            self.mix = self._mix_of(self._used)

    def _forget_the_lightest(self) -> None:
        self._weights = {kind: weight / self._step for kind, weight in self._weights.items()}
        self._weights = {kind: weight for kind, weight in self._weights.items() if weight > 1 / SCALE_LIMIT}
        self._step = 1.0

    def _look(self) -> None:
        parts = self._heaviest()
        if len(self._weights) > 4 * TYPICAL:
            self._weights = {kind: self._weights[kind] for kind in parts}
        if self._pods > 2 * RECOUNT and _difference(parts, self._used) < DIFFERENT:
            return
        self._used = parts
        self.mix = self._mix_of(parts)

    def _heaviest(self) -> _Parts:
        return _as_parts(sorted(self._weights.items(), key=lambda item: -item[1])[:TYPICAL])

    def _mix_of(self, parts: _Parts) -> Mix:
        supply = self._supply()
        gpus = sum(weight * _gpus(request, supply) for (request, _), weight in parts.items())
        cpu = sum(weight * room.cpu_milli for (_, room), weight in parts.items())
        memory = sum(weight * room.memory_mib for (_, room), weight in parts.items())
        typical = tuple(Typical(request, room.cpu_milli, weight) for (request, room), weight in parts.items())
        return Mix(typical, cpu / gpus, memory / gpus) if gpus else Mix(typical)


def _as_parts(weights: Collection[tuple[tuple[Request, MachineRoom], float]]) -> _Parts:
    total = sum(weight for _, weight in weights)
    return {kind: weight / total for kind, weight in weights}


def _gpus(request: Request, supply: GpuSupply) -> float:
    part = 1.0
    if not isinstance(request.amount, Memory):
        part = float(request.amount.part)
    elif supply.mean_memory:
        part = min(request.amount.mib / supply.mean_memory, 1.0)
    return min(request.gpus, supply.most) * part


def _general(request: Request) -> Request:
    """Without what only this pod asks for: its gang, GPUs by name, labels of nodes."""
    if request.gang is None and not request.selector.names_uuids and not request.node_labels:
        return request
    return replace(request, gang=None, selector=request.selector.without_uuids(), node_labels=frozenset())


def _difference(one: _Parts, other: _Parts) -> float:
    """Which part of a mix would have to be other requests to make it the other mix."""
    return sum(abs(one.get(kind, 0.0) - other.get(kind, 0.0)) for kind in one.keys() | other.keys()) / 2
