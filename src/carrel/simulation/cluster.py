"""The state of one run: GPUs in a ledger, CPU and memory beside it, and which nodes have room for a pod."""

from collections.abc import Collection, Sequence
from itertools import compress

from carrel.ids import NodeName
from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import NOTHING, MachineRoom, Machines
from carrel.ledger.node_room import fit_test
from carrel.ledger.placement import Placement, place
from carrel.ledger.requests import Request
from carrel.ledger.shares import Holder
from carrel.simulation.workload import SimulatedCluster, SimulatedPod

Kind = tuple[Request | None, MachineRoom]
"""Pods of one kind fit on the same nodes."""


class ClusterInRun:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self.ledger = Ledger(cluster.nodes)
        self.machines = Machines()
        for name, size in cluster.machines.items():
            self.machines.set_node(name, size)
        self.names = tuple(sorted(node.name for node in cluster.nodes))
        self.sizes = cluster.machines
        self.positions = {name: position for position, name in enumerate(self.names)}
        self._rooms: dict[Kind, _Fitting] = {}
        self._empty_rooms = dict(self.ledger.rooms)
        self._exists: dict[Request, bool] = {}
        self._changes: list[NodeName] = []
        self.total_gpus = cluster.gpus
        self.held_gpus = 0.0

    def fitting(self, pod: SimulatedPod) -> Sequence[NodeName]:
        """The nodes with room for the pod, by name."""
        return list(compress(self.names, self._fitting((pod.request, pod.machine)).able))

    def has_room(self, pod: SimulatedPod) -> Sequence[int]:
        """For each node, in the order of `names`, whether it has room for the pod."""
        return self._fitting((pod.request, pod.machine)).able

    @property
    def moment(self) -> int:
        """Counts the changes."""
        return len(self._changes)

    def changed_since(self, moment: int) -> Collection[NodeName]:
        """The nodes where a pod was placed, or has left. Below zero: all nodes."""
        return set(self._changes[moment:]) if moment >= 0 else self.names

    def machine_fits(self, pod: SimulatedPod) -> Sequence[NodeName]:
        """The nodes that have the CPU and memory: all that kube-scheduler itself looks at."""
        return list(compress(self.names, self._fitting((pod.request, pod.machine)).machine))

    def machine_fits_with(self, pod: SimulatedPod, node: NodeName, given: MachineRoom) -> bool:
        """Whether the node has the CPU and memory, if so much more of them becomes free there."""
        free = self.machines.free.get(node)
        return free is None or (
            free.cpu_milli + given.cpu_milli >= pod.machine.cpu_milli
            and free.memory_mib + given.memory_mib >= pod.machine.memory_mib
        )

    def has_gpus(self, request: Request | None) -> Sequence[int]:
        """For each node, in the order of `names`, whether it would have room, had its machine enough CPU and memory."""
        return self._fitting((request, NOTHING)).able

    def has_such_gpus(self, request: Request) -> bool:
        """Whether a node would have room, had it no pods, and enough CPU and memory."""
        if request not in self._exists:
            fits, rooms, node = fit_test(request), self._empty_rooms.items(), self.ledger.node
            self._exists[request] = any(fits(room) and request.selects(node(name)) for name, room in rooms)
        return self._exists[request]

    def _fitting(self, kind: Kind) -> "_Fitting":
        known = self._rooms.get(kind)
        if known is None:
            known = self._rooms[kind] = _Fitting(self, kind)
        for name in self.changed_since(known.seen):
            known.look(name, self.positions[name])
        known.seen = self.moment
        return known

    def placed(self, request: Request | None, node: NodeName) -> Placement | None:
        """Return which GPUs a pod gets on a node that has room; None: it asks for none."""
        if request is None:
            return None
        placement = place(self.ledger, request, node)
        assert isinstance(placement, Placement), f"{node} has room, as its summary says"
        return placement

    def put(self, pod: SimulatedPod, node: NodeName, placement: Placement | None) -> None:
        if placement is not None:
            shares = placement.shares(Holder(pod.name, "trace", pod.name))
            self.ledger.hold(*shares)
            self.held_gpus += gpus_of(placement)
        self.machines.occupy(pod.name, node, pod.machine)
        self._changes.append(node)

    def leave(self, pod: SimulatedPod, node: NodeName, placement: Placement | None) -> None:
        if placement is not None:
            self.ledger.forget(pod.name)
            self.held_gpus -= gpus_of(placement)
        self.machines.vacate(pod.name)
        self._changes.append(node)

    @property
    def allocated(self) -> float:
        """Which part of all GPUs pods hold, in percent."""
        return 100 * self.held_gpus / self.total_gpus


def gpus_of(placement: Placement) -> float:
    """Return how many GPUs it takes; a part of one counts as that."""
    return sum(placement.request.amount.on(gpu.memory) / gpu.memory for gpu in placement.gpus)


class _Fitting:
    """Where pods of one kind fit; looked at again only where something has changed."""

    def __init__(self, cluster: ClusterInRun, kind: Kind) -> None:
        self._cluster = cluster
        self._request, self._needed = kind
        self._fits = fit_test(self._request) if self._request is not None else None
        self.able = bytearray(len(cluster.names))
        self.machine = bytearray(len(cluster.names))
        self.seen = -1

    def look(self, node: NodeName, position: int) -> None:
        free, needed, ledger = self._cluster.machines.free.get(node), self._needed, self._cluster.ledger
        enough = free is None or (free.cpu_milli >= needed.cpu_milli and free.memory_mib >= needed.memory_mib)
        self.machine[position] = enough
        if enough and self._fits is not None and self._request is not None:
            enough = self._fits(ledger.rooms[node]) and self._request.selects(ledger.node(node))
        self.able[position] = enough
