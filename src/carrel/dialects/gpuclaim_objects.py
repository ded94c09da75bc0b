"""The two kinds of the GpuClaim scheduler, which Carrel serves unchanged: GpuClaim and GpuNodeStatus."""

import msgspec

from carrel.ids import NO_GPU, NO_NODE, GpuUuid, HolderId, NodeName, PodUid, ResourceClaimUid
from carrel.kubernetes.objects.kinds import NodeMetadata, Object, ObjectPart
from carrel.kubernetes.objects.resources import Resource


class ClaimSelector(ObjectPart):
    match_labels: dict[str, str] = msgspec.field(default_factory=dict)


class ClaimDevices(ObjectPart):
    count: int = 0
    policy: str = ""
    prefer_ids: tuple[int, ...] = ()
    exclusivity: str = ""
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")
    """Carrel's own field: a shared claim's part of each GPU."""


class ClaimTopology(ObjectPart):
    mode: str = ""
    min_bandwidth_gbps: int = msgspec.field(default=0, name="minBandwidthGBps")


class GpuClaimSpec(ObjectPart):
    selector: ClaimSelector = msgspec.field(default_factory=ClaimSelector)
    devices: ClaimDevices = msgspec.field(default_factory=ClaimDevices)
    topology: ClaimTopology = msgspec.field(default_factory=ClaimTopology)
    gang_ref: str = ""
    gang_size: int | None = None
    """Carrel's own field: how many pods the gang has."""


class GpuClaimStatus(ObjectPart):
    phase: str = ""
    node_name: NodeName = NO_NODE
    gpu_ids: tuple[int, ...] = ()
    allocated: str = ""
    message: str = ""
    observed_generation: int = 0


class GpuClaim(Object):
    spec: GpuClaimSpec = msgspec.field(default_factory=GpuClaimSpec)
    status: GpuClaimStatus = msgspec.field(default_factory=GpuClaimStatus)


class DeviceSlice(ObjectPart):
    """What a GPU is that is a MIG slice. All of it is Carrel's own."""

    profile: str = ""
    parent: GpuUuid = NO_GPU
    parent_id: int = 0
    parent_memory_mib: int = msgspec.field(default=0, name="parentMemoryMiB")


class Device(ObjectPart):
    """One GPU in a GpuNodeStatus. The last six are Carrel's own fields, absent where another agent wrote it."""

    id: int = 0
    in_use_by: tuple[HolderId, ...] = ()
    health: str = ""
    bandwidth_gbps: int = msgspec.field(default=0, name="bandwidthGBps")
    island: str = ""
    uuid: GpuUuid = NO_GPU
    model: str = ""
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    usable_mib: int | None = msgspec.field(default=None, name="usableMiB")
    """What pods may share of its memory. None: all of it."""
    reason: str = ""
    """Why the GPU is not healthy."""
    numa_node: int | None = None
    mig: DeviceSlice | None = None


class GpuNodeStatusSpec(ObjectPart):
    node_name: NodeName = NO_NODE


class GpuNodeStatusStatus(ObjectPart):
    total: int = 0
    devices: tuple[Device, ...] = ()
    heartbeat: str = ""
    """Carrel's own field: when the agent last looked at its GPUs."""
    mode: str = ""
    """Carrel's own field: `native` (also if absent), or `coexist` where NVIDIA's plugin hands the GPUs over."""
    memory_unit: str = ""
    """Carrel's own field: what one unit of gpushare's memory is there; empty where another agent wrote it."""
    memory_resource: str = ""
    """Carrel's own field: how that memory is advertised, `plugin` or `node`."""
    message: str = ""
    """Carrel's own field: what an admin should know."""
    orphans: tuple[PodUid, ...] | None = None
    """Carrel's own field: uids of pods whose containers run, although the cluster has no such pods. None: the agent
    cannot see containers."""
    memory_limits: str = ""
    """Carrel's own field: `possible` if the memory of a container can be limited there, else why not. Empty: the agent
    does not say."""
    prepared_claims: tuple[ResourceClaimUid, ...] = ()
    """Carrel's own field: which of the users of GPUs are not pods but ResourceClaims, by their uids."""


class GpuNodeStatus(Object):
    metadata: NodeMetadata = msgspec.field(default_factory=NodeMetadata)
    spec: GpuNodeStatusSpec = msgspec.field(default_factory=GpuNodeStatusSpec)
    status: GpuNodeStatusStatus = msgspec.field(default_factory=GpuNodeStatusStatus)


GPU_CLAIMS = Resource(GpuClaim, "gpu.scheduling", "v1", "gpuclaims", "GpuClaim")
GPU_NODE_STATUSES = Resource(
    GpuNodeStatus, "gpu.scheduling", "v1", "gpunodestatuses", "GpuNodeStatus", namespaced=False
)
