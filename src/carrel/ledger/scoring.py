"""Which of several nodes should take a pod: the one where the least becomes useless for what is usually asked.

What a placement costs is how much it raises the fragmentation of the node (`fragmentation`): free pieces of GPUs that
usual requests cannot use, and GPUs for which the machine has no CPU or memory left; and by how much more than others
its GPUs are wanted (`contention`). A pod without a GPU costs something as well: it takes the CPU. Ties go to the node
where the least is left over, then to the name.

Before all that counts what the pod itself prefers: a node where its GPUs are neighbours, in one NVLink island and with
the bandwidth that it asks for comes before one where they are not. A pod that spreads goes to the emptiest of those.

Costs are remembered for each kind of request, and counted again only on nodes where something has changed. What they
are when counted is a matter of small sums: one question is about thousands of nodes. When all nodes are counted, they
are also kept in order, and the best of many nodes is the first that is one of them.
"""

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from carrel.ledger.contention import GpuKind, contention, kinds_of
from carrel.ledger.demand import UNKNOWN_SUPPLY, Demand, GpuSupply, Mix
from carrel.ledger.fragmentation import Alike, Fragmentation, FreePieces, Pieces, pieces_of, pieces_on
from carrel.ledger.gpus import Node
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import ENOUGH, NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import NodeRoom, fit_test
from carrel.ledger.placement import Placement, place, selected
from carrel.ledger.requests import GpuPolicy, Request, TopologyMode

GRAIN = 0.01
"""Differences of less than a hundredth of a GPU are noise, and should not outweigh the tie-break."""
REMEMBERED = 64
"""Kinds of requests whose costs are kept. The one that was asked longest ago is dropped."""
REMEMBERED_REQUESTS = 10_000
COUNTED_BESIDES = 64
"""So many nodes that a question is not about are counted with it, until the costs of all are known."""
LOOKED_UP = 32
"""So many of the best nodes are looked up in a question. If it is about none of them, all its nodes are compared."""
OTHER_GPUS = 0.1
"""Which part of the GPUs must be others before it is worked out anew which of them are wanted most."""


class Cost(NamedTuple):
    """How bad it is to place a pod on a node; less is better."""

    apart: int
    """How far the GPUs are from what the request prefers: missing bandwidth, further islands, gaps between indices."""
    wasted: float
    """In GPUs: what becomes useless for usual requests, and what others need more, as a multiple of `GRAIN`."""
    left_over: float
    """In GPUs: what stays free on the node."""
    node: str

    @property
    def by_spreading(self) -> tuple[int, float, str]:
        """The order for pods that want the emptiest node."""
        return (self.apart, -self.left_over, self.node)


class _State(NamedTuple):
    """What a cost is counted from, of one node: true as long as both rooms are the same objects."""

    room: NodeRoom
    machine: MachineRoom
    free: FreePieces
    loss: float


class _CostTable:
    """The costs of one kind of pod; None: the node will not do. What is missing has to be counted."""

    __slots__ = ("costs", "ledger_moment", "machine", "machines_moment", "number", "order", "request", "uncounted")

    def __init__(self, request: Request | None, machine: MachineRoom, number: int) -> None:
        self.request = request
        self.machine = machine
        self.number = number
        """Of the request, if only the sizes of the free pieces decide which GPU it gets; else zero."""
        self.costs: dict[str, Cost | None] = {}
        self.order: list[Cost] | None = None
        """Of the nodes that will do, the best first; None: that was not needed yet."""
        self.uncounted: set[str] = set()
        """The nodes of the ledger whose costs are missing."""
        self.ledger_moment = -1
        self.machines_moment = -1

    def begin(self, nodes: Collection[str]) -> None:
        self.costs, self.order, self.uncounted = {}, None, set(nodes)

    def set(self, node: str, cost: Cost | None) -> None:
        self.costs[node] = cost
        self.uncounted.discard(node)
        if self.order is not None and cost is not None:
            insort(self.order, cost)

    def forget(self, node: str) -> None:
        """The node has changed, or is new."""
        cost = self.costs.pop(node, None)
        self.uncounted.add(node)
        if self.order is not None and cost is not None:
            del self.order[bisect_left(self.order, cost)]


class Ranking:
    """Orders nodes by cost. `demand` must be told what pods ask for."""

    def __init__(self, ledger: Ledger, machines: Machines | None = None, remembered: int = REMEMBERED) -> None:
        self._ledger = ledger
        self.machines = machines if machines is not None else Machines()
        self.demand = Demand(supply=self._supply)
        self._remembered = remembered
        self._mix: Mix | None = None
        self._gpus: Counter[GpuKind] = Counter()
        self._gpus_counted_at = 0  # the revision of the inventory
        self._fragmentation = Fragmentation(self.demand.mix)
        self._states: dict[str, _State] = {}
        self._tables: OrderedDict[tuple[Request | None, MachineRoom], _CostTable] = OrderedDict()
        self._numbers: dict[Request, int] = {}

    def costs(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> list[Cost]:
        """Of the nodes that will do, the best first. `pod` is the uid of who asks: GPUs may be kept for it. `machine`
        is what it asks for besides GPUs; without a request, that is all that it asks for."""
        return sorted(self._costs(request, nodes, pod, machine))

    def best(
        self, request: Request | None, nodes: Collection[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> Cost | None:
        """The first of them. Much faster if `nodes` is not a list or a tuple, and knows at once what is in it."""
        table = self._table(request, machine)
        own = self._where_gpus_are_kept(table, pod) if pod else {}
        if not own and request is not None and not isinstance(nodes, list | tuple) and self._is_counted(table):
            best = next((cost for cost in islice(table.order or (), LOOKED_UP) if cost.node in nodes), None)
            if best is not None or not table.order:
                return best
        return min(self._known(table, nodes, own), default=None)

    def _costs(self, request: Request | None, nodes: Collection[str], pod: str, machine: MachineRoom) -> list[Cost]:
        table = self._table(request, machine)
        return self._known(table, nodes, self._where_gpus_are_kept(table, pod) if pod else {})

    def _known(self, table: _CostTable, nodes: Collection[str], own: dict[str, Cost | None]) -> list[Cost]:
        """`own` goes before what everybody is told."""
        known = table.costs
        for name in nodes:
            if name not in known:
                table.set(name, self._count(table, name))
        if own:
            known = {name: own.get(name, known[name]) for name in nodes}
        return list(filter(None, map(known.__getitem__, nodes)))

    def _is_counted(self, table: _CostTable) -> bool:
        """Whether the costs of all nodes are known, and in order."""
        for name in tuple(islice(table.uncounted, COUNTED_BESIDES)):
            table.set(name, self._count(table, name))
        if table.uncounted:
            return False
        table.uncounted = set()  # a set that was large stays slow
        if table.order is None:
            table.order = sorted(filter(None, table.costs.values()))
        return True

    # --- what is remembered ------------------------------------------------------------------------------------------

    def _table(self, request: Request | None, machine: MachineRoom) -> _CostTable:
        self._follow_the_mix()
        if request is not None and request.gang is not None:
            request = replace(request, gang=None)
        table = self._tables.get((request, machine))
        if table is None:
            by_size = request is not None and _takes_one_piece(request)
            number = self._numbers.setdefault(request, len(self._numbers) + 1) if request and by_size else 0
            table = self._tables[request, machine] = _CostTable(request, machine, number)
            table.begin(self._ledger.rooms)
            if len(self._tables) > self._remembered:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end((request, machine))
        changed = self._ledger.changed_since(table.ledger_moment)
        if changed is None:  # nodes have gone
            table.begin(self._ledger.rooms)
        else:
            for name in changed:
                table.forget(name)
        for name in self.machines.changed_since(table.machines_moment):
            if name in self._ledger.rooms:  # of others the machine does not count
                table.forget(name)
        table.ledger_moment, table.machines_moment = self._ledger.moment, self.machines.moment
        return table

    def _follow_the_mix(self) -> None:
        others = self._are_other_gpus_there()
        if others:
            self.demand.supply_changed()
        if self._mix is not self.demand.mix or others or len(self._numbers) > REMEMBERED_REQUESTS:
            self._mix, self._gpus = self.demand.mix, self._gpus_there()
            self._fragmentation = Fragmentation(self._mix, contention(self._mix, self._gpus))
            self._states, self._tables, self._numbers = {}, OrderedDict(), {}

    def _are_other_gpus_there(self) -> bool:
        """To count them takes long with thousands of nodes, so it is done when so many could have changed."""
        if self._ledger.inventory_revision - self._gpus_counted_at <= OTHER_GPUS * len(self._ledger.rooms):
            return False
        self._gpus_counted_at, now = self._ledger.inventory_revision, self._gpus_there()
        others = (now - self._gpus).total() + (self._gpus - now).total()
        return others > OTHER_GPUS * self._gpus.total()

    def _usable_nodes(self) -> list[Node]:
        nodes = filter(None, map(self._ledger.node, self._ledger.rooms))
        return [node for node in nodes if not node.unusable]

    def _gpus_there(self) -> Counter[GpuKind]:
        return kinds_of(gpu for node in self._usable_nodes() for gpu in node.gpus)

    def _supply(self) -> GpuSupply:
        nodes, kinds = self._usable_nodes(), self._gpus_there()
        if not kinds:
            return UNKNOWN_SUPPLY
        mean = sum(memory * count for (_, memory), count in kinds.items()) / kinds.total()
        return GpuSupply(mean, max(len(node.gpus) for node in nodes))

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

    def _where_gpus_are_kept(self, table: _CostTable, pod: str) -> dict[str, Cost | None]:
        """On these few nodes the pod may have what nobody else may."""
        cards = map(self._ledger.card, self._ledger.kept_for(pod))
        return {name: self._count(table, name, pod) for name in {card.gpu.node for card in cards if card is not None}}

    # --- one node ----------------------------------------------------------------------------------------------------

    def _count(self, table: _CostTable, node: str, pod: str = "") -> Cost | None:
        state, request = self._state(node), table.request
        if state is None:
            # Only for a pod without a GPU; a machine without GPUs loses nothing.
            return Cost(0, 0.0, 0.0, node) if request is None else None
        apart, left = 0, state.free if request is None else None
        if request is not None:
            if request.node_labels and not selected(self._ledger.node(node), request):
                return None
            if table.number and state.room.model is not None and not pod:
                left = self._left_after(state.free, table)
            elif pod or fit_test(request)(state.room):
                placement = place(self._ledger, request, node, pod)
                if isinstance(placement, Placement):
                    apart, left = _apart(placement), self._fragmentation.free(_after(state.room, placement))
        if left is None:
            return None
        machine, needed = state.machine, table.machine
        cpu, memory = machine.cpu_milli - needed.cpu_milli, machine.memory_mib - needed.memory_mib
        change = self._fragmentation.loss(left, cpu if cpu > 0 else 0, memory if memory > 0 else 0) - state.loss
        return Cost(apart, round(change / GRAIN) * GRAIN, left.gpus, node)

    def _left_after(self, free: FreePieces, table: _CostTable) -> FreePieces | None:
        if table.number not in free.left_after:
            assert table.request is not None, "only requests have a number"
            after = _after_one(free.pieces[0], table.request)
            free.left_after[table.number] = None if after is None else self._fragmentation.free(after)
        return free.left_after[table.number]


def _takes_one_piece(request: Request) -> bool:
    """Whether only the sizes of the free pieces decide which GPU it gets."""
    return (
        request.cards == 1
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
    if request.policy in (GpuPolicy.SPREAD, GpuPolicy.EMPTIEST):
        taken = 0
    else:
        taken = next(place for place in range(len(free) - 1, -1, -1) if free[place] >= need)
    left = sorted((*free[:taken], *free[taken + 1 :], free[taken] - need), reverse=True)
    return ((model, memory, tuple(left)),)


def _after(room: NodeRoom, placement: Placement) -> Pieces:
    on, taken = placement.request.amount.on, placement.gpus
    return pieces_on((gpu.model, gpu.memory, free - (on(gpu.memory) if gpu in taken else 0)) for gpu, free in room.gpus)


def _apart(placement: Placement) -> int:
    request, gpus = placement.request, placement.gpus
    if request.cards == 1 or request.policy in (GpuPolicy.SPREAD, GpuPolicy.PREFER_IDS):
        return 0
    apart = 0
    if request.topology.mode is not TopologyMode.IGNORE:
        islands = {gpu.island or gpu.uuid for gpu in gpus}
        slow = sum(gpu.bandwidth_gbps < request.topology.min_bandwidth_gbps for gpu in gpus)
        apart += len(islands) - 1 + slow
    if request.policy is GpuPolicy.CONTIGUOUS:
        indices = sorted(gpu.index for gpu in gpus)
        apart += indices[-1] - indices[0] + 1 - len(indices)
    return apart
