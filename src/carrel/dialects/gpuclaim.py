"""The GpuClaim scheduler's words: whole GPUs by claim, and what each node has.

    pod annotation   gpu.scheduling/claim        the GpuClaim in the pod's namespace
    resources.limits nvidia.com/gpu              may be said as well, with the count of the claim: it is one request
    pod annotation   gpu.scheduling/allocated    `node-a:0,1`: its node, and the host indices of its GPUs
    Lease            gpu-<node>-<index>          holderIdentity = uid of the pod
    Lease labels     gpu.scheduling/managed: "true"    gpu.scheduling/pod: <pod>
    GpuClaim spec    selector.matchLabels, devices.{count,policy,preferIds,exclusivity}, gangRef,
                     topology.{mode,minBandwidthGBps}
    GpuClaim status  phase, nodeName, gpuIds, allocated, message, observedGeneration
    GpuNodeStatus    spec.nodeName, status.{total,devices[].{id,inUseBy,health,bandwidthGBps,island}}

Carrel adds fields of its own, which may all be absent: to a claim `devices.memoryMiB` (a shared claim's part of each
GPU) and `gangSize`; to a device `uuid`, `model`, `memoryMiB`, `usableMiB` (what pods may share of it; absent: all),
`numaNode`, `reason` and, of a MIG slice, `mig.{profile,parent,parentId,parentMemoryMiB}`; to a GpuNodeStatus
`heartbeat`, `mode`, `memoryUnit` (what one `aliyun.com/gpu-mem` is there), `memoryResource` (`plugin` or `node`: how it
is advertised), `memoryLimits` (`possible`, or why containers cannot be limited there), `message`, `orphans` (pods that
run although the cluster has them no more), `preparedClaims` (which users are ResourceClaims) and `usage` (what the GPUs
are used for: `gpu_usage`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import Any, TypeVar

from carrel.dialects import mig, nvidia
from carrel.dialects.gpu_usage import write_usage
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES, Device, DeviceSlice, GpuClaim, GpuNodeStatus
from carrel.dialects.interface import Dialect, PodBinding, Reading, ToldGpus
from carrel.dialects.options import SCHEDULER, Unit
from carrel.ids import NO_NODE, GpuUuid, HolderId, NodeName, PodUid, ResourceClaimUid
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.ledger.gpu_usage import GpuUsage
from carrel.ledger.gpus import (
    LIMITS_NOT_SAID,
    UNKNOWN_MEMORY,
    Gpu,
    MiB,
    MigSlice,
    Node,
    is_place_name,
    place_name,
    shareable,
    total_of,
)
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ANY_SLICE, WHOLE, Amount, GpuPolicy, Memory, Portion, Request, Topology, TopologyMode
from carrel.parsing.fields import whole_number
from carrel.parsing.malformed import Malformed
from carrel.parsing.printable import printable
from carrel.parsing.time import instant, seconds

CLAIM = "gpu.scheduling/claim"
ALLOCATED = "gpu.scheduling/allocated"
MANAGED_LABEL = "gpu.scheduling/managed"
POD_LABEL = "gpu.scheduling/pod"

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

NATIVE = "native"
COEXIST = "coexist"

MEMORY_UNIT, MEMORY_RESOURCE, MESSAGE = "memoryUnit", "memoryResource", "message"
MEMORY_LIMITS = "memoryLimits"
LIMITS_POSSIBLE = "possible"
ORPHANS = "orphans"
PREPARED_CLAIMS = "preparedClaims"
OPTIONAL = (MEMORY_UNIT, MEMORY_RESOURCE, MEMORY_LIMITS, MESSAGE, ORPHANS, PREPARED_CLAIMS)
"""Of a GpuNodeStatus: those of Carrel's own fields that may be absent."""

POLICIES = {
    "": GpuPolicy.PACK,
    "contiguous": GpuPolicy.CONTIGUOUS,
    "spread": GpuPolicy.SPREAD,
    "preferIds": GpuPolicy.PREFER_IDS,
}
MODES = {
    "": TopologyMode.PREFERRED,
    "Required": TopologyMode.REQUIRED,
    "Preferred": TopologyMode.PREFERRED,
    "Ignore": TopologyMode.IGNORE,
}
HIGHEST_INDEX = 9999
"""Longer numbers at the end of a Lease's name are something else."""

T = TypeVar("T")


class ClaimPhase(Enum):
    PENDING = "Pending"
    RESERVED = "Reserved"
    BOUND = "Bound"
    RELEASED = "Released"
    """Carrel's own word: its pod has finished."""
    FAILED = "Failed"


# --- claims ----------------------------------------------------------------------------------------------------------


def claim_name(pod: Pod) -> str:
    """The GpuClaim of a pod that names one."""
    name = pod.metadata.annotations[CLAIM]
    if not name:
        raise Malformed(subject(pod.metadata), annotation_field(CLAIM), name, "the name of a GpuClaim")
    return name


def request_of(claim: GpuClaim, shared_claims_per_gpu: int) -> Request | Refusal:
    """What a claim asks for, but for its gang. A shared claim that names no memory gets one n-th of each GPU."""
    where, devices, topology = subject(claim.metadata, "GpuClaim"), claim.spec.devices, claim.spec.topology
    _at_least(1, devices.count, where, "spec.devices.count")
    _at_least(0, topology.min_bandwidth_gbps, where, "spec.topology.minBandwidthGBps")
    if claim.spec.gang_size is not None:
        _at_least(1, claim.spec.gang_size, where, "spec.gangSize")
    for index, gpu in enumerate(devices.prefer_ids):
        _at_least(0, gpu, where, f"spec.devices.preferIds[{index}]")
    return Request(
        gpus=devices.count,
        amount=_amount(claim, shared_claims_per_gpu),
        slices=ANY_SLICE if devices.exclusivity == "MIG" else "",
        policy=_one_of(POLICIES, devices.policy, where, "spec.devices.policy"),
        prefer_ids=tuple(devices.prefer_ids),
        topology=Topology(_one_of(MODES, topology.mode, where, "spec.topology.mode"), topology.min_bandwidth_gbps),
        node_labels=frozenset(claim.spec.selector.match_labels.items()),
    )


def claim_status(
    phase: ClaimPhase, node: NodeName = NO_NODE, ids: Sequence[int] = (), message: str = "", generation: int = 0
) -> dict[str, Any]:
    """For a merge patch: what is not known is null, which removes it.

    Not an empty text: some builds of kube-apiserver 1.20 take one for null, and refuse it where text belongs.
    """
    return {
        "phase": phase.value,
        "nodeName": node or None,
        "gpuIds": list(ids),
        "allocated": allocated(node, ids) if ids else None,
        "message": message or None,
        "observedGeneration": generation,
    }


def _amount(claim: GpuClaim, shared_claims_per_gpu: int) -> Amount:
    where, devices = subject(claim.metadata, "GpuClaim"), claim.spec.devices
    if devices.exclusivity == "Shared":
        if devices.memory_mib is None:
            return Portion(Fraction(1, shared_claims_per_gpu))
        return Memory(MiB(_at_least(1, devices.memory_mib, where, "spec.devices.memoryMiB")))
    if devices.exclusivity not in ("", "Exclusive", "MIG"):
        raise Malformed(where, "spec.devices.exclusivity", devices.exclusivity, "Exclusive, Shared or MIG")
    if devices.memory_mib is not None:
        raise Malformed(where, "spec.devices.memoryMiB", devices.memory_mib, "nothing, or exclusivity: Shared")
    return WHOLE


# --- what a pod was given --------------------------------------------------------------------------------------------


def allocated(node: NodeName, ids: Sequence[int]) -> str:
    """The node and the indices, as on a pod and in the status of a claim."""
    return f"{node}:{_joined(ids)}"


def write_allocated(node: NodeName, ids: Sequence[int]) -> dict[str, str]:
    return {ALLOCATED: allocated(node, ids)}


def told_gpus(pod: Pod) -> ToldGpus:
    """The GPUs that the GpuClaim scheduler gave to the pod, in either of its forms."""
    text = pod.metadata.annotations.get(ALLOCATED, "").rpartition(":")[2]
    field = annotation_field(ALLOCATED)
    return {whole_number(part, subject(pod.metadata), field): 0 for part in text.split(",")} if text else {}


# --- nodes -----------------------------------------------------------------------------------------------------------


def node_of(status: GpuNodeStatus, labels: Mapping[str, str]) -> Node:
    """The GPUs of a machine. What another agent does not say is taken from the labels of the node.

    A GPU whose size nobody knows counts as 1 MiB: it can be had whole, and no share of it fits.
    """
    name, devices = status.spec.node_name or status.metadata.name, status.status.devices
    gpus = tuple(_gpu(device, name, labels, _DevicePath(status, i)) for i, device in enumerate(devices))
    for position, gpu in enumerate(gpus):
        if any(gpu.index == other.index or gpu.uuid == other.uuid for other in gpus[:position]):
            raise _DevicePath(status, position).malformed("id", gpu.index, "an id and a uuid that no other device has")
    chooses, limits = status.status.mode == COEXIST, status.status.memory_limits
    if mig.STRATEGY in labels:
        gpus = mig.advertised_as_gpus(gpus, labels)
    return Node(
        name,
        tuple(sorted(gpus, key=lambda gpu: gpu.index)),
        labels,
        why_no_limits="" if limits == LIMITS_POSSIBLE else printable(limits) if limits else LIMITS_NOT_SAID,
        kubelet_chooses=chooses,
    )


def users_on(status: GpuNodeStatus, uuid: GpuUuid, index: int) -> tuple[HolderId, ...]:
    """Who uses the GPU of a Lease, by its UUID: its number may have changed since, and counts only without one."""
    devices = status.status.devices
    found = (device for device in devices if (device.uuid == uuid if device.uuid else device.id == index))
    return next((device.in_use_by for device in found), ())


def heartbeat_of(status: GpuNodeStatus) -> datetime | None:
    """When the agent last looked; None where it does not say."""
    text = status.status.heartbeat
    return instant(text, subject(status.metadata, "GpuNodeStatus"), "status.heartbeat") if text else None


def why_other_unit(status: GpuNodeStatus, unit: Unit) -> str:
    """Why a number on a pod would mean different amounts for the agent and for this process; empty: it does not."""
    theirs, ours = status.status.memory_unit, unit.value
    if theirs in ("", ours):
        return ""
    return f"its agent counts memory in {theirs}, the scheduler in {ours}; both follow memory.unit of the configuration"


@dataclass(frozen=True, slots=True)
class Remarks:
    """What an agent says about its node besides the GPUs. Empty: nothing."""

    memory_unit: str = ""
    memory_resource: str = ""
    message: str = ""
    orphans: tuple[PodUid, ...] | None = None
    """None: not known."""
    prepared_claims: tuple[ResourceClaimUid, ...] = ()
    usage: Mapping[GpuUuid, GpuUsage] | None = None
    """What its GPUs are used for. None: not known."""


NO_REMARKS = Remarks()


def node_status(
    node: Node, in_use_by: Mapping[GpuUuid, Sequence[HolderId]], heartbeat: datetime, remarks: Remarks = NO_REMARKS
) -> dict[str, Any]:
    """The GpuNodeStatus that an agent posts. `in_use_by` gives the uids of pods by the UUID of the GPU."""
    said = {
        MEMORY_UNIT: remarks.memory_unit,
        MEMORY_RESOURCE: remarks.memory_resource,
        MEMORY_LIMITS: "" if node.why_no_limits == LIMITS_NOT_SAID else node.why_no_limits or LIMITS_POSSIBLE,
        MESSAGE: remarks.message,
    }
    return {
        "apiVersion": GPU_NODE_STATUSES.api_version,
        "kind": GPU_NODE_STATUSES.kind,
        "metadata": {"name": node.name},
        "spec": {"nodeName": node.name},
        "status": {
            "total": len(node.gpus),
            "devices": [_device(gpu, in_use_by.get(gpu.uuid, ())) for gpu in node.gpus],
            "heartbeat": seconds(heartbeat),
            "mode": COEXIST if node.kubelet_chooses else NATIVE,
            **{key: word for key, word in said.items() if word},
            **({ORPHANS: list(remarks.orphans)} if remarks.orphans is not None else {}),
            **({PREPARED_CLAIMS: list(remarks.prepared_claims)} if remarks.prepared_claims else {}),
            **write_usage(remarks.usage),
        },
    }


def report(status: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch that makes a GpuNodeStatus say just this: what it says no more is null, which removes it."""
    return {"status": {**dict.fromkeys(OPTIONAL), **status}}


@dataclass(frozen=True, slots=True)
class _DevicePath:
    """Where in a GpuNodeStatus we are, for complaints."""

    status: GpuNodeStatus
    position: int

    def malformed(self, field: str, value: object, expected: str) -> Malformed:
        where = subject(self.status.metadata, "GpuNodeStatus")
        return Malformed(where, f"status.devices[{self.position}].{field}", value, expected)


def _gpu(device: Device, node: NodeName, labels: Mapping[str, str], place: _DevicePath) -> Gpu:
    numbers = {"id": device.id, "memoryMiB": device.memory_mib, "bandwidthGBps": device.bandwidth_gbps}
    for field, number in numbers.items():
        if number < 0:
            raise place.malformed(field, number, "a whole number, 0 or more")
    if device.id > HIGHEST_INDEX:
        raise place.malformed("id", device.id, f"at most {HIGHEST_INDEX}")
    if is_place_name(device.uuid) and device.uuid != place_name(node, device.id):
        raise place.malformed("uuid", device.uuid, "not the place of another GPU")
    total = MiB(device.memory_mib) or _labelled_memory(node, labels)
    if device.usable_mib is not None and not 1 <= device.usable_mib <= total:
        raise place.malformed("usableMiB", device.usable_mib, f"1 to {total}, its memoryMiB")
    return Gpu(
        uuid=device.uuid or place_name(node, device.id),
        node=node,
        index=device.id,
        model=device.model or labels.get(nvidia.PRODUCT, ""),
        memory=total if device.usable_mib is None else shareable(device.usable_mib, total),
        island=device.island,
        bandwidth_gbps=device.bandwidth_gbps,
        unusable=_unusable(device),
        numa_node=device.numa_node,
        slice=_slice(device.mig, place) if device.mig is not None else None,
    )


def _slice(found: DeviceSlice, place: _DevicePath) -> MigSlice:
    if not mig.is_profile(found.profile):
        raise place.malformed("mig.profile", found.profile, "a profile, such as 1g.10gb")
    if not found.parent:
        raise place.malformed("mig.parent", found.parent, "the UUID of a GPU")
    if found.parent_id < 0 or found.parent_memory_mib < 0:
        raise place.malformed("mig", (found.parent_id, found.parent_memory_mib), "whole numbers, 0 or more")
    return MigSlice(found.profile, found.parent, found.parent_id, MiB(found.parent_memory_mib))


def _labelled_memory(node: NodeName, labels: Mapping[str, str]) -> MiB:
    text = labels.get(nvidia.MEMORY, str(UNKNOWN_MEMORY))
    return MiB(whole_number(text, f"node {node}", f"metadata.labels['{nvidia.MEMORY}']", at_least=1))


def _device(gpu: Gpu, in_use_by: Sequence[HolderId]) -> dict[str, Any]:
    device = {
        "id": gpu.index,
        "inUseBy": list(in_use_by),
        "health": UNHEALTHY if gpu.unusable else HEALTHY,
        "bandwidthGBps": gpu.bandwidth_gbps,
        "island": gpu.island,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memoryMiB": total_of(gpu.memory),
        "usableMiB": int(gpu.memory) if gpu.memory < total_of(gpu.memory) else None,
        "reason": gpu.unusable,
        "numaNode": gpu.numa_node,
        "mig": _written_slice(gpu.slice) if gpu.slice is not None else None,
    }
    return {key: value for key, value in device.items() if value not in ("", None)}


def _written_slice(of: MigSlice) -> dict[str, Any]:
    parent = {"parent": of.parent, "parentId": of.parent_index, "parentMemoryMiB": of.parent_memory}
    return {"profile": of.profile, **parent}


def _unusable(device: Device) -> str:
    if device.health in ("", HEALTHY):
        return ""
    return device.reason or f"its node reports it as {device.health}"


def _joined(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


def _at_least(lowest: int, value: int, where: str, field: str) -> int:
    if value < lowest:
        raise Malformed(where, field, value, f"a whole number, {lowest} or more")
    return value


def _one_of(words: Mapping[str, T], word: str, where: str, field: str) -> T:
    if word not in words:
        raise Malformed(where, field, word, ", ".join(filter(None, words)))
    return words[word]


# --- the dialect -----------------------------------------------------------------------------------------------------


def _request_of(pod: Pod, reading: Reading) -> Request | Refusal:
    assert reading.claim is not None, "the registry looks the claim up"
    claimed, limit = request_of(reading.claim, reading.options.shared_claims_per_gpu), nvidia.request_of(pod, reading)
    if isinstance(claimed, Refusal) or limit is None:
        return claimed
    where = f"{subject(pod.metadata)} names the GpuClaim {reading.claim.metadata.name!r}"
    if claimed.amount != WHOLE:
        return Refusal(f"{where} of shared GPUs and asks for whole ones by {nvidia.GPU}; leave {nvidia.GPU} out")
    if limit.gpus != claimed.gpus:
        counts = f"of {claimed.gpus} GPU{'s' * (claimed.gpus != 1)} and asks for {limit.gpus} by {nvidia.GPU}"
        return Refusal(f"{where} {counts}; make the numbers equal, or leave {nvidia.GPU} out")
    return replace(claimed, containers=limit.containers, by_kubelet=limit.by_kubelet)


def _assumed(pod: Pod, reading: Reading) -> Request:
    return nvidia.request_of(pod, reading) or Request(1, WHOLE)


def _bind_annotations(binding: PodBinding) -> dict[str, str]:
    placement = binding.placement
    return write_allocated(placement.node, [gpu.index for gpu in placement.gpus])


DIALECT = Dialect(
    name="gpuclaim",
    words=CLAIM,
    example="gpuclaim-exclusive.yaml",
    request_of=_request_of,
    annotations=(CLAIM,),
    takes_over=(nvidia.GPU,),
    claim_name=claim_name,
    assumed=_assumed,
    scheduler_names=(SCHEDULER,),
    bind_annotations=_bind_annotations,
    told_gpus=told_gpus,
    written_annotations=(ALLOCATED,),
    written_labels=(MANAGED_LABEL, POD_LABEL),
)
