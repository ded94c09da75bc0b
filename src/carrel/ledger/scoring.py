"""Which of several nodes should take a pod: the one where the least becomes useless for what is usually asked.

What a placement costs is how much it raises the fragmentation of the node (`fragmentation`): free pieces of GPUs that
usual requests cannot use, and GPUs for which the machine has no CPU or memory left; and by how much more than others
its GPUs are wanted. A pod without a GPU costs something as well: it takes the CPU. Ties go to the node
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

from carrel.ledger.demand import TYPICAL, Demand, Mix
from carrel.ledger.fragmentation import Fragmentation, pieces_after
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import ENOUGH, NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import Alike, NodeRoom, Pieces, fit_test
from carrel.ledger.placement import AS_PREFERRED, Apart, Placement, apart, place, selected
from carrel.ledger.requests import GpuPolicy, Request

GRAIN = 0.01
"""Differences of less than a hundredth of a GPU are noise, and should not outweigh the tie-break."""
REMEMBERED = TYPICAL
"""Kinds of requests whose costs are kept: as many as the mix holds. The one that was asked longest ago is dropped; to
ask for it again costs 3 ms at 500 nodes."""


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


def by_spreading(node: NodeCost) -> tuple[int, bool, Apart, float, str]:
    """The order for pods that want the emptiest node."""
    return (node.not_kept, node.cost.is_short, node.cost.apart, -node.cost.left_over, node.node)


NO_LOSS = Cost(False, AS_PREFERRED, 0.0, 0.0)
"""Of a machine without GPUs, for a pod without."""


class _State:
    """What a cost is counted from, of one node."""

    __slots__ = ("free", "loss", "machine", "room")

    def __init__(self, room: NodeRoom, machine: MachineRoom, fragmentation: Fragmentation) -> None:
        self.room = room
        self.machine = machine
        self.free = fragmentation.free(room.alike)
        self.loss = fragmentation.loss(self.free, machine.cpu_milli, machine.memory_mib)


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
    """Orders nodes by cost. `demand` must be told what pods ask for."""

    def __init__(self, ledger: Ledger, machines: Machines | None = None, remembered: int = REMEMBERED) -> None:
        self._ledger = ledger
        self.machines = machines if machines is not None else Machines()
        self.demand = Demand(ledger, self.machines)
        self._remembered = remembered
        self._mix: Mix | None = None
        self._fragmentation = Fragmentation(self.demand.mix)
        self._states: dict[str, _State] = {}
        self._kinds: OrderedDict[tuple[Request | None, MachineRoom], _RequestKind] = OrderedDict()

    def costs(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> list[NodeCost]:
        """Of the nodes that will do, the best first. `pod` is the uid of who asks: GPUs may be kept for it. `machine`
        is what it asks for besides GPUs; without a request, that is all that it asks for."""
        return sorted(self._costs(self._kind(request, machine), nodes, pod))

    def best(
        self,
        request: Request | None,
        nodes: Collection[str],
        pod: str = "",
        machine: MachineRoom = NOTHING,
        *,
        spreads: bool = False,
    ) -> NodeCost | None:
        """The first of them; for a pod that spreads, the emptiest."""
        costs = self._costs(self._kind(request, machine), nodes, pod)
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
            kind = _RequestKind(request, machine, request is not None and _takes_one_piece(request), fits, {})
            self._kinds[request, machine] = kind
            if len(self._kinds) > self._remembered:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end((request, machine))
        for known in (kind.costs, self._states):
            if len(known) > 2 * len(self._ledger.rooms) + 1:
                known.clear()  # most are of states that nodes were in before
        return kind

    def _costs(self, kind: _RequestKind, nodes: Iterable[str], pod: str) -> list[NodeCost]:
        rooms, machines, states = self._ledger.rooms, self.machines.free, self._states
        kept = self._ledger.kept_for(pod) if pod and kind.request is not None else ()
        with_kept = {entry.gpu.node for entry in map(self._ledger.entry, kept) if entry is not None}
        not_kept = kind.request.gpus if with_kept and kind.request is not None else 0
        found = []
        for name in nodes:
            room = rooms.get(name)
            if room is None:
                if kind.request is None:
                    found.append(NodeCost(0, NO_LOSS, name))
                continue
            machine, state = machines.get(name, ENOUGH), states.get(name)
            if state is None or state.room is not room or state.machine is not machine:
                state = states[name] = _State(room, machine, self._fragmentation)
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

    # --- one node ----------------------------------------------------------------------------------------------------

    def _count(self, kind: _RequestKind, node: str, state: _State) -> Cost | None:
        """None: the node will not do."""
        request = kind.request
        if request is None:
            return self._cost(kind, state, AS_PREFERRED, state.free.pieces)
        if not kind.fits(state.room) or not selected(self._ledger.node(node), request):
            return None
        if kind.takes_one_piece and len(state.room.alike) == 1:
            return self._cost(kind, state, AS_PREFERRED, _after_one(state.room.alike[0], request))
        placed = self._placed(kind, node, state)
        return placed[1] if placed is not None else None

    def _placed(self, kind: _RequestKind, node: str, state: _State, pod: str = "") -> tuple[Placement, Cost] | None:
        """By the GPUs that the pod would get there."""
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


def _takes_one_piece(request: Request) -> bool:
    return (
        request.gpus == 1
        and request.policy is not GpuPolicy.PREFER_IDS
        and not request.selector.names_uuids
        and not request.topology.min_bandwidth_gbps
    )


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
