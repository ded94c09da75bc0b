"""Kubelets that only exist on paper: they announce nodes and cards, say of each pod that it runs, and let pods go.

They know nothing but what the API server tells them, so they may be started again at any time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from carrel.dialects import gpuclaim, gpushare, nvidia
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Apply,
    Cluster,
    ClusterError,
    Conflict,
    DeleteOptions,
    MergePatch,
    NotFound,
)
from carrel.kubernetes.objects.kinds import Container, Pod
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.kubernetes.reflector import Reflector
from carrel.ledger.gpus import Node
from carrel.parsing.time import seconds

log = logging.getLogger(__name__)

HEARTBEAT_S = 30.0
MANAGER = "carrel-simulation"


class Kubelets:
    def __init__(
        self, cluster: Cluster, nodes: Sequence[Node], pods: Reflector[Pod], now: Callable[[], datetime]
    ) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in nodes}
        self._now = now
        self._due: asyncio.Queue[Pod] = asyncio.Queue()
        pods.on_change(self._see)

    def _see(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._nodes:
            self._due.put_nowait(new)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._look_after_pods())

    async def announce(self) -> None:
        """Writes the nodes and their cards as they are now."""
        for node in self._nodes.values():
            await self._announce(node)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self.announce()
            except ClusterError as error:
                log.warning("heartbeat_failed: %s", error)

    async def _announce(self, node: Node) -> None:
        metadata = {"name": node.name, "labels": {"kubernetes.io/hostname": node.name, **_product(node), **node.labels}}
        with contextlib.suppress(AlreadyExists):
            await self._cluster.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        status = MergePatch({"status": self._node_status(node)})
        await self._cluster.patch(NODES, node.name, status, subresource="status")
        cards = gpuclaim.node_status(node, {}, self._now())
        whole = {key: cards[key] for key in ("apiVersion", "kind", "metadata", "spec")}
        await self._cluster.patch(GPU_NODE_STATUSES, node.name, Apply(whole, MANAGER, force=True))
        report = MergePatch({"status": cards["status"]})
        await self._cluster.patch(GPU_NODE_STATUSES, node.name, report, subresource="status")

    def _node_status(self, node: Node) -> dict[str, Any]:
        healthy = [gpu for gpu in node.gpus if not gpu.unusable]
        resources = {
            "cpu": "64",
            "memory": "512Gi",
            "pods": "110",
            nvidia.GPU: str(len(healthy)),
            gpushare.GPU_COUNT: str(len(healthy)),
            gpushare.GPU_MEM: str(sum(gpu.memory for gpu in healthy)),
        }
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": seconds(self._now())}
        return {"capacity": resources, "allocatable": resources, "conditions": [ready]}

    async def _look_after_pods(self) -> None:
        while True:
            pod = await self._due.get()
            try:
                await self._look_after(pod)
            except (NotFound, Conflict):
                pass  # it changed meanwhile; the watch will say how
            except ClusterError as error:
                log.warning("pod_not_looked_after pod=%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
                self._due.put_nowait(pod)
                await asyncio.sleep(1.0)

    async def _look_after(self, pod: Pod) -> None:
        metadata = pod.metadata
        if metadata.deletion_timestamp:
            how = DeleteOptions(uid=metadata.uid, grace_seconds=0)
            await self._cluster.delete(PODS, metadata.name, metadata.namespace, how=how)
        elif pod.status.phase in ("", "Pending"):
            patch = MergePatch({"metadata": {"uid": metadata.uid}, "status": _running(pod, seconds(self._now()))})
            await self._cluster.patch(PODS, metadata.name, patch, metadata.namespace, subresource="status")


def _running(pod: Pod, now: str) -> dict[str, Any]:
    conditions = ("Ready", "Initialized", "ContainersReady")
    started = {"running": {"startedAt": now}}
    done = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
        "containerStatuses": [_container(each, started) for each in pod.spec.containers],
        "initContainerStatuses": [
            _container(each, started if each.restart_policy == "Always" else done) for each in pod.spec.init_containers
        ],
    }


def _container(container: Container, state: dict[str, Any]) -> dict[str, Any]:
    identity = {"name": container.name, "image": "", "imageID": ""}
    return {**identity, "ready": True, "started": "running" in state, "restartCount": 0, "state": state}


def _product(node: Node) -> dict[str, str]:
    """As NVIDIA's feature discovery labels a node whose cards are alike."""
    models = {gpu.model for gpu in node.gpus}
    return {nvidia.PRODUCT: models.pop()} if len(models) == 1 else {}
