"""How much CPU and memory is free on each node: kube-scheduler decides by it, and scoring needs to know it.

A GPU on a machine without free CPU is idle and of no use. Carrel refuses nothing because of CPU or memory, which are
kube-scheduler's to count; it only prefers nodes by them. A node of which nothing is known has enough of both.
"""

from typing import NamedTuple

from carrel.ids import NodeName, PodUid


class MachineRoom(NamedTuple):
    """An amount of CPU and of main memory: what is free on a node, or what a pod requests."""

    cpu_milli: int
    memory_mib: int


NOTHING = MachineRoom(0, 0)
ENOUGH = MachineRoom(1 << 60, 1 << 60)
"""Of a machine of which nothing is known."""


class Machines:
    """What is free on each node, by what it may give and by the pods there. `Ledger` does the same for GPUs."""

    def __init__(self) -> None:
        self.sizes: dict[NodeName, MachineRoom] = {}
        """All that pods may have, of the nodes of which it is known. Changed only here, as is what is free."""
        self.free: dict[NodeName, MachineRoom] = {}
        """Never below zero. What has not changed is the same object."""
        self._used: dict[NodeName, MachineRoom] = {}
        self._pods: dict[PodUid, tuple[NodeName, MachineRoom]] = {}  # uid → where it is, and what it requests

    def set_node(self, name: NodeName, size: MachineRoom) -> None:
        """`size` is all that pods may have of the node."""
        if self.sizes.get(name) != size:
            self.sizes[name] = size
            self._sum_up(name)

    def remove_node(self, name: NodeName) -> None:
        if self.sizes.pop(name, None) is not None:
            self._sum_up(name)

    def occupy(self, uid: PodUid, node: NodeName, room: MachineRoom) -> None:
        """The pod is bound to the node. May be told twice."""
        if self._pods.get(uid) == (node, room):
            return
        self.vacate(uid)
        self._pods[uid] = (node, room)
        self._use(node, room.cpu_milli, room.memory_mib)

    def has(self, uid: PodUid, node: NodeName) -> bool:
        """Whether the pod is known to be there."""
        known = self._pods.get(uid)
        return known is not None and known[0] == node

    def vacate(self, uid: PodUid) -> None:
        """The pod has finished or is gone. May be told twice."""
        if (left := self._pods.pop(uid, None)) is not None:
            node, room = left
            self._use(node, -room.cpu_milli, -room.memory_mib)

    def _use(self, node: NodeName, cpu_milli: int, memory_mib: int) -> None:
        before = self._used.get(node, NOTHING)
        now = MachineRoom(before.cpu_milli + cpu_milli, before.memory_mib + memory_mib)
        if now == NOTHING:
            self._used.pop(node, None)
        else:
            self._used[node] = now
        self._sum_up(node)

    def _sum_up(self, node: NodeName) -> None:
        size, used = self.sizes.get(node), self._used.get(node, NOTHING)
        if size is None:
            self.free.pop(node, None)
        else:
            free_cpu, free_memory = size.cpu_milli - used.cpu_milli, size.memory_mib - used.memory_mib
            self.free[node] = MachineRoom(max(free_cpu, 0), max(free_memory, 0))
