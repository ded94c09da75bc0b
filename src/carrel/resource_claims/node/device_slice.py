"""The ResourceSlice of a node: which of its GPUs claims may have, and how much of each.

    memory can be divided     on Kubernetes 1.36 and newer: a claim takes as much as it names, at least 1 MiB, and the
                              whole GPU if it names nothing
    else                      each GPU is had whole: an API server that does not divide drops these fields

A GPU that no pod may have gets a taint, so that schedulers leave it alone; where the API server drops taints, it is
left out. A GPU without a UUID is left out: nobody could say which one a claim got. So is everything where the container
runtime ignores what claims ask of it: there a container would run without its GPU, or see all of them.

Only the agent writes it, and it looks in every round: the kubelet deletes the slices of its node when it starts, and
when the plugin has been away for half a minute.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel.dialects.carrel import UNUSABLE
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.cluster import AlreadyExists, Cluster, Conflict, NotFound
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.ledger.gpus import Gpu, MiB
from carrel.node.interfaces import GpuDetails, MachineState
from carrel.resource_claims import dra
from carrel.resource_claims.objects import RESOURCE_SLICES, ResourceSlice

Json = dict[str, Any]

MOST_DEVICES = 64
"""Of a slice that has taints."""
LONGEST_ATTRIBUTE = 64
SEMANTIC_PARTS = 3
NO_DETAILS = GpuDetails()
ARCHITECTURES = (
    ((5, 0), "Maxwell"),
    ((6, 0), "Pascal"),
    ((7, 0), "Volta"),
    ((7, 5), "Turing"),
    ((8, 0), "Ampere"),
    ((8, 9), "Ada Lovelace"),
    ((9, 0), "Hopper"),
    ((10, 0), "Blackwell"),
)
"""By the compute capability from which on."""


@dataclass(frozen=True, slots=True)
class ServerAbility:
    """What this API server stores of a slice."""

    divides_memory: bool = True
    keeps_taints: bool = True


def devices_of(gpus: Sequence[Gpu], ability: ServerAbility, details: Mapping[GpuUuid, GpuDetails]) -> list[Json]:
    """In the order in which schedulers take them."""
    # A claim for any GPU would get a MIG slice, if it were in there: only NVIDIA's own driver advertises these.
    physical = [gpu for gpu in gpus if gpu.has_uuid and gpu.slice is None]
    known = [gpu for gpu in physical if ability.keeps_taints or not gpu.unusable]
    chosen = sorted(known, key=lambda gpu: gpu.index)[:MOST_DEVICES]
    return [_device(gpu, ability, details.get(gpu.uuid, NO_DETAILS)) for gpu in chosen]


def _device(gpu: Gpu, ability: ServerAbility, details: GpuDetails) -> Json:
    attributes: Json = {dra.UUID: {"string": gpu.uuid}, dra.INDEX: {"int": gpu.index}, **_as_nvidia(gpu, details)}
    if gpu.model:
        attributes[dra.MODEL] = {"string": gpu.model[:LONGEST_ATTRIBUTE]}
    if gpu.island:
        attributes[dra.ISLAND] = {"string": gpu.island[:LONGEST_ATTRIBUTE]}
    device: Json = {"name": dra.device_name(gpu.uuid), "attributes": attributes}
    memory: Json = {"value": written(gpu.memory)}
    as_nvidia = dict(memory)  # to choose by, and nothing of it can be taken
    if ability.divides_memory:
        device["allowMultipleAllocations"] = True
        limits = {"min": "1Mi", "step": "1Mi"}
        memory["requestPolicy"] = {"default": written(gpu.memory), "validRange": limits}
        as_nvidia["requestPolicy"] = {"default": "0", "validValues": ["0"]}
    device["capacity"] = {dra.MEMORY: memory, f"{dra.NVIDIA_DRIVER}/{dra.MEMORY}": as_nvidia}
    if gpu.unusable:
        device["taints"] = [{"key": UNUSABLE, "effect": "NoSchedule"}]
    return device


def _as_nvidia(gpu: Gpu, details: GpuDetails) -> Json:
    """What claims that were written for NVIDIA's own driver choose by, as that driver says it."""
    capability = details.compute_capability
    said: Json = {
        "type": {"string": "gpu"},
        "uuid": {"string": gpu.uuid},
        "productName": {"string": (details.product_name or gpu.model)[:LONGEST_ATTRIBUTE]},
        "architecture": {"string": _architecture(capability)},
        "pcieBusID": {"string": details.address},
        "cudaComputeCapability": {"version": f"{capability[0]}.{capability[1]}.0" if capability else ""},
        "driverVersion": {"version": _semantic(details.driver_version)},
        "cudaDriverVersion": {"version": _semantic(details.cuda_version)},
    }
    return {f"{dra.NVIDIA_DRIVER}/{name}": value for name, value in said.items() if any(value.values())}


def _architecture(capability: tuple[int, int] | None) -> str:
    """The name of the newest one that is not newer."""
    found = [name for since, name in ARCHITECTURES if capability is not None and since <= capability]
    return found[-1] if found else ""


def _semantic(version: str) -> str:
    """550.54.15 of itself, 470.57.2 of 470.57.02, 12.4.0 of 12.4: a version of three numbers. Empty: it is none."""
    parts = version.split(".")
    if not 1 <= len(parts) <= SEMANTIC_PARTS or not all(part.isdecimal() for part in parts):
        return ""
    return ".".join(str(int(part)) for part in (*parts, "0", "0")[:SEMANTIC_PARTS])


def written(memory: MiB) -> str:
    """Write an amount as the API server does: 16384Mi is 16Gi."""
    amount, units = int(memory), ["Mi", "Gi", "Ti"]
    while len(units) > 1 and amount % 1024 == 0:
        amount, units = amount // 1024, units[1:]
    return f"{amount}{units[0]}"


def slice_of(node: NodeName, node_uid: str, devices: Sequence[Json], generation: int) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": dra.slice_name(node),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
        },
        "spec": {
            "driver": dra.DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def ability_of(sent: Sequence[Json], stored: Sequence[Json], before: ServerAbility) -> ServerAbility:
    """What the API server has kept of the devices that were sent."""
    divides = all("allowMultipleAllocations" in there for there in stored) if stored else True
    wanted = [each for each in sent if "taints" in each]
    tainted = {each["name"] for each in stored if each.get("taints")}
    return ServerAbility(
        before.divides_memory and divides,
        before.keeps_taints and all(each["name"] in tainted for each in wanted),
    )


def same_devices(wanted: Sequence[Json], stored: Sequence[Json]) -> bool:
    """Apart from what the API server adds."""
    return list(map(_without_times, wanted)) == list(map(_without_times, stored))


def _without_times(device: Json) -> Json:
    if "taints" not in device:
        return device
    taints = [{key: value for key, value in each.items() if key != "timeAdded"} for each in device["taints"]]
    return {**device, "taints": taints}


ATTEMPTS = 4


class SlicePublisher:
    def __init__(self, cluster: Cluster, node: NodeName) -> None:
        self._cluster = cluster
        self._node = node
        self._ability = ServerAbility()
        self._published: tuple[str, list[Json]] | None = None  # the version that was written, and its devices

    @property
    def divides_memory(self) -> bool:
        return self._ability.divides_memory

    async def publish(self, state: MachineState, node: NodeObject, seen: ResourceSlice | None) -> None:
        """`seen`: as the cache has it. Raises `ClusterError`."""
        for _ in range(ATTEMPTS):
            devices = devices_of(state.gpus, self._ability, state.details)
            if seen is not None and self._published == (seen.metadata.resource_version, devices):
                return
            try:
                stored = await self._written(devices, node.metadata.uid)
            except (AlreadyExists, Conflict, NotFound):
                seen = None  # the kubelet, or another agent that is still ending, has just changed it
                continue
            kept = stored["spec"].get("devices") or []
            ability = ability_of(devices, kept, self._ability)
            if ability == self._ability:
                self._published = stored["metadata"]["resourceVersion"], devices
                return
            self._ability = ability

    async def _written(self, devices: list[Json], node_uid: str) -> Json:
        try:
            there = await self._cluster.get(RESOURCE_SLICES, dra.slice_name(self._node))
        except NotFound:
            return await self._cluster.create(RESOURCE_SLICES, slice_of(self._node, node_uid, devices, 1))
        if same_devices(devices, there["spec"].get("devices") or []):
            return there
        body = slice_of(self._node, node_uid, devices, int(there["spec"]["pool"]["generation"]) + 1)
        body["metadata"] |= {"resourceVersion": there["metadata"]["resourceVersion"]}
        return await self._cluster.update(RESOURCE_SLICES, body)

    async def withdraw(self, seen: ResourceSlice | None) -> None:
        """Raises `ClusterError`."""
        self._published = None
        if seen is None:
            return
        with contextlib.suppress(NotFound):  # the kubelet was faster
            await self._cluster.delete(RESOURCE_SLICES, dra.slice_name(self._node))
