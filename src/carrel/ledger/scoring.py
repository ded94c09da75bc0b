"""Which of several nodes should take a pod: the one where the least becomes useless for what is usually asked.

What a placement costs is how much it raises the fragmentation of the node: free pieces of GPUs that usual requests
cannot use, and GPUs for which the machine has no CPU or memory left; and by how much more than others its GPUs are
wanted. A pod without a GPU costs something as well: it takes the CPU. Ties go to the node where the least is left over,
then to the name.

- A free piece of a GPU is a *fragment* for a request that cannot have it: the piece is too small, its model is not
  allowed, the node has too few such GPUs, or the machine has too little CPU for the pod. How much of the free GPUs are
  fragments, averaged over the mix, is the measure of the FGD paper (Weng and others, USENIX ATC 2023).
- A GPU is *stranded* if its machine has not as much CPU and memory left as usually goes with a GPU, whatever the single
  requests are. Both are counted in GPUs. What no request could use anyway is a fragment already, so it counts half as
  stranded; not less, because that was worse on most traces (decision 52).
- A free GPU that is wanted more than others (`Mix.wanted_more`) is worth more than they are.

Before all that counts where GPUs are kept for the pod: they were freed for it. Then, that the machine has the CPU and
memory for it. Then, what the pod itself prefers: a node where its GPUs have the bandwidth that it asks for, are in one
NVLink island and neighbours comes before one where they are not. A pod that spreads goes to the emptiest of those.

What a kind of request costs is remembered with the state of the node: as long as the room on its GPUs and the room of
its machine are the same objects, so is the state.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from carrel.ids import NO_POD, HolderId, NodeName
from carrel.ledger.demand import TYPICAL, Demand, Mix
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import ENOUGH, NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import Alike, NodeRoom, Pieces, alike, fit_test
from carrel.ledger.placement import AS_PREFERRED, Apart, Placement, apart, place
from carrel.ledger.requests import Amount, GpuPolicy, GpuSelector, Request

GRAIN = 0.01
"""Differences of less than a hundredth of a GPU are noise, and should not outweigh the tie-break."""
REMEMBERED = TYPICAL
"""Kinds of requests whose costs are kept: as many as the mix holds. The one that was asked longest ago is dropped; to
ask for it again costs 3 ms at 500 nodes."""

REMEMBERED_STATES = 20_000
"""Of the GPUs of a node: as they are, and as they would be after a pod. When there are more, all are forgotten."""


# --- fragmentation ---------------------------------------------------------------------------------------------------


def pieces_after(room: NodeRoom, placement: Placement) -> Pieces:
    """What stays free on a node after the placement."""
    on, taken = placement.request.amount.on, placement.gpus
    return alike((gpu.model, gpu.memory, free - (on(gpu.memory) if gpu in taken else 0)) for gpu, free in room.gpus)


@dataclass(eq=False, slots=True)
class FreePieces:
    """What is free on the GPUs of a node, and of how much use it is. Nodes in the same state share it."""

    pieces: Pieces
    gpus: float
    """How much is free in all."""
    worth: float
    """By how much that is more than as much of average GPUs, in these."""
    useless: Sequence[float]
    """How much of it each request of the mix cannot use, had the machine the CPU."""
    fragments: dict[int, float] = field(default_factory=dict)
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
        self._known: dict[Pieces, FreePieces] = {}

    def free(self, pieces: Pieces) -> FreePieces:
        known = self._known.get(pieces)
        if known is None:
            if len(self._known) >= REMEMBERED_STATES:
                self._known.clear()
            more = self._mix.wanted_more
            gpus: float = sum(sum(free) / memory for _, memory, free in pieces)
            worth: float = sum(more.get((model, size), 0.0) * sum(free) / size for model, size, free in pieces)
            useless = [_useless(pieces, gpus, same.request) for same in self._same]
            known = self._known[pieces] = FreePieces(pieces, gpus, worth, useless)
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


# --- costs -----------------------------------------------------------------------------------------------------------


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


class NodeCost(NamedTuple):
    """How bad it is to place a pod on this node."""

    not_kept: int
    """GPUs that it would take although others are kept for it. Zero if none are kept."""
    cost: Cost
    node: NodeName

    @property
    def preference(self) -> tuple[int, Apart]:
        """What comes before all that is wasted: GPUs that were freed for the pod, and the links that it asks for."""
        return (self.not_kept, self.cost.apart)


def by_spreading(node: NodeCost) -> tuple[int, bool, Apart, float, str]:
    """The order for pods that want the emptiest node."""
    return (node.not_kept, node.cost.is_short, node.cost.apart, -node.cost.left_over, node.node)


NO_LOSS = Cost(False, AS_PREFERRED, 0.0, 0.0)
"""Of a machine without GPUs, for a pod without."""


@dataclass(eq=False, frozen=True, slots=True)
class _State:
    """What a cost is counted from, of one node."""

    room: NodeRoom
    machine: MachineRoom
    free: FreePieces
    loss: float


class _RequestKind(NamedTuple):
    """Requests that cost the same on every node."""

    request: Request | None
    machine: MachineRoom
    takes_one_piece: bool
    """Whether only the sizes of the free pieces decide which GPU it gets."""
    fits: Callable[[NodeRoom], bool]
    costs: dict[_State, Cost | None]
    """What they cost on the nodes that were asked about. None: such a node will not do."""


class Ranking:
    """Says what a pod costs on nodes. `demand` must be told what pods ask for."""

    def __init__(self, ledger: Ledger, machines: Machines | None = None, remembered: int = REMEMBERED) -> None:
        self._ledger = ledger
        self.machines = machines if machines is not None else Machines()
        self.demand = Demand(ledger, self.machines)
        self._remembered = remembered
        self._mix: Mix | None = None
        self._fragmentation = Fragmentation(self.demand.mix)
        self._states: dict[NodeName, _State] = {}
        self._kinds: OrderedDict[tuple[Request | None, MachineRoom], _RequestKind] = OrderedDict()

    def costs(
        self,
        request: Request | None,
        nodes: Collection[NodeName],
        pod: HolderId = NO_POD,
        machine: MachineRoom = NOTHING,
    ) -> list[NodeCost]:
        """Return what it costs on each of the nodes that will do. `pod` is the uid of who asks: GPUs may be kept for
        it. `machine` is what it asks for besides GPUs; without a request, that is all that it asks for."""
        kind = self._kind(request, machine)
        rooms, machines, states = self._ledger.rooms, self.machines.free, self._states
        kept = self._ledger.kept_for(pod) if pod and request is not None else ()
        with_kept = {entry.gpu.node for entry in map(self._ledger.entry, kept) if entry is not None}
        not_kept = request.gpus if with_kept and request is not None else 0
        found = []
        for name in nodes:
            room = rooms.get(name)
            if room is None:
                if request is None:
                    found.append(NodeCost(0, NO_LOSS, name))
                continue
            has, state = machines.get(name, ENOUGH), states.get(name)
            if state is None or state.room is not room or state.machine is not has:
                free = self._fragmentation.free(room.alike)
                loss = self._fragmentation.loss(free, has.cpu_milli, has.memory_mib)
                state = states[name] = _State(room, has, free, loss)
            if name in with_kept:  # there the pod may have what nobody else may
                if (own := self._placed(kind, name, state, pod)) is not None:
                    taken, cost = own
                    found.append(NodeCost(sum(gpu.uuid not in kept for gpu in taken.gpus), cost, name))
                continue
            if state not in kind.costs:
                kind.costs[state] = self._count(kind, name, state)
            if (known := kind.costs[state]) is not None:
                found.append(NodeCost(not_kept, known, name))
        return found

    def best(
        self,
        request: Request | None,
        nodes: Collection[NodeName],
        pod: HolderId = NO_POD,
        machine: MachineRoom = NOTHING,
        *,
        spreads: bool = False,
    ) -> NodeCost | None:
        """Return the node where it costs least; for a pod that spreads, the emptiest."""
        costs = self.costs(request, nodes, pod, machine)
        return min(costs, key=by_spreading if spreads else None, default=None)

    def _kind(self, request: Request | None, machine: MachineRoom) -> _RequestKind:
        if self._mix is not (mix := self.demand.mix):
            self._mix, self._fragmentation = mix, Fragmentation(mix)
            self._states.clear()
            self._kinds.clear()
        if request is not None and request.gang is not None:
            request = replace(request, gang=None)
        kind = self._kinds.get((request, machine))
        if kind is None:
            fits = fit_test(request) if request is not None else lambda room: True
            takes_one_piece = (
                request is not None
                and request.gpus == 1
                and request.policy is not GpuPolicy.PREFER_IDS
                and not (request.slices or request.selector.names_uuids)
                and not request.topology.min_bandwidth_gbps
            )
            kind = _RequestKind(request, machine, takes_one_piece, fits, {})
            self._kinds[request, machine] = kind
            if len(self._kinds) > self._remembered:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end((request, machine))
        for known in (kind.costs, self._states):
            if len(known) > 2 * len(self._ledger.rooms) + 1:
                known.clear()  # most are of states that nodes were in before
        return kind

    # --- one node ----------------------------------------------------------------------------------------------------

    def _count(self, kind: _RequestKind, node: NodeName, state: _State) -> Cost | None:
        """None: the node will not do."""
        request = kind.request
        if request is None:
            return self._cost(kind, state, AS_PREFERRED, state.free.pieces)
        if not kind.fits(state.room) or not request.selects(self._ledger.node(node)):
            return None
        if kind.takes_one_piece and len(state.room.alike) == 1:
            return self._cost(kind, state, AS_PREFERRED, _after_one(state.room.alike[0], request))
        placed = self._placed(kind, node, state)
        return placed[1] if placed is not None else None

    def _placed(
        self, kind: _RequestKind, node: NodeName, state: _State, pod: HolderId = NO_POD
    ) -> tuple[Placement, Cost] | None:
        """What the pod would get there, and what that costs."""
        placement = place(self._ledger, kind.request, node, pod) if kind.request is not None else None
        if not isinstance(placement, Placement):
            return None
        left = pieces_after(state.room, placement)
        return placement, self._cost(kind, state, apart(placement.gpus, placement.request), left)

    def _cost(self, kind: _RequestKind, state: _State, apart: Apart, pieces: Pieces) -> Cost:
        """With these pieces left."""
        left, machine, needed = self._fragmentation.free(pieces), state.machine, kind.machine
        cpu, memory = machine.cpu_milli - needed.cpu_milli, machine.memory_mib - needed.memory_mib
        change = self._fragmentation.loss(left, max(cpu, 0), max(memory, 0)) - state.loss
        return Cost(cpu < 0 or memory < 0, apart, round(change / GRAIN) * GRAIN, left.gpus)


def _after_one(pieces: Alike, request: Request) -> Pieces:
    """What is left after `placement` has chosen one of them, of which one will do."""
    model, memory, free = pieces
    need, taken = request.amount.on(memory), 0
    if request.policy not in (GpuPolicy.SPREAD, GpuPolicy.EMPTIEST):
        taken = len(free) - 1
        while free[taken] < need:
            taken -= 1
    left = sorted((piece - need if place == taken else piece for place, piece in enumerate(free)), reverse=True)
    return ((model, memory, tuple(left)),)
