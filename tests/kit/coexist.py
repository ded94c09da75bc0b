"""A node where the kubelet chooses the GPUs, as a real one does; but the test says which GPU it chooses.

The class acts as the kubelet, NVIDIA's plugin and the program in the reservation pod at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.mig import resource_of
from carrel.ids import GpuUuid, HolderId
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import EVERYTHING, Conflict, DeleteOptions, MergePatch, NotFound, Selection
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import NAMESPACES, NODES, PODS
from carrel.ledger.gpus import Node
from tests.kit.gpus import a_node
from tests.kit.lab import Lab

RESERVATIONS = "kai-resource-reservation"
OLD_RESERVATIONS = "runai-reservation"
Choose = Callable[[Sequence[str]], str]


def first(free: Sequence[str]) -> str:
    return free[0]


def last(free: Sequence[str]) -> str:
    return free[-1]


def coexisting(name: str, gpus: int = 2, memory: int = 16276) -> Node:
    return replace(a_node(name, gpus, memory), kubelet_chooses=True)


class Kubelet:
    def __init__(self, lab: Lab, node: Node, choose: Choose = first) -> None:
        self._client: Client = lab.client
        self.node = node
        self.choose = choose
        self.given: dict[HolderId, list[GpuUuid]] = {}
        """uid → UUIDs of the GPUs of the pods that it runs."""
        self.is_away = False
        self.is_silent = False
        """The program in a reservation pod does not find its GPU."""
        self.unhealthy: set[str] = set()
        """GPUs that NVIDIA's plugin calls unhealthy, and that the kubelet gives to nobody; Carrel's view may differ."""
        self.refused = 0
        """How many pods it had no GPU for."""

    @property
    def free(self) -> list[str]:
        return self.free_of("nvidia.com/gpu")

    def free_of(self, resource: str) -> list[str]:
        taken = {gpu for gpus in self.given.values() for gpu in gpus} | self.unhealthy
        return [gpu.uuid for gpu in self.node.gpus if gpu.uuid not in taken and resource_of(gpu) == resource]

    async def work(self) -> bool:
        """One round over its pods. Whether it changed something."""
        if self.is_away:
            return False
        pods = [
            pod for pod in (await self._client.list(PODS, EVERYTHING)).items if pod.spec.node_name == self.node.name
        ]
        living = {pod.metadata.uid for pod in pods if pod.status.phase not in ("Failed", "Succeeded")}
        self.given = {uid: gpus for uid, gpus in self.given.items() if uid in living}
        did = False
        for pod in sorted(pods, key=lambda pod: int(pod.metadata.resource_version)):
            try:
                did |= await self._sync_pod(pod)
            except (NotFound, Conflict):
                did = True
        return did

    async def _sync_pod(self, pod: Pod) -> bool:
        metadata = pod.metadata
        if metadata.deletion_timestamp:
            how = DeleteOptions(uid=metadata.uid, grace_seconds=0)
            await self._client.delete(PODS, metadata.name, metadata.namespace, how=how)
            self.given.pop(metadata.uid, None)
            return True
        if pod.status.phase not in ("", "Pending"):
            return False
        asks = {word: int(text) for each in pod.spec.containers for word, text in each.resources.limits.items()}
        resource = next((word for word in asks if word.startswith("nvidia.com/")), "nvidia.com/gpu")
        asked, free = asks.get(resource, 0), self.free_of(resource)
        if asked > len(free):
            self.refused += 1
            why = f"Allocate failed due to requested number of devices unavailable: {asked} > {len(free)}"
            status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": why}
            await self._patch(pod, {"status": status}, "status")
            return True
        gpus = self.given.setdefault(metadata.uid, [])
        while len(gpus) < asked:
            gpus.append(GpuUuid(self.choose(self.free_of(resource))))
        await self._patch(pod, {"status": {"phase": "Running"}}, "status")
        if metadata.namespace in (RESERVATIONS, OLD_RESERVATIONS) and not self.is_silent:
            await self._patch(pod, {"metadata": {"annotations": {"run.ai/reserve_for_gpu_index": gpus[0]}}})
        return True

    async def _patch(self, pod: Pod, document: dict[str, Any], subresource: str = "") -> None:
        metadata = {"uid": pod.metadata.uid, **document.get("metadata", {})}
        patch = MergePatch({**document, "metadata": metadata})
        await self._client.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace, subresource=subresource)

    async def advertise(self) -> None:
        """What it has to give, as it writes it on its Node."""
        amounts = {
            "capacity": {"nvidia.com/gpu": str(len(self.node.gpus))},
            "allocatable": {"nvidia.com/gpu": str(len(self.node.gpus) - len(self.unhealthy))},
        }
        await self._client.patch(NODES, self.node.name, MergePatch({"status": amounts}), subresource="status")

    async def report_health(self, broken: str) -> None:
        """As the agent reports it: one GPU is unhealthy, or none."""
        status = await self._client.get(GPU_NODE_STATUSES, self.node.name)
        for device in status["status"]["devices"]:
            is_broken = device["uuid"] == broken
            device["health"] = "Unhealthy" if is_broken else "Healthy"
            device["reason"] = "XID 79" if is_broken else ""
        patch = MergePatch({"status": {"devices": status["status"]["devices"]}})
        await self._client.patch(GPU_NODE_STATUSES, self.node.name, patch, subresource="status")

    async def report_users(self) -> None:
        """As the agent reports it from PodResources."""
        status = await self._client.get(GPU_NODE_STATUSES, self.node.name)
        for device in status["status"]["devices"]:
            device["inUseBy"] = [uid for uid, gpus in self.given.items() if device["uuid"] in gpus]
            if len(device["inUseBy"]) > 1:  # its comparison excludes it
                device |= {"health": "Unhealthy", "reason": f"the kubelet has given {device['uuid']} to two pods"}
        patch = MergePatch({"status": {"devices": status["status"]["devices"]}})
        await self._client.patch(GPU_NODE_STATUSES, self.node.name, patch, subresource="status")


async def create_reservation_namespace(lab: Lab, name: str = RESERVATIONS) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await lab.client.create(NAMESPACES, body)


async def reservation_pods(lab: Lab) -> list[Pod]:
    return list((await lab.client.list(PODS, Selection(RESERVATIONS))).items)
