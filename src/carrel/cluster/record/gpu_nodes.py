"""Which node a GPU belongs to that several nodes report.

Each agent is believed about its own node only, but a UUID has no node in it: an agent that lies could make another
node's GPU vanish by reporting it too. So the first node that reports a GPU keeps it. The GPU of the others is set
aside, with the reason, under the name of its place. Among nodes that report the same GPU, in this order:

1. those that the cluster has as Nodes
2. those where a Lease records the GPU: this outlives the process
3. the one that has it already, as this process knows; not before everything was read, as that comes in any order
4. the one whose GpuNodeStatus is older, and then by name

A GPU that was moved to another machine is accepted there as soon as the old machine no longer reports it, or its Node
or its GpuNodeStatus is deleted. A node that is only silent keeps its GPUs: else who reports them meanwhile would.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from carrel.cluster.watches import Watches
from carrel.ids import NO_NODE, GpuUuid, NodeName
from carrel.ledger.gpus import Gpu, place_name


@dataclass(frozen=True, slots=True)
class _Report:
    uuids: frozenset[GpuUuid]
    created: str
    """When the GpuNodeStatus was created. The API server writes it, always in the same form."""


class GpuNodes:
    def __init__(self, watches: Watches, is_recorded_on: Callable[[GpuUuid, NodeName], bool]) -> None:
        """`is_recorded_on`: whether a Lease of that node gives somebody a part of that GPU."""
        self._watches = watches
        self._is_recorded_on = is_recorded_on
        self._reports: dict[NodeName, _Report] = {}  # by node
        self._claimants: dict[GpuUuid, set[NodeName]] = {}  # UUID → the nodes that report it
        self._owners: dict[GpuUuid, NodeName] = {}  # UUID → the node that has it

    def report(self, node: NodeName, uuids: Iterable[GpuUuid], created: str) -> set[NodeName]:
        """What the node reports now. Returns the other nodes that lose a GPU by it, or get one."""
        before, now = self._reports.get(node), _Report(frozenset(uuids), created)
        if before == now:
            return set()
        self._reports[node] = now
        reported_before = before.uuids if before is not None else frozenset()
        for uuid in reported_before - now.uuids:
            self._claimants[uuid].discard(node)
        for uuid in now.uuids - reported_before:
            self._claimants.setdefault(uuid, set()).add(node)
        return self._decide(reported_before | now.uuids) - {node}

    def forget(self, node: NodeName) -> set[NodeName]:
        """The node reports nothing any more. Returns the others that get a GPU by it."""
        changed = self.report(node, (), "")
        self._reports.pop(node, None)
        return changed

    def on_node(self, node: NodeName) -> set[NodeName]:
        """The Node has come or is gone. Returns the nodes that lose a GPU by it, or get one."""
        report = self._reports.get(node)
        return self._decide(uuid for uuid in report.uuids if len(self._claimants[uuid]) > 1) if report else set()

    def on_lease(self, uuid: GpuUuid) -> set[NodeName]:
        """Another Lease than before may record the GPU. Returns the nodes that lose it by it, or get it."""
        return self._decide([uuid]) if len(self._claimants.get(uuid, ())) > 1 else set()

    def as_own(self, gpu: Gpu) -> Gpu:
        """A GPU as its node reports it; set aside, under the name of its place, if it counts as another node's."""
        owner = self._owners[gpu.uuid]
        if owner == gpu.node:
            return gpu
        why = f"node {owner} reports the same GPU, {gpu.uuid}, and had it first"
        return replace(gpu, uuid=place_name(gpu.node, gpu.index), unusable=why)

    def _decide(self, uuids: Iterable[GpuUuid]) -> set[NodeName]:
        changed = set()
        for uuid in uuids:
            claimants, before = self._claimants[uuid], self._owners.pop(uuid, NO_NODE)
            if not claimants:
                del self._claimants[uuid]
                continue
            owner = self._first_of(claimants, uuid, before) if len(claimants) > 1 else next(iter(claimants))
            self._owners[uuid] = owner
            if owner != before:
                changed |= claimants
        return changed

    def _first_of(self, claimants: Iterable[NodeName], uuid: GpuUuid, before: NodeName) -> NodeName:
        keeps = before if self._watches.are_nodes_read else NO_NODE
        return min(claimants, key=lambda node: self._rank(node, uuid, keeps))

    def _rank(self, node: NodeName, uuid: GpuUuid, keeps: NodeName) -> tuple[bool, bool, bool, str, str]:
        is_there = self._watches.nodes.store.get(node) is not None
        return (not is_there, not self._is_recorded_on(uuid, node), node != keeps, self._reports[node].created, node)
