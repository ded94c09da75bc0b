"""Which of several nodes should take a pod: the one where the least becomes useless for what is usually asked.

What a placement costs is how much it raises the fragmentation of the node (`fragmentation`): free pieces of GPUs that
usual requests cannot use, and GPUs for which the machine has no CPU or memory left; and by how much more than others
its GPUs are wanted (`contention`). A pod without a GPU costs something as well: it takes the CPU. Ties go to the node
where the least is left over, then to the name.

Before all that counts where GPUs are kept for the pod: they were freed for it. Then, that the machine has the CPU and
memory for it. Then, what the pod itself prefers: a node where its GPUs have the bandwidth that it asks for, are in one
NVLink island and neighbours comes before one where they are not. A pod that spreads goes to the emptiest of those.

What a kind of request costs is remembered with the state of the node: as long as the room on its GPUs and the room of
its machine are the same objects, so is the state.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from carrel.ledger.contention import contention
from carrel.ledger.demand import TYPICAL, Demand, Mix
from carrel.ledger.fragmentation import Alike, Fragmentation, FreePieces, Pieces, pieces_of, pieces_on
from carrel.ledger.gpu_choice import AS_PREFERRED, Apart, apart
from carrel.ledger.inventory import Inventory
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import ENOUGH, NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import NodeRoom, fit_test
from carrel.ledger.placement import Placement, place, selected
from carrel.ledger.requests import GpuPolicy, Request

GRAIN = 0.01
"""Differences of less than a hundredth of a GPU are noise, and should not outweigh the tie-break."""
REMEMBERED = 2 * TYPICAL
"""Kinds of requests whose costs are kept: all that the mix holds, and as many again. The one that was asked longest ago
is dropped; to ask for it again costs 3 ms at 500 nodes."""
SHARED_COSTS = 50_000
"""So many different costs are known, so that equal ones are one object."""


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


class _State:
    """What a cost is counted from, of one node."""

    __slots__ = ("free", "loss", "machine", "room")

    def __init__(self, room: NodeRoom, machine: MachineRoom, fragmentation: Fragmentation) -> None:
        self.room = room
        self.machine = machine
        self.free = fragmentation.free(pieces_of(room))
        self.loss = fragmentation.loss(self.free, machine.cpu_milli, machine.memory_mib)


class _RequestKind:
    """Requests that cost the same on every node."""

    def __init__(self, request: Request | None, machine: MachineRoom) -> None:
        self.request = request
        self.machine = machine
        self.takes_one_piece = request is not None and _takes_one_piece(request)
        """Whether only the sizes of the free pieces decide which GPU it gets."""
        self.fits: Callable[[NodeRoom], bool] = fit_test(request) if request is not None else lambda room: True
        self.costs: dict[_State, Cost | None] = {}
        """What they cost on the nodes that were asked about. None: such a node will not do."""


class Ranking:
    """Orders nodes by cost. `demand` must be told what pods ask for."""

    def __init__(self, ledger: Ledger, machines: Machines | None = None, remembered: int = REMEMBERED) -> None:
        self._ledger = ledger
        self.machines = machines if machines is not None else Machines()
        self._inventory = Inventory(ledger)
        self.demand = Demand(supply=self._inventory.supply, could_serve=self._could_serve)
        self._remembered = remembered
        self._mix: Mix | None = None
        self._fragmentation = Fragmentation(self.demand.mix)
        self._states: dict[str, _State] = {}
        self._kinds: OrderedDict[tuple[Request | None, MachineRoom], _RequestKind] = OrderedDict()
        self._shared: dict[Cost, Cost] = {}

    def costs(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> list[NodeCost]:
        """Of the nodes that will do, the best first. `pod` is the uid of who asks: GPUs may be kept for it. `machine`
        is what it asks for besides GPUs; without a request, that is all that it asks for."""
        return sorted(self._costs(self._kind(request, machine), nodes, pod))

    def best(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> NodeCost | None:
        """The first of them."""
        return min(self._costs(self._kind(request, machine), nodes, pod), default=None)

    def emptiest(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> NodeCost | None:
        """The one for a pod that spreads."""
        costs = self._costs(self._kind(request, machine), nodes, pod)
        return min(costs, key=lambda each: each.by_spreading, default=None)

    def _costs(self, kind: _RequestKind, nodes: Collection[str], pod: str) -> list[NodeCost]:
        own = self._where_gpus_are_kept(kind, pod) if pod and kind.request is not None else {}
        if not own or kind.request is None:
            return [NodeCost(0, cost, node) for node, cost in self._known(kind, nodes) if cost is not None]
        gpus = kind.request.gpus
        others = [NodeCost(gpus, cost, name) for name, cost in self._known(kind, nodes) if cost and name not in own]
        return others + [cost for name, cost in own.items() if cost is not None and name in nodes]

    def _known(self, kind: _RequestKind, nodes: Iterable[str]) -> list[tuple[str, Cost | None]]:
        """What everybody is told of these nodes."""
        rooms, machines, states, costs = self._ledger.rooms, self.machines.free, self._states, kind.costs
        without_gpus = NO_LOSS if kind.request is None else None
        left_after: dict[FreePieces, FreePieces | None] = {}
        found: list[tuple[str, Cost | None]] = []
        for name in nodes:
            room = rooms.get(name)
            if room is None:
                found.append((name, without_gpus))
                continue
            machine = machines.get(name, ENOUGH)
            state = states.get(name)
            if state is None or state.room is not room or state.machine is not machine:
                state = states[name] = _State(room, machine, self._fragmentation)
            if state not in costs:
                costs[state] = self._count(kind, name, state, left_after)
            found.append((name, costs[state]))
        return found

    def _kind(self, request: Request | None, machine: MachineRoom) -> _RequestKind:
        self._follow_the_mix()
        if request is not None and request.gang is not None:
            request = replace(request, gang=None)
        kind = self._kinds.get((request, machine))
        if kind is None:
            kind = self._kinds[request, machine] = _RequestKind(request, machine)
            if len(self._kinds) > self._remembered:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end((request, machine))
        if len(kind.costs) > 2 * len(self._ledger.rooms) + 1:
            kind.costs.clear()  # most are of states that nodes were in before
        if len(self._states) > 2 * len(self._ledger.rooms) + 1:
            self._states.clear()
        return kind

    def _follow_the_mix(self) -> None:
        is_other_inventory = self._inventory.has_changed()
        if is_other_inventory:
            self.demand.supply_changed()
        if self._mix is not self.demand.mix or is_other_inventory:
            self._mix = self.demand.mix
            if not is_other_inventory:
                self._inventory.count()
            self._fragmentation = Fragmentation(self._mix, contention(self._mix, self._inventory.kinds))
            self._states.clear()
            self._kinds.clear()
            self._shared.clear()

    def _could_serve(self, request: Request, machine: MachineRoom) -> bool:
        return self.machines.could_give(machine) and self._inventory.could_serve(request)

    def _where_gpus_are_kept(self, kind: _RequestKind, pod: str) -> dict[str, NodeCost | None]:
        """On these few nodes the pod may have what nobody else may."""
        entries = map(self._ledger.entry, self._ledger.kept_for(pod))
        return {name: self._count_kept(kind, name, pod) for name in {entry.gpu.node for entry in entries if entry}}

    # --- one node ----------------------------------------------------------------------------------------------------

    def _count(
        self, kind: _RequestKind, node: str, state: _State, left_after: dict[FreePieces, FreePieces | None]
    ) -> Cost | None:
        """`left_after` is kept for one question: many nodes have the same pieces."""
        request, free = kind.request, state.free
        if request is None:
            return self._cost(kind, state, AS_PREFERRED, free)
        if request.node_labels and not selected(self._ledger.node(node), request):
            return None
        if not kind.takes_one_piece or state.room.model is None:
            placement = place(self._ledger, request, node) if kind.fits(state.room) else None
            return self._cost_of(kind, state, placement) if isinstance(placement, Placement) else None
        if free not in left_after:
            after = _after_one(free.pieces[0], request)
            left_after[free] = None if after is None else self._fragmentation.free(after)
        left = left_after[free]
        return None if left is None else self._cost(kind, state, AS_PREFERRED, left)

    def _count_kept(self, kind: _RequestKind, node: str, pod: str) -> NodeCost | None:
        """Of a node where GPUs are kept for the pod."""
        placement = place(self._ledger, kind.request, node, pod) if kind.request is not None else None
        if not isinstance(placement, Placement):
            return None
        kept = self._ledger.kept_for(pod)
        not_kept = sum(gpu.uuid not in kept for gpu in placement.gpus)
        state = _State(self._ledger.rooms[node], self.machines.free.get(node, ENOUGH), self._fragmentation)
        return NodeCost(not_kept, self._cost_of(kind, state, placement), node)

    def _cost_of(self, kind: _RequestKind, state: _State, placement: Placement) -> Cost:
        left = self._fragmentation.free(_after(state.room, placement))
        return self._cost(kind, state, apart(placement.gpus, placement.request), left)

    def _cost(self, kind: _RequestKind, state: _State, apart: Apart, left: FreePieces) -> Cost:
        machine, needed = state.machine, kind.machine
        cpu, memory = machine.cpu_milli - needed.cpu_milli, machine.memory_mib - needed.memory_mib
        change = self._fragmentation.loss(left, max(cpu, 0), max(memory, 0)) - state.loss
        cost = Cost(cpu < 0 or memory < 0, apart, round(change / GRAIN) * GRAIN, left.gpus)
        if len(self._shared) >= SHARED_COSTS:
            self._shared.clear()
        return self._shared.setdefault(cost, cost)


def _takes_one_piece(request: Request) -> bool:
    return (
        request.gpus == 1
        and request.policy is not GpuPolicy.PREFER_IDS
        and not request.selector.names_uuids
        and not request.topology.min_bandwidth_gbps
    )


def _after_one(alike: Alike, request: Request) -> Pieces | None:
    """The pieces that are left after `gpu_choice` has chosen one of them; None: none will do."""
    model, memory, free = alike
    need = request.amount.on(memory)
    if not free or free[0] < need or not request.allows_model(model):
        return None
    taken = 0
    if request.policy not in (GpuPolicy.SPREAD, GpuPolicy.EMPTIEST):
        taken = len(free) - 1
        while free[taken] < need:
            taken -= 1
    left = list(free)
    left[taken] -= need
    left.sort(reverse=True)
    return ((model, memory, tuple(left)),)


def _after(room: NodeRoom, placement: Placement) -> Pieces:
    on, taken = placement.request.amount.on, placement.gpus
    return pieces_on((gpu.model, gpu.memory, free - (on(gpu.memory) if gpu in taken else 0)) for gpu, free in room.gpus)
