"""Removes from the Nodes what agents wrote there, when Carrel is uninstalled: `carrel withdraw`.

An agent that ends leaves its resources on the Node: it ends with every update and every reboot, and a restarted kubelet
must find what its running pods hold. So an admin runs this once the agents are deleted. Resources are removed, not
set to zero: a kubelet ends running pods that hold more than the Node has, and ignores resources that it does not have.
"""

import asyncio
import contextlib
from collections.abc import Iterable

import typer

from carrel.command_errors import CONFLICT, UNAVAILABLE, command_failed
from carrel.dialects.gpuclaim import MEMORY_RESOURCE
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.gpushare import GPU_COUNT, GPU_MEM
from carrel.ids import NodeName
from carrel.kubernetes.cluster import EVERYTHING, Cluster, ClusterError, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.objects.resources import NODES
from carrel.node.memory_mode_decision import MemoryMode
from carrel.process import connect
from carrel.settings import ContextSettings

WAIT_S = 15.0
"""A running agent writes everything again within ten seconds."""
POLL_S = 0.5


class Withdrawal:
    def __init__(self, cluster: Cluster, wait_s: float = WAIT_S) -> None:
        self._cluster = cluster
        self._wait_s = wait_s

    async def withdraw(self) -> list[str]:
        """The nodes whose resources were removed. Raises `ClusterError`, and `AgentsStillRunning`."""
        removed = await self.written()
        for name, resources in removed.items():
            gone: dict[str, None] = dict.fromkeys(resources)
            patch = MergePatch({"status": {"capacity": gone, "allocatable": gone}})
            await self._cluster.patch(NODES, name, patch, subresource="status")
        loop = asyncio.get_running_loop()
        until = loop.time() + (self._wait_s if removed else 0.0)
        while loop.time() < until:
            await asyncio.sleep(POLL_S)
            back = [
                node.metadata.name
                for node in await self._nodes()
                if _shown(node) & set(removed.get(node.metadata.name, ()))
            ]
            if back:
                raise AgentsStillRunning(back)
        return sorted(removed)

    async def written(self) -> dict[str, list[str]]:
        """What agents wrote, by node. Raises `ClusterError`."""
        found = {node.metadata.name: await self._written(node) for node in await self._nodes()}
        return {name: resources for name, resources in found.items() if resources}

    async def _nodes(self) -> Iterable[NodeObject]:
        return (await self._cluster.list(NODES, EVERYTHING)).items

    async def _written(self, node: NodeObject) -> list[str]:
        """What our agent wrote there. Where a plugin advertises the memory, the kubelet wrote that number."""
        shown = _shown(node)
        if not shown:
            return []
        try:
            report = await self._cluster.get(GPU_NODE_STATUSES, node.metadata.name)
        except NotFound:
            return []  # not written by our agent
        is_ours = (report.get("status") or {}).get(MEMORY_RESOURCE) == MemoryMode.NODE.value
        return sorted(shown if is_ours else shown - {GPU_MEM})


class AgentsStillRunning(Exception):
    """Agents of these nodes still run, and have written again what was removed."""

    def __init__(self, nodes: Iterable[NodeName]) -> None:
        self.nodes = sorted(nodes)
        super().__init__(", ".join(self.nodes))


def _shown(node: NodeObject) -> set[str]:
    return {GPU_COUNT, GPU_MEM} & {*node.status.capacity, *node.status.allocatable}


def withdraw_all(settings: ContextSettings) -> None:
    client = connect(settings)

    async def withdraw() -> list[str]:
        async with contextlib.aclosing(client):
            return await Withdrawal(client).withdraw()

    try:
        nodes = asyncio.run(withdraw())
    except AgentsStillRunning as still:
        why = f"agents of these nodes still run, and have written again what was removed: {still}"
        raise command_failed(
            "Not withdrawn", why, "delete the agents' DaemonSet, then: carrel withdraw", CONFLICT
        ) from None
    except ClusterError as error:
        raise command_failed(
            "Not withdrawn", str(error), "kubectl auth can-i patch nodes/status", UNAVAILABLE
        ) from None
    typer.echo(f"Withdrawn from {', '.join(nodes)}." if nodes else "No Node has anything that an agent wrote.")
