"""The ResourceSlice of a node: which of its GPUs claims may have, and how much of each.

    memory can be divided     on Kubernetes 1.36 and newer: a claim takes as much as it names, at least 1 MiB, and the
                              whole GPU if it names nothing
    else                      each GPU is had whole: an API server that does not divide drops these fields

A GPU that no pod may have gets a taint, so that schedulers leave it alone; where the API server drops taints, it is
left out. A GPU without a UUID is left out: nobody could say which one a claim got. So is everything where the container
runtime ignores what claims ask of it: there a container would run without its GPU, or see all of them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from carrel.dialects import dra
from carrel.ledger.gpus import Gpu, MiB

Json = dict[str, Any]

MOST_DEVICES = 64
"""Of a slice that has taints."""
LONGEST_ATTRIBUTE = 64
_VERSION = re.compile(r"([a-z0-9-]+)://v?([0-9]+)\.([0-9]+)")
_CONTAINERD = (1, 7)
"""Older ones drop what claims ask for, in silence."""


@dataclass(frozen=True, slots=True)
class ServerAbility:
    """What this API server stores of a slice."""

    divides_memory: bool = True
    keeps_taints: bool = True


def why_no_cdi(runtime_version: str) -> str:
    """Why the container runtime of a node cannot hand over the GPUs of claims; empty if it can, or may."""
    match = _VERSION.match(runtime_version)
    if match is None:
        return f"its container runtime says its version in a way that is not known: {runtime_version!r}"
    name, version = match.group(1), (int(match.group(2)), int(match.group(3)))
    if name == "containerd" and version < _CONTAINERD:
        return f"{runtime_version} ignores the devices of claims; containerd 1.7 with enable_cdi, or 2.0, is needed"
    return ""


def devices_of(gpus: Sequence[Gpu], ability: ServerAbility) -> list[Json]:
    """In the order in which schedulers take them."""
    known = [gpu for gpu in gpus if gpu.has_uuid and (ability.keeps_taints or not gpu.unusable)]
    return [_device(gpu, ability) for gpu in sorted(known, key=lambda gpu: gpu.index)[:MOST_DEVICES]]


def _device(gpu: Gpu, ability: ServerAbility) -> Json:
    attributes: Json = {dra.UUID: {"string": gpu.uuid}, dra.INDEX: {"int": gpu.index}}
    if gpu.model:
        attributes[dra.MODEL] = {"string": gpu.model[:LONGEST_ATTRIBUTE]}
    if gpu.island:
        attributes[dra.ISLAND] = {"string": gpu.island[:LONGEST_ATTRIBUTE]}
    device: Json = {"name": dra.device_name(gpu.index), "attributes": attributes}
    memory: Json = {"value": written(gpu.memory)}
    if ability.divides_memory:
        device["allowMultipleAllocations"] = True
        limits = {"min": "1Mi", "step": "1Mi"}
        memory["requestPolicy"] = {"default": written(gpu.memory), "validRange": limits}
    device["capacity"] = {dra.MEMORY: memory}
    if gpu.unusable:
        device["taints"] = [{"key": dra.UNUSABLE, "effect": "NoSchedule"}]
    return device


def written(memory: MiB) -> str:
    """As the API server writes it: 16384Mi is 16Gi."""
    amount, units = int(memory), ["Mi", "Gi", "Ti"]
    while len(units) > 1 and amount % 1024 == 0:
        amount, units = amount // 1024, units[1:]
    return f"{amount}{units[0]}"


def slice_of(node: str, node_uid: str, devices: Sequence[Json], generation: int) -> Json:
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
