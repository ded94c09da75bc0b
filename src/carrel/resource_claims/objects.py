"""What Carrel reads of the kinds of `resource.k8s.io/v1`, Dynamic Resource Allocation. As in `kinds`.

A ResourceClaim asks for devices by their DeviceClasses. A scheduler writes into its status which devices of which
ResourceSlices it got (the allocation), and which pods use it (`reserved_for`).
"""

from typing import Any

import msgspec

from carrel.ids import NO_NODE, NodeName, ResourceClaimUid
from carrel.kubernetes.objects.kinds import Metadata, Object, ObjectPart, RequiredNodes
from carrel.kubernetes.objects.resources import Resource


class CelSelector(ObjectPart):
    expression: str = ""


class DeviceSelector(ObjectPart):
    cel: CelSelector = msgspec.field(default_factory=CelSelector)


class CapacityRequests(ObjectPart):
    requests: dict[str, str] = msgspec.field(default_factory=dict)
    """Quantities by the name of the capacity: `{"memory": "8138Mi"}`."""


class DeviceAlternative(ObjectPart):
    """A number of devices of one class: what a request asks for exactly, or one of its alternatives."""

    name: str = ""
    """Of an alternative."""
    device_class_name: str = ""
    allocation_mode: str = ""
    """`ExactCount`, or `All` that match; empty: `ExactCount`."""
    count: int = 0
    admin_access: bool = False
    """To look at devices that others use: it takes nothing of them."""
    capacity: CapacityRequests = msgspec.field(default_factory=CapacityRequests)
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceRequest(ObjectPart):
    name: str = ""
    exactly: DeviceAlternative | None = None
    first_available: tuple[DeviceAlternative, ...] = ()
    """Instead: the scheduler takes the first of them that it can have."""


class DeviceConstraint(ObjectPart):
    requests: tuple[str, ...] = ()
    """To which requests it applies; empty: all of the claim."""
    match_attribute: str = ""
    distinct_attribute: str = ""


class DeviceClaim(ObjectPart):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[dict[str, Any], ...] = ()
    """For the driver; an allocation repeats it."""


class ResourceClaimSpec(ObjectPart):
    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(ObjectPart):
    """One device that a claim got."""

    request: str = ""
    """The name of the request; of an alternative `request/alternative`."""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    consumed_capacity: dict[str, str] = msgspec.field(default_factory=dict)
    """Quantities, of a device that several claims may have at once."""


class AllocationDevices(ObjectPart):
    results: tuple[AllocatedDevice, ...] = ()


class Allocation(ObjectPart):
    devices: AllocationDevices = msgspec.field(default_factory=AllocationDevices)
    allocation_timestamp: str = ""
    node_selector: RequiredNodes | None = None
    """Where the devices can be used; None: everywhere."""


class ClaimConsumer(ObjectPart):
    """Who uses a claim: nearly always a pod (`resource: pods` without a group)."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""

    @property
    def is_pod(self) -> bool:
        return self.resource == "pods" and not self.api_group


class ResourceClaimStatus(ObjectPart):
    allocation: Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] = ()


class ResourceClaimMetadata(Metadata):
    uid: ResourceClaimUid = ResourceClaimUid("")


class ResourceClaim(Object):
    metadata: ResourceClaimMetadata = msgspec.field(default_factory=ResourceClaimMetadata)
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)


class ResourceClaimTemplateSpec(ObjectPart):
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)


class ResourceClaimTemplate(Object):
    """Each pod that names it gets a claim of its own."""

    spec: ResourceClaimTemplateSpec = msgspec.field(default_factory=ResourceClaimTemplateSpec)


class DeviceClassSpec(ObjectPart):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[dict[str, Any], ...] = ()
    """For the driver, as that of a claim."""
    extended_resource_name: str = ""
    """For pods that ask for this resource, the scheduler makes a claim of this class."""


class DeviceClass(Object):
    spec: DeviceClassSpec = msgspec.field(default_factory=DeviceClassSpec)


class DeviceAttribute(ObjectPart):
    """One of these; what else there is, Carrel does not read."""

    string: str = ""
    number: int | None = msgspec.field(default=None, name="int")


class DeviceTaint(ObjectPart):
    key: str = ""
    effect: str = ""


class SliceDevice(ObjectPart):
    name: str = ""
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    allow_multiple_allocations: bool = False
    """Several claims may have parts of it."""
    taints: tuple[DeviceTaint, ...] = ()


class DevicePool(ObjectPart):
    name: str = ""
    generation: int = 0


class ResourceSliceSpec(ObjectPart):
    driver: str = ""
    node_name: NodeName = NO_NODE
    pool: DevicePool = msgspec.field(default_factory=DevicePool)
    devices: tuple[SliceDevice, ...] = ()


class ResourceSlice(Object):
    spec: ResourceSliceSpec = msgspec.field(default_factory=ResourceSliceSpec)


RESOURCE_CLAIMS = Resource(ResourceClaim, "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES = Resource(
    ResourceClaimTemplate, "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
DEVICE_CLASSES = Resource(DeviceClass, "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
RESOURCE_SLICES = Resource(ResourceSlice, "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
