"""The allocation that Carrel itself writes into a ResourceClaim, as a scheduler would.

Every scheduler then only follows: it places the pod on the node that the allocation names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.ids import GpuUuid, NodeName
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.requests import Memory
from carrel.ledger.shares import Holder, Share
from carrel.resource_claims import dra
from carrel.resource_claims.dra import Json
from carrel.resource_claims.objects import Allocation, ResourceClaim
from carrel.resource_claims.shadows.shadow_words import AdvertisedDevice


@dataclass(frozen=True, slots=True)
class WantedGpu:
    """One GPU, or a part of one, that a claim asks for."""

    request: str
    """The name of the request, with that of the alternative."""
    memory: MiB | None
    """None: the whole GPU."""

    def on(self, gpu: Gpu) -> MiB | None:
        return None if self.memory is None or self.memory >= gpu.memory else self.memory


def wanted_gpus(claim: ResourceClaim, is_gpu: Callable[[str], bool], divides: bool) -> Sequence[WantedGpu]:
    """In the order of its requests. `divides`: whether claims can have parts of the devices; else they get whole ones.
    Raises `Malformed`."""
    found: list[WantedGpu] = []
    for request in claim.spec.devices.requests:
        for each in dra.gpus_wanted(request, is_gpu):
            amount = dra.amount_of(each, f"ResourceClaim {claim.metadata.name}")
            memory = amount.mib if isinstance(amount, Memory) and divides else None
            name = f"{request.name}/{each.name}" if request.first_available else request.name
            found += [WantedGpu(name, memory)] * max(1, each.count)
    return found


def given(wanted: Sequence[WantedGpu], gpus: Sequence[Gpu], held: Mapping[GpuUuid, Share]) -> list[Gpu] | None:
    """The GPUs of a claim, in the order in which it asks. `held`: what Leases say that it holds; if that is what it
    asks for, it gets that. None: there are too few, or it holds something else."""
    if not held:
        return list(gpus[: len(wanted)]) if len(gpus) >= len(wanted) else None
    there = [gpu for gpu in gpus if gpu.uuid in held]
    is_it = len(there) == len(held) == len(wanted)
    if not is_it or any(held[gpu.uuid].memory != each.on(gpu) for gpu, each in zip(there, wanted, strict=True)):
        return None
    return there


def write_allocation(
    claim: ResourceClaim,
    gpus: Sequence[tuple[WantedGpu, Gpu]],
    device_of: Mapping[GpuUuid, AdvertisedDevice],
    now: datetime,
) -> Json:
    """`gpus`: of one node. `device_of`: GPU → its device."""
    results = []
    for number, (wanted, gpu) in enumerate(gpus):
        device, share = device_of[gpu.uuid], f"{claim.metadata.uid} {device_of[gpu.uuid].place} {number}"
        memory = wanted.on(gpu) or gpu.memory if device.divides else None
        results.append(dra.write_result(wanted.request, device.place, memory, share))
    return dra.write_allocation(results, gpus[0][1].node, now)


def nodes_named(allocation: Allocation) -> frozenset[NodeName] | None:
    """Where the devices of an allocation can be used; empty: everywhere. None: it does not say that by names."""
    terms = allocation.node_selector.node_selector_terms if allocation.node_selector is not None else ()
    names: set[NodeName] = set()
    for term in terms:
        by_name = [each for each in term.match_fields if (each.key, each.operator) == ("metadata.name", "In")]
        if term.match_expressions or len(term.match_fields) != 1 or not by_name:
            return None
        names.update(map(NodeName, by_name[0].values))
    return frozenset(names)


def write_consumer(pod: Holder) -> Json:
    """For whom a claim is reserved."""
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}
