"""Takes off the Nodes what agents wrote there, when Carrel is uninstalled.

An agent that ends leaves it there: it ends with every update and every reboot, and a pod that runs must find what it
holds when its kubelet starts again. So this is asked for by name, once the agents are gone. Resources are removed, not
made zero: a kubelet ends running pods that hold more than there is, and lets be what its Node does not know.
"""

import asyncio
from collections.abc import Iterable

from carrel.dialects.gpuclaim import MEMORY_RESOURCE
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.gpushare import GPU_COUNT, GPU_MEM
from carrel.kubernetes.cluster import EVERYTHING, Cluster, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.objects.resources import NODES
from carrel.node.memory_offer import Way

QUIET_S = 15.0
"""An agent that still runs puts everything back with its next round, ten seconds later at most."""
LOOK_S = 0.5


class Withdrawal:
    def __init__(self, cluster: Cluster, quiet_s: float = QUIET_S) -> None:
        self._cluster = cluster
        self._quiet_s = quiet_s

    async def withdraw(self) -> list[str]:
        """The nodes whose resources were removed. Raises `ClusterError`, and `StillThere`."""
        theirs = {node.metadata.name: await self._written(node) for node in await self._nodes()}
        removed = {name: resources for name, resources in theirs.items() if resources}
        for name, resources in removed.items():
            gone: dict[str, None] = dict.fromkeys(resources)
            patch = MergePatch({"status": {"capacity": gone, "allocatable": gone}})
            await self._cluster.patch(NODES, name, patch, subresource="status")
        loop = asyncio.get_running_loop()
        until = loop.time() + (self._quiet_s if removed else 0.0)
        while loop.time() < until:
            await asyncio.sleep(LOOK_S)
            back = [
                node.metadata.name
                for node in await self._nodes()
                if _shown(node) & set(removed.get(node.metadata.name, ()))
            ]
            if back:
                raise StillThere(back)
        return sorted(removed)

    async def _nodes(self) -> Iterable[NodeObject]:
        return (await self._cluster.list(NODES, EVERYTHING)).items

    async def _written(self, node: NodeObject) -> list[str]:
        """What an agent of ours wrote there: of memory only where no plugin offers it, whose kubelet counts it."""
        shown = _shown(node)
        if not shown:
            return []
        try:
            report = await self._cluster.get(GPU_NODE_STATUSES, node.metadata.name)
        except NotFound:
            return []  # it is somebody else's
        is_ours = (report.get("status") or {}).get(MEMORY_RESOURCE) == Way.NODE.value
        return sorted(shown if is_ours else shown - {GPU_MEM})


class StillThere(Exception):
    """Agents of these nodes still run, and have put back what was removed."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self.nodes = sorted(nodes)
        super().__init__(", ".join(self.nodes))


def _shown(node: NodeObject) -> set[str]:
    return {GPU_COUNT, GPU_MEM} & {*node.status.capacity, *node.status.allocatable}
