"""Simulated kubelets for tests on the embedded API and on a real API server.

Besides what the demo's do, they stay alive: the Lease of each node tells the node lifecycle controller that the node is
there, and belongs to its Node, so where it is gone, the Node is written again. And they report GPUs, as an agent does.
They remember only what they wrote when, so they may be restarted at any time: then all nodes are written again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from carrel.demo.kubelets import AT_ONCE, Kubelets, labels_of
from carrel.dialects import gpuclaim, gpushare, nvidia
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import AlreadyExists, Apply, Cluster, ClusterError, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import LEASES, NODES
from carrel.kubernetes.reflector import Reflector
from carrel.ledger.gpus import Node
from carrel.parsing.time import micro_seconds

log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
LEASES_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
STATUS_EVERY = timedelta(minutes=5)
"""Kubelets do so where nothing changes. The Lease says that the node is alive."""
REPORT_EVERY = timedelta(seconds=30)
"""A GpuNodeStatus is written several times before an agent counts as silent."""
MANAGER = "carrel-simulation"


@dataclass(frozen=True, slots=True)
class _WrittenNode:
    uid: str
    at: datetime


class SimulatedKubelets(Kubelets):
    def __init__(
        self, cluster: Cluster, nodes: Sequence[Node], pods: Reflector[Pod], now: Callable[[], datetime]
    ) -> None:
        super().__init__(cluster, nodes, pods, now)
        self._written: dict[str, _WrittenNode] = {}
        self._reported_at: dict[str, datetime] = {}

    async def run(self) -> None:
        """Runs until it is cancelled. It begins with a heartbeat."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeats())
            tasks.create_task(super().run())

    async def announce(self) -> None:
        """Writes the nodes and their GPUs as they are now. Every node is tried; raises the first `ClusterError`."""
        slots = asyncio.Semaphore(AT_ONCE)
        errors: list[ClusterError] = []

        async def announce(node: Node) -> None:
            async with slots:
                try:
                    await self._announce(node)
                except ClusterError as error:
                    errors.append(error)

        async with asyncio.TaskGroup() as tasks:
            for node in self._nodes.values():
                tasks.create_task(announce(node))
        if errors:
            raise errors[0]

    async def _heartbeats(self) -> None:
        while True:
            try:
                await self.announce()
            except ClusterError as error:
                log.warning("heartbeat_failed: %s", error)
            await asyncio.sleep(HEARTBEAT_S)

    async def _announce(self, node: Node) -> None:
        now, written = self._now(), self._written.get(node.name)
        is_due = written is None or now - written.at >= STATUS_EVERY
        if written is None or is_due:
            written = await self._write(node)
        try:
            await self._cluster.patch(LEASES, node.name, MergePatch(_lease(node, written.uid, now)), LEASES_NAMESPACE)
        except NotFound:
            if not is_due:  # the Lease is deleted with its Node, so the Node may be gone too
                written = await self._write(node)
            lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, **_lease(node, written.uid, now)}
            with contextlib.suppress(AlreadyExists):
                await self._cluster.create(LEASES, lease, LEASES_NAMESPACE)
        reported_at = self._reported_at.get(node.name)
        if is_due or reported_at is None or now - reported_at >= REPORT_EVERY:
            await self.report_gpus(node)

    async def write_node(self, node: Node) -> str:
        try:
            return await super().write_node(node)
        except AlreadyExists:
            # After a restart the GPUs may all be of another model, or no longer of one.
            changed = MergePatch({"metadata": {"labels": {nvidia.PRODUCT: None, **labels_of(node)}}})
            await self._cluster.patch(NODES, node.name, changed)
            return await self.write_status(node)

    async def _write(self, node: Node) -> _WrittenNode:
        written = self._written[node.name] = _WrittenNode(await self.write_node(node), self._now())
        return written

    def resources(self, node: Node) -> dict[str, str]:
        """Return what the Node advertises of GPUs: as kubelet, device plugin and agent write it together."""
        healthy = [gpu for gpu in node.gpus if not gpu.unusable]
        memory = str(sum(gpu.memory for gpu in healthy))
        return {**super().resources(node), gpushare.GPU_COUNT: str(len(healthy)), gpushare.GPU_MEM: memory}

    async def report_gpus(self, node: Node) -> None:
        """Write the GpuNodeStatus as an agent does, without the users of the GPUs."""
        now = self._now()
        report = gpuclaim.node_status(node, {}, now)
        try:
            await self._cluster.patch(GPU_NODE_STATUSES, node.name, Apply(report, MANAGER, force=True))
            # The call above leaves the status as it is where the kind has a status subresource.
            status = MergePatch({"status": report["status"]})
            await self._cluster.patch(GPU_NODE_STATUSES, node.name, status, subresource="status")
            self._reported_at[node.name] = now
        except NotFound:
            pass  # the kind, or its status subresource, is not defined in this cluster


def _lease(node: Node, uid: str, now: datetime) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": NODES.kind, "name": node.name, "uid": uid}
    spec = {"holderIdentity": node.name, "renewTime": micro_seconds(now), "leaseDurationSeconds": LEASE_DURATION_S}
    return {"metadata": {"name": node.name, "ownerReferences": [owner]}, "spec": spec}
