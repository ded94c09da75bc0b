"""Which of several nodes should take a pod: the one where the least becomes useless for what is usually asked.

What a placement costs is how much it raises the fragmentation of the node (`fragmentation`): free pieces of GPUs that
usual requests cannot use, and GPUs for which the machine has no CPU or memory left; and by how much more than others
its GPUs are wanted (`contention`). A pod without a GPU costs something as well: it takes the CPU. Ties go to the node
where the least is left over, then to the name.

Before all that counts where GPUs are kept for the pod: they were freed for it. Then, that the machine has the CPU and
memory for it. Then, what the pod itself prefers: a node where its GPUs have the bandwidth that it asks for, are in one
NVLink island and neighbours comes before one where they are not. A pod that spreads goes to the emptiest of those.

Costs are remembered for each kind of request (`cost_tables`), and counted again only on nodes where something has
changed. What they are when counted is a matter of small sums: one question is about thousands of nodes.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from carrel.ledger.contention import contention
from carrel.ledger.cost_tables import Cost, CostTable, NodeCost
from carrel.ledger.demand import TYPICAL, Demand, Mix
from carrel.ledger.fragmentation import Alike, Fragmentation, FreePieces, Pieces, pieces_of, pieces_on
from carrel.ledger.gpu_choice import AS_PREFERRED, Apart, apart
from carrel.ledger.inventory import Inventory
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import ENOUGH, NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import NodeRoom
from carrel.ledger.placement import Placement, place, selected
from carrel.ledger.requests import GpuPolicy, Request

GRAIN = 0.01
"""Differences of less than a hundredth of a GPU are noise, and should not outweigh the tie-break."""
REMEMBERED = 2 * TYPICAL
"""Kinds of requests whose costs are kept: all that the mix holds, and as many again. The one that was asked longest ago
is dropped; to ask for it again costs 20 ms at 5,000 nodes."""
SHARED_COSTS = 50_000
"""So many different costs are known, so that equal ones are one object."""
COUNTED_BESIDES = 64
"""So many nodes that a question is not about are counted with it, until the costs of all are known."""
COUNTED_AT_ONCE = 256
"""If no more than so many are missing, all of them are. As many have changed when each kind of pods that is remembered
was asked for once."""


class _State(NamedTuple):
    """What a cost is counted from, of one node: true as long as both rooms are the same objects."""

    room: NodeRoom
    machine: MachineRoom
    free: FreePieces
    loss: float


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
        self._tables: OrderedDict[tuple[Request | None, MachineRoom], CostTable] = OrderedDict()
        self._shared: dict[Cost, Cost] = {}

    def costs(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> list[NodeCost]:
        """Of the nodes that will do, the best first. `pod` is the uid of who asks: GPUs may be kept for it. `machine`
        is what it asks for besides GPUs; without a request, that is all that it asks for."""
        return sorted(self._costs(self._table(request, machine), nodes, pod))

    def best(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> NodeCost | None:
        """The first of them. Much faster if `nodes` is not a list or a tuple, and knows at once what is in it."""
        table = self._table(request, machine)
        if pod and self._ledger.kept_for(pod):
            return min(self._costs(table, nodes, pod), default=None)
        if request is not None and not isinstance(nodes, list | tuple) and self._are_all_counted(table):
            best = table.best(nodes)
            if best is not None or table.is_nowhere():
                return best and NodeCost(0, *best)
        return self._first(table, nodes)

    def emptiest(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> NodeCost | None:
        """The one for a pod that spreads."""
        table = self._table(request, machine)
        if pod and self._ledger.kept_for(pod):
            return min(self._costs(table, nodes, pod), key=lambda each: each.by_spreading, default=None)
        return self._first(table, nodes, spreads=True)

    def _first(self, table: CostTable, nodes: Collection[str], *, spreads: bool = False) -> NodeCost | None:
        """The best of these nodes. Many have the same cost, so the costs are compared first, and then the names."""
        known = self._known(table, nodes)
        best = min(filter(None, known), default=None)
        if best is None:
            return None
        if not spreads:
            return NodeCost(0, best, min(node for node, cost in zip(nodes, known, strict=True) if cost == best))
        costs = set(filter(None, known))
        least = min(cost.by_spreading for cost in costs)
        emptiest = {cost for cost in costs if cost.by_spreading == least}
        node, best = min((node, cost) for node, cost in zip(nodes, known, strict=True) if cost in emptiest)
        return best and NodeCost(0, best, node)

    def _costs(self, table: CostTable, nodes: Collection[str], pod: str) -> list[NodeCost]:
        known = zip(nodes, self._known(table, nodes), strict=True)
        own = self._where_gpus_are_kept(table, pod) if pod else {}
        if not own or table.request is None:
            return [NodeCost(0, cost, node) for node, cost in known if cost]
        cards = table.request.cards
        others = [NodeCost(cards, cost, node) for node, cost in known if cost and node not in own]
        return others + [cost for name, cost in own.items() if cost is not None and name in nodes]

    def _known(self, table: CostTable, nodes: Collection[str]) -> list[Cost | None]:
        """What everybody is told of these nodes."""
        if table.uncounted:
            self._count_all(table, table.uncounted.intersection(nodes))
        if table.without_gpus is None:
            return list(map(table.costs.get, nodes))
        return [table.costs.get(name, table.without_gpus) for name in nodes]

    def _are_all_counted(self, table: CostTable) -> bool:
        """Whether the costs of all nodes are known. A few more are counted each time."""
        if table.uncounted:
            most = len(table.uncounted) if len(table.uncounted) <= COUNTED_AT_ONCE else COUNTED_BESIDES
            self._count_all(table, tuple(islice(table.uncounted, most)))
        return table.is_complete()

    # --- what is remembered ------------------------------------------------------------------------------------------

    def _table(self, request: Request | None, machine: MachineRoom) -> CostTable:
        self._follow_the_mix()
        if request is not None and request.gang is not None:
            request = replace(request, gang=None)
        table = self._tables.get((request, machine))
        if table is None:
            table = self._tables[request, machine] = CostTable(request, machine)
            if len(self._tables) > self._remembered:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end((request, machine))
        if (table.ledger_moment, table.machines_moment) != (self._ledger.version, self.machines.moment):
            self._repair(table)
        return table

    def _repair(self, table: CostTable) -> None:
        """Forgets the costs that may be others now."""
        rooms = self._ledger.rooms
        changed = self._ledger.changed_since(table.ledger_moment)
        machines_changed = self.machines.changed_since(table.machines_moment)
        if table.ledger_moment < 0 or changed is None or machines_changed is None:  # it is new, or nodes have gone
            table.begin(rooms)
            if len(self._states) > len(rooms):
                self._states = {name: state for name, state in self._states.items() if name in rooms}
        else:
            for name in changed:
                table.forget(name)
            for name in machines_changed:
                if name in rooms:  # of others the machine does not count
                    table.forget(name)
        table.ledger_moment, table.machines_moment = self._ledger.version, self.machines.moment

    def _follow_the_mix(self) -> None:
        is_other_inventory = self._inventory.has_changed()
        if is_other_inventory:
            self.demand.supply_changed()
        if self._mix is not self.demand.mix or is_other_inventory:
            self._mix = self.demand.mix
            if not is_other_inventory:
                self._inventory.count()
            self._fragmentation = Fragmentation(self._mix, contention(self._mix, self._inventory.kinds))
            self._states, self._tables, self._shared = {}, OrderedDict(), {}

    def _could_serve(self, request: Request, machine: MachineRoom) -> bool:
        return self.machines.could_give(machine) and self._inventory.could_serve(request)

    def _state(self, node: str) -> _State | None:
        room = self._ledger.rooms.get(node)
        if room is None:
            return None
        machine = self.machines.free.get(node, ENOUGH)
        known = self._states.get(node)
        if known is not None and known.room is room and known.machine is machine:
            return known
        free = self._fragmentation.free(pieces_of(room))
        loss = self._fragmentation.loss(free, machine.cpu_milli, machine.memory_mib)
        state = self._states[node] = _State(room, machine, free, loss)
        return state

    def _where_gpus_are_kept(self, table: CostTable, pod: str) -> dict[str, NodeCost | None]:
        """On these few nodes the pod may have what nobody else may."""
        kept = self._ledger.kept_for(pod)
        cards = map(self._ledger.card, kept)
        return {name: self._count_kept(table, name, pod) for name in {card.gpu.node for card in cards if card}}

    # --- one node ----------------------------------------------------------------------------------------------------

    def _count_all(self, table: CostTable, nodes: Iterable[str]) -> None:
        """Of nodes of the ledger."""
        left_after: dict[FreePieces, FreePieces | None] = {}  # not for longer: there are as many as nodes
        for name in nodes:
            table.set(name, self._count(table, name, left_after))

    def _count(self, table: CostTable, node: str, left_after: dict[FreePieces, FreePieces | None]) -> Cost | None:
        state, request = self._state(node), table.request
        if state is None:
            return None
        if request is None:
            return self._cost(table, state, AS_PREFERRED, state.free)
        if request.node_labels and not selected(self._ledger.node(node), request):
            return None
        if not table.takes_one_piece or state.room.model is None:
            placement = place(self._ledger, request, node) if table.fits(state.room) else None
            return self._cost_of(table, state, placement) if isinstance(placement, Placement) else None
        free = state.free
        if free in left_after:
            left = left_after[free]
        else:
            after = _after_one(free.pieces[0], request)
            left = left_after[free] = None if after is None else self._fragmentation.free(after)
        return None if left is None else self._cost(table, state, AS_PREFERRED, left)

    def _count_kept(self, table: CostTable, node: str, pod: str) -> NodeCost | None:
        """Of a node where GPUs are kept for the pod."""
        state, request = self._state(node), table.request
        placement = place(self._ledger, request, node, pod) if request is not None else None
        if state is None or not isinstance(placement, Placement):
            return None
        kept = self._ledger.kept_for(pod)
        not_kept = sum(gpu.uuid not in kept for gpu in placement.gpus)
        return NodeCost(not_kept, self._cost_of(table, state, placement), node)

    def _cost_of(self, table: CostTable, state: _State, placement: Placement) -> Cost:
        left = self._fragmentation.free(_after(state.room, placement))
        return self._cost(table, state, apart(placement.gpus, placement.request), left)

    def _cost(self, table: CostTable, state: _State, apart: Apart, left: FreePieces) -> Cost:
        machine, needed = state.machine, table.machine
        cpu, memory = machine.cpu_milli - needed.cpu_milli, machine.memory_mib - needed.memory_mib
        change = self._fragmentation.loss(left, cpu if cpu > 0 else 0, memory if memory > 0 else 0) - state.loss
        cost = Cost(cpu < 0 or memory < 0, apart, round(change / GRAIN) * GRAIN, left.gpus)
        if len(self._shared) >= SHARED_COSTS:
            self._shared.clear()
        return self._shared.setdefault(cost, cost)


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
