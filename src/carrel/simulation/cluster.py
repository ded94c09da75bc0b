"""The state of one run: GPUs in a ledger, CPU and memory beside it, and which nodes have room for a pod."""

from collections.abc import Collection, Sequence
from itertools import compress

from carrel.ledger.ledger import Ledger
from carrel.ledger.machines import MachineRoom, Machines
from carrel.ledger.node_room import fit_test
from carrel.ledger.placement import Placement, selected
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
        self._changes: list[str] = []
        self.total_gpus = cluster.gpus
        self.held_gpus = 0.0

    def fitting(self, pod: SimulatedPod) -> Sequence[str]:
        """The nodes with room for the pod, by name."""
        return list(compress(self.names, self._fitting(pod).able))

    def has_room(self, pod: SimulatedPod) -> Sequence[int]:
        """For each node, in the order of `names`, whether it has room for the pod."""
        return self._fitting(pod).able

    @property
    def moment(self) -> int:
        """Counts the changes."""
        return len(self._changes)

    def changed_since(self, moment: int) -> Collection[str]:
        """The nodes where a pod was placed, or has left. Below zero: all nodes."""
        return set(self._changes[moment:]) if moment >= 0 else self.names

    def machine_fits(self, pod: SimulatedPod) -> Sequence[str]:
        """The nodes that have the CPU and memory: all that kube-scheduler itself looks at."""
        return list(compress(self.names, self._fitting(pod).machine))

    def with_gpus(self, pod: SimulatedPod) -> Sequence[str]:
        """The nodes that would have room, had their machines enough CPU and memory."""
        if pod.request is None:
            return self.names
        request, fits = pod.request, fit_test(pod.request)
        return [
            name for name in self.names if fits(self.ledger.rooms[name]) and selected(self.ledger.node(name), request)
        ]

    def _fitting(self, pod: SimulatedPod) -> "_Fitting":
        kind = (pod.request, pod.machine)
        known = self._rooms.get(kind)
        if known is None:
            known = self._rooms[kind] = _Fitting(self, pod)
        for name in self.changed_since(known.seen):
            known.look(name, self.positions[name])
        known.seen = self.moment
        return known

    def put(self, pod: SimulatedPod, node: str, placement: Placement | None) -> None:
        if placement is not None:
            shares = placement.shares(Holder(pod.name, "trace", pod.name))
            self.ledger.hold(*shares)
            self.held_gpus += _gpus(placement)
        self.machines.occupy(pod.name, node, pod.machine)
        self._changes.append(node)

    def leave(self, pod: SimulatedPod, node: str, placement: Placement | None) -> None:
        if placement is not None:
            self.ledger.forget(pod.name)
            self.held_gpus -= _gpus(placement)
        self.machines.vacate(pod.name)
        self._changes.append(node)

    @property
    def allocated(self) -> float:
        """Which part of all GPUs pods hold, in percent."""
        return 100 * self.held_gpus / self.total_gpus


def _gpus(placement: Placement) -> float:
    return sum(placement.request.amount.on(gpu.memory) / gpu.memory for gpu in placement.gpus)


class _Fitting:
    """Where pods of one kind fit; looked at again only where something has changed."""

    def __init__(self, cluster: ClusterInRun, pod: SimulatedPod) -> None:
        self._cluster = cluster
        self._needed = pod.machine
        self._request = pod.request
        self._fits = fit_test(pod.request) if pod.request is not None else None
        self.able = bytearray(len(cluster.names))
        self.machine = bytearray(len(cluster.names))
        self.seen = -1

    def look(self, node: str, position: int) -> None:
        free, needed, ledger = self._cluster.machines.free.get(node), self._needed, self._cluster.ledger
        enough = free is None or (free.cpu_milli >= needed.cpu_milli and free.memory_mib >= needed.memory_mib)
        self.machine[position] = enough
        if enough and self._fits is not None and self._request is not None:
            enough = self._fits(ledger.rooms[node]) and selected(ledger.node(node), self._request)
        self.able[position] = enough
