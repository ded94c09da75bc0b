"""Simulates the kubelets of any number of nodes: writes the Nodes and their GPUs, reports bound pods as running, with
an address of their own, and finishes deletions. No container runs, and nothing listens at the addresses.

It remembers only what it wrote when, so it may be restarted at any time: then it writes all nodes again. Tests run it
on the embedded API and on a real API server; there the Lease of each node tells the node lifecycle controller that the
node is alive. The Lease belongs to its Node, so where it is gone, the Node is written again. In the demo each node also
has an agent (`demo.nodes`), which reports the GPUs.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS
from carrel.kubernetes.reflector import Reflector
from carrel.ledger.gpus import Node
from carrel.parsing.time import micro_seconds, seconds

log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
LEASES_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
STATUS_EVERY = timedelta(minutes=5)
"""Kubelets do so where nothing changes. The Lease says that the node is alive."""
REPORT_EVERY = timedelta(seconds=30)
"""A GpuNodeStatus is written several times before an agent counts as silent."""
AT_ONCE = 20
"""Concurrent calls: enough for thousands of nodes without overloading the API server."""
MANAGER = "carrel-simulation"
NOT_ADMITTED = "UnexpectedAdmissionError"
"""A real kubelet's word for a pod that no device plugin has devices for."""


@dataclass(frozen=True, slots=True)
class _WrittenNode:
    uid: str
    at: datetime


class SimulatedKubelets:
    def __init__(
        self, cluster: Cluster, nodes: Sequence[Node], pods: Reflector[Pod], now: Callable[[], datetime]
    ) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in nodes}
        self._now = now
        self._ready_since = now()
        self._written: dict[str, _WrittenNode] = {}
        self._reported_at: dict[str, datetime] = {}
        self._changed: asyncio.Queue[Pod] = asyncio.Queue()
        pods.on_change(self._on_change)

    def _on_change(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name in self._nodes:
            self._changed.put_nowait(new)

    async def run(self) -> None:
        """Runs until it is cancelled. It begins with a heartbeat."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeats())
            for _ in range(AT_ONCE):
                tasks.create_task(self._run_pods())

    # --- nodes -------------------------------------------------------------------------------------------------------

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
            written = await self._write_node(node)
        try:
            await self._cluster.patch(LEASES, node.name, MergePatch(_lease(node, written.uid, now)), LEASES_NAMESPACE)
        except NotFound:
            if not is_due:  # the Lease is deleted with its Node, so the Node may be gone too
                written = await self._write_node(node)
            lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, **_lease(node, written.uid, now)}
            with contextlib.suppress(AlreadyExists):
                await self._cluster.create(LEASES, lease, LEASES_NAMESPACE)
        reported_at = self._reported_at.get(node.name)
        if is_due or reported_at is None or now - reported_at >= REPORT_EVERY:
            await self.report_gpus(node)

    async def _write_node(self, node: Node) -> _WrittenNode:
        now = self._now()
        labels = _labels(node)
        body = {"apiVersion": "v1", "kind": NODES.kind, "metadata": {"name": node.name, "labels": labels}}
        try:
            await self._cluster.create(NODES, body)
        except AlreadyExists:
            # After a restart the GPUs may all be of another model, or no longer of one.
            changed = MergePatch({"metadata": {"labels": {nvidia.PRODUCT: None, **labels}}})
            await self._cluster.patch(NODES, node.name, changed)
        status = MergePatch(
            {"status": _node_status(node, self.resources(node), seconds(self._ready_since), seconds(now))}
        )
        answer = await self._cluster.patch(NODES, node.name, status, subresource="status")
        written = self._written[node.name] = _WrittenNode(answer["metadata"]["uid"], now)
        return written

    def resources(self, node: Node) -> dict[str, str]:
        """Return what the Node advertises of GPUs: as kubelet, device plugin and agent write it together."""
        healthy = [gpu for gpu in node.gpus if not gpu.unusable]
        memory = str(sum(gpu.memory for gpu in healthy))
        return {nvidia.GPU: str(len(healthy)), gpushare.GPU_COUNT: str(len(healthy)), gpushare.GPU_MEM: memory}

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


def _labels(node: Node) -> dict[str, str]:
    """The product label as NVIDIA's feature discovery writes it, on a node whose GPUs are all of one model."""
    models = {gpu.model for gpu in node.gpus}
    product = {nvidia.PRODUCT: models.pop()} if len(models) == 1 else {}
    system = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {"kubernetes.io/hostname": node.name, **system, **product, **node.labels}


def _lease(node: Node, uid: str, now: datetime) -> dict[str, Any]:
    owner = {"apiVersion": "v1", "kind": NODES.kind, "name": node.name, "uid": uid}
    spec = {"holderIdentity": node.name, "renewTime": micro_seconds(now), "leaseDurationSeconds": LEASE_DURATION_S}
    return {"metadata": {"name": node.name, "ownerReferences": [owner]}, "spec": spec}


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
