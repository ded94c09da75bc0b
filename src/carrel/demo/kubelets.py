"""Simulates the kubelets of any number of nodes: writes the Nodes, reports bound pods as running, with an address of
their own, and finishes deletions. No container runs, and nothing listens at the addresses.

In the demo each node also has an agent (`demo.nodes`), which reports the GPUs.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from carrel.dialects import mig, nvidia
from carrel.kubernetes.cluster import (
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

AT_ONCE = 20
"""Concurrent calls: enough for thousands of pods without overloading the API server."""
NOT_ADMITTED = "UnexpectedAdmissionError"
"""A real kubelet's word for a pod that no device plugin has devices for."""


class Kubelets:
    def __init__(
        self, cluster: Cluster, nodes: Sequence[Node], pods: Reflector[Pod], now: Callable[[], datetime]
    ) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in nodes}
        self._now = now
        self._ready_since = now()
        self._changed: asyncio.Queue[Pod] = asyncio.Queue()
        pods.on_change(self._on_change)

    def _on_change(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._nodes:
            self._changed.put_nowait(new)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._run_pods())

    # --- nodes -------------------------------------------------------------------------------------------------------

    async def announce(self) -> None:
        """Writes the nodes. Raises `ClusterError`."""
        for node in self._nodes.values():
            await self.write_node(node)

    async def write_node(self, node: Node) -> str:
        """Return the uid of the Node."""
        metadata = {"name": node.name, "labels": labels_of(node)}
        await self._cluster.create(NODES, {"apiVersion": "v1", "kind": NODES.kind, "metadata": metadata})
        return await self.write_status(node)

    async def write_status(self, node: Node) -> str:
        now, since = seconds(self._now()), seconds(self._ready_since)
        status = MergePatch({"status": _node_status(node, self.resources(node), since, now)})
        answer = await self._cluster.patch(NODES, node.name, status, subresource="status")
        return str(answer["metadata"]["uid"])

    def resources(self, node: Node) -> dict[str, str]:
        """Return what the device plugin tells the kubelet; the agent writes the rest on the Node."""
        counts = Counter(mig.resource_of(gpu) for gpu in node.gpus if not gpu.unusable)
        return {nvidia.GPU: str(counts.pop(nvidia.GPU, 0)), **{name: str(count) for name, count in counts.items()}}

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _run_pods(self) -> None:
        while True:
            pod = await self._changed.get()
            try:
                await self._run_pod(pod)
            except (NotFound, Conflict):
                pass  # it changed meanwhile; the watch reports how
            except ClusterError as error:
                log.warning("pod_status_not_written pod=%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)
                self._changed.put_nowait(pod)
                await asyncio.sleep(1.0)

    async def _run_pod(self, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp:
            await self.end_containers(pod)
            await self._remove(pod)
        elif pod.status.phase in ("", "Pending"):
            if why := await self.admit(pod):
                await self._report(pod, {"phase": "Failed", "reason": NOT_ADMITTED, "message": why})
                return
            await self.start_containers(pod)
            await self._report(pod, self.running_status(pod))

    async def admit(self, pod: Pod) -> str:
        """Return why the pod cannot run here; empty: it can. It may be asked several times about one pod."""
        return ""

    async def start_containers(self, pod: Pod) -> None:
        """Before the pod is reported as running. None runs here; tests start the program of a notebook."""

    async def end_containers(self, pod: Pod) -> None:
        """Before the pod is removed."""

    async def _report(self, pod: Pod, status: dict[str, Any]) -> None:
        metadata = pod.metadata
        patch = MergePatch({"metadata": {"uid": metadata.uid}, "status": status})
        await self._cluster.patch(PODS, metadata.name, patch, metadata.namespace, subresource="status")

    def running_status(self, pod: Pod) -> dict[str, Any]:
        return _running(pod, seconds(self._now()), pod_address(pod.metadata.uid))

    async def _remove(self, pod: Pod) -> None:
        how = DeleteOptions(uid=pod.metadata.uid, grace_seconds=0)
        await self._cluster.delete(PODS, pod.metadata.name, pod.metadata.namespace, how=how)


def pod_address(uid: str, network: int = 10) -> str:
    """Return the address of a pod: always the same one, also after a restart; nearly every pod has another."""
    return f"{network}." + ".".join(str(1 + byte % 254) for byte in hashlib.sha256(uid.encode()).digest()[:3])


def labels_of(node: Node) -> dict[str, str]:
    """The product label as NVIDIA's feature discovery writes it, on a node whose GPUs are all of one model."""
    models = {gpu.model for gpu in node.gpus}
    product = {nvidia.PRODUCT: models.pop()} if len(models) == 1 else {}
    system = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {"kubernetes.io/hostname": node.name, **system, **product, **node.labels}


def _node_status(node: Node, gpus: dict[str, str], since: str, now: str) -> dict[str, Any]:
    resources = {"cpu": "64", "memory": "512Gi", "pods": "110", **gpus}
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "No kubelet runs on this node."}
    times = {"lastHeartbeatTime": now, "lastTransitionTime": since}
    addresses = [{"type": "Hostname", "address": node.name}]
    return {"capacity": resources, "allocatable": resources, "conditions": [{**ready, **times}], "addresses": addresses}


def _running(pod: Pod, now: str, address: str) -> dict[str, Any]:
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    started = {"running": {"startedAt": now}}
    completed = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}}
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in conditions],
        "containerStatuses": [_container(each, started) for each in pod.spec.containers],
        "initContainerStatuses": [
            _container(each, started if each.restart_policy == "Always" else completed)
            for each in pod.spec.init_containers
        ],
    }


def _container(container: Container, state: dict[str, Any]) -> dict[str, Any]:
    identity = {"name": container.name, "image": "", "imageID": ""}
    return {**identity, "ready": True, "started": "running" in state, "restartCount": 0, "state": state}
