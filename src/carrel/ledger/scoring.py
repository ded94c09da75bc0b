"""Which of several nodes should take a pod: the one where the least becomes useless for what is usually asked.

What a placement costs is how much it raises the fragmentation of the node (`fragmentation`): free pieces of GPUs that
usual requests cannot use, and GPUs for which the machine has no CPU or memory left. A pod without a GPU costs something
as well: it takes the CPU. Ties go to the node where the least is left over, then to the name.

Before all that counts what the pod itself prefers: a node where its GPUs are neighbours, in one NVLink island and with
the bandwidth that it asks for comes before one where they are not. A pod that spreads goes to the emptiest of those.

Costs are remembered for each kind of request, and counted again only on nodes where something has changed. What they
are when counted is a matter of small sums: one question is about thousands of nodes.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from carrel.ledger.demand import Demand, Mix
from carrel.ledger.fragmentation import Fragmentation, Pieces, free_gpus, pieces_of
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import NodeRoom, fit_test
from carrel.ledger.placement import Placement, place, selected
from carrel.ledger.requests import GpuPolicy, Request, TopologyMode

GRAIN = 0.02
"""Differences of less than a fiftieth of a GPU are noise, and should not outweigh the tie-break."""
REMEMBERED = 64
"""Kinds of requests whose costs are kept. The one that was asked longest ago is dropped."""


class Cost(NamedTuple):
    """How bad it is to place a pod on a node; less is better."""

    apart: int
    """How far the GPUs are from what the request prefers: missing bandwidth, further islands, gaps between indices."""
    wasted: float
    """In GPUs: what becomes useless for usual requests, as a multiple of `GRAIN`."""
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
    machine: MachineRoom | None
    pieces: Pieces
    useless: float


class _Table:
    """The costs of one kind of request; None: the node will not do. What is missing has to be counted."""

    __slots__ = ("costs", "ledger_moment", "machines_moment")

    def __init__(self) -> None:
        self.costs: dict[str, Cost | None] = {}
        self.ledger_moment = -1
        self.machines_moment = -1


class Ranking:
    """Orders nodes by cost. `demand` must be told what pods ask for."""

    def __init__(self, ledger: Ledger, machines: Machines | None = None, remembered: int = REMEMBERED) -> None:
        self._ledger = ledger
        self.machines = machines if machines is not None else Machines()
        self.demand = Demand()
        self._remembered = remembered
        self._mix: Mix | None = None
        self._fragmentation = Fragmentation(self.demand.mix)
        self._states: dict[str, _State] = {}
        self._tables: OrderedDict[tuple[Request | None, MachineRoom], _Table] = OrderedDict()

    def costs(
        self, request: Request | None, nodes: Iterable[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> list[Cost]:
        """Of the nodes that will do, in their order. `pod` is the uid of who asks: GPUs may be kept for it. `machine` is
        what it asks for besides GPUs; without a request, that is all that it asks for."""
        known = self._table(request, machine).costs
        names = nodes if isinstance(nodes, list | tuple) else list(nodes)
        for name in names:
            if name not in known:
                known[name] = self._count(request, name, machine)
        own = self._where_gpus_are_kept(request, pod, machine) if request is not None and pod else {}
        if own:
            known = {name: own.get(name, known[name]) for name in names}
        return list(filter(None, map(known.__getitem__, names)))

    def best(
        self, request: Request | None, nodes: Iterable[str], pod: str = "", machine: MachineRoom = NOTHING
    ) -> Cost | None:
        return min(self.costs(request, nodes, pod, machine), default=None)

    def fragmentation(self) -> float:
        """How many of all free GPUs are of no use for usual requests, in GPUs."""
        self._follow_the_mix()
        states = map(self._state, self._ledger.nodes)
        return sum(state.useless for state in states if state is not None)

    # --- what is remembered ------------------------------------------------------------------------------------------

    def _table(self, request: Request | None, machine: MachineRoom) -> _Table:
        self._follow_the_mix()
        alike = request if request is None or request.gang is None else replace(request, gang=None)
        table = self._tables.get((alike, machine))
        if table is None:
            table = self._tables[alike, machine] = _Table()
            if len(self._tables) > self._remembered:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end((alike, machine))
        changed = self._ledger.changed_since(table.ledger_moment)
        if changed is None:  # nodes have gone
            table.costs = {}
        else:
            for name in changed:
                table.costs.pop(name, None)
        for name in self.machines.changed_since(table.machines_moment):
            table.costs.pop(name, None)
        table.ledger_moment, table.machines_moment = self._ledger.moment, self.machines.moment
        return table

    def _follow_the_mix(self) -> None:
        if self._mix is not self.demand.mix:
            self._mix = self.demand.mix
            self._fragmentation = Fragmentation(self._mix)
            self._states, self._tables = {}, OrderedDict()

    def _state(self, node: str) -> _State | None:
        room, machine = self._ledger.rooms.get(node), self.machines.free.get(node)
        if room is None:
            return None
        known = self._states.get(node)
        if known is not None and known.room is room and known.machine == machine:
            return known
        pieces = pieces_of(room)
        state = self._states[node] = _State(room, machine, pieces, self._fragmentation.cost(pieces, machine))
        return state

    def _where_gpus_are_kept(self, request: Request, pod: str, machine: MachineRoom) -> dict[str, Cost | None]:
        """On these few nodes the pod may have what nobody else may."""
        cards = map(self._ledger.card, self._ledger.kept_for(pod))
        there = {card.gpu.node for card in cards if card is not None}
        return {name: self._count(request, name, machine, pod) for name in there}

    # --- one node ----------------------------------------------------------------------------------------------------

    def _count(self, request: Request | None, node: str, needed: MachineRoom, pod: str = "") -> Cost | None:
        state = self._state(node)
        if request is None:
            # A machine without GPUs loses nothing.
            return Cost(0, 0.0, 0.0, node) if state is None else self._cost(node, state, state.pieces, needed, 0)
        if state is None:
            return None
        if request.node_labels and not selected(self._ledger.node(node), request):
            return None
        if state.room.model is not None and not pod and _takes_one_piece(request):
            after = _after_one(state.pieces[0], request)
            return None if after is None else self._cost(node, state, after, needed, 0)
        if not pod and not fit_test(request)(state.room):
            return None
        placement = place(self._ledger, request, node, pod)
        if not isinstance(placement, Placement):
            return None
        return self._cost(node, state, _after(state.room, placement), needed, _apart(placement))

    def _cost(self, node: str, before: _State, after: Pieces, needed: MachineRoom, apart: int) -> Cost:
        machine = before.machine
        if machine is not None:
            cpu, memory = machine.cpu_milli - needed.cpu_milli, machine.memory_mib - needed.memory_mib
            machine = MachineRoom(max(cpu, 0), max(memory, 0))
        change = self._fragmentation.cost(after, machine) - before.useless
        return Cost(apart, round(change / GRAIN) * GRAIN, free_gpus(after), node)


def _takes_one_piece(request: Request) -> bool:
    """Whether only the sizes of the free pieces decide which GPU it gets."""
    return (
        request.cards == 1
        and request.policy is not GpuPolicy.PREFER_IDS
        and not request.selector.names_uuids
        and not request.topology.min_bandwidth_gbps
    )


def _after_one(alike: tuple[str, int, tuple[int, ...]], request: Request) -> Pieces | None:
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
    on = placement.request.amount.on
    left: dict[tuple[str, int], list[int]] = {}
    for gpu, free in room.gpus:
        taken = on(gpu.memory) if gpu in placement.gpus else 0
        left.setdefault((gpu.model, gpu.memory), []).append(free - taken)
    return tuple((*kind, tuple(sorted(free, reverse=True))) for kind, free in sorted(left.items()))


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
