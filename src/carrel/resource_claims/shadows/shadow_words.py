"""Shadow claims: ResourceClaims in Carrel's own namespace that show to every scheduler what is not free of a GPU.

Schedulers count what claims have, and nothing else. So what pods of other dialects hold of a device is allocated to a
claim that no pod uses:

    label carrel.dev/shadow: "true"          nobody else's claim: it is changed and deleted without asking
    annotation carrel.dev/lease: gpu-n1-0    the Lease that says who holds the GPU
    annotation carrel.dev/holder: lab/train  and who it is, for people
    status.reservedFor                       that Lease, so that nobody takes the claim for unused

A shadow is a hint, never a record: what it shows is on Leases, and the gate looks there. It has no finalizer, so that
a plain delete removes it at any time. Its amount cannot change: another amount is another shadow.

A node should have these:

    a pod holds a part of a GPU               a shadow of that amount; claims hold what they have themselves
    the GPU is kept for a booked pod,         a shadow of all that is free of it; not if that pod has claims: its
    or no pod may have it now                 scheduler must see the GPU, and the gate refuses it to others
    the device cannot be divided              one shadow, if anything of it is not free

A device that has a taint already, because its own node says that no pod may have it, needs no shadow for that.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from carrel.dialects.carrel import RESERVED_LEASE, SHADOW, SHADOW_HOLDER
from carrel.dialects.gpu_lease import lease_name
from carrel.ids import GpuUuid, HolderId
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.ledger import GpuEntry
from carrel.parsing import Malformed
from carrel.resource_claims import dra
from carrel.resource_claims.dra import DevicePlace, Json
from carrel.resource_claims.objects import ResourceClaim, ResourceSlice

SELECTED = f"{SHADOW}=true"
"""The label selector."""
REQUEST = "gpu"
_LONGEST_ANNOTATION = 1000


@dataclass(frozen=True, slots=True)
class AdvertisedDevice:
    """A device of a slice, as far as it matters here."""

    place: DevicePlace
    uuid: GpuUuid
    divides: bool
    """Whether several claims may have parts of it."""
    is_tainted: bool
    """Whether schedulers leave it alone already."""


def advertised(resource_slice: ResourceSlice) -> list[AdvertisedDevice]:
    """The devices of a slice that say which GPU they are."""
    spec, uuids = resource_slice.spec, dra.uuids_in(resource_slice)
    places = {device.name: DevicePlace(spec.driver, spec.pool.name, device.name) for device in spec.devices}
    return [
        AdvertisedDevice(place, uuids[place], device.allow_multiple_allocations, bool(device.taints))
        for device in spec.devices
        if (place := places[device.name]) in uuids
    ]


@dataclass(frozen=True, slots=True)
class Shadow:
    """What a scheduler must not give away of a device."""

    device: AdvertisedDevice
    gpu: Gpu
    key: str
    """What it is for: one device has one shadow with that key and amount."""
    memory: MiB | None
    """None: all of it, on a device that cannot be divided."""
    holder: str
    """For people."""

    @property
    def name(self) -> str:
        """A name that only depends on the content, so that nobody creates it twice."""
        content = f"{self.device.place} {self.device.uuid} {self.key} {self.memory}"
        return f"held-{hashlib.sha256(content.encode()).hexdigest()[:24]}"

    @property
    def lease(self) -> str:
        return lease_name(self.gpu.node, self.gpu.index)


def is_shadow(claim: ResourceClaim, namespace: str) -> bool:
    """`namespace`: Carrel's own. In others the label means nothing: anybody could write it there."""
    return claim.metadata.namespace == namespace and claim.metadata.labels.get(SHADOW) == "true"


def lease_of(claim: ResourceClaim) -> str:
    """The Lease that a shadow is for; empty if it does not say."""
    return claim.metadata.annotations.get(RESERVED_LEASE, "")


def shows(claim: ResourceClaim, shadow: Shadow, drivers: Collection[str]) -> bool:
    """Whether the claim is allocated as the shadow wants it."""
    try:
        return dict(dra.allocated(claim, drivers)) == {shadow.device.place: shadow.memory}
    except Malformed:
        return False


def write_shadow(shadow: Shadow) -> Json:
    wanted: Json = {"deviceClassName": shadow.device.place.driver}
    if shadow.memory is not None:
        wanted["capacity"] = {"requests": {dra.MEMORY: f"{shadow.memory}Mi"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": shadow.name,
            "labels": {SHADOW: "true"},
            "annotations": {RESERVED_LEASE: shadow.lease, SHADOW_HOLDER: shadow.holder[:_LONGEST_ANNOTATION]},
        },
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": wanted}]}},
    }


def write_status(shadow: Shadow, lease_uid: str, now: datetime) -> Json:
    """`lease_uid`: empty if there is no Lease, because a pod holds the GPU without one."""
    result = dra.write_result(REQUEST, shadow.device.place, shadow.memory, shadow.name)
    allocation = dra.write_allocation([result], shadow.gpu.node, now)
    lease: Mapping[str, str] = {
        "apiGroup": "coordination.k8s.io",
        "resource": "leases",
        "name": shadow.lease,
        "uid": lease_uid,
    }
    return {"allocation": allocation, "reservedFor": [lease] if lease_uid else []}


UNALLOCATED: Mapping[str, None] = {"allocation": None, "reservedFor": None}
"""As a merge patch of a status."""


REST = "rest"
"""The key of a shadow that stands for all that is free."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the plan of one node is made from."""

    entries: Iterable[GpuEntry]
    devices: Mapping[GpuUuid, AdvertisedDevice]
    """By UUID, as the node's slices advertise them."""
    unusable: str = ""
    """Why no pod comes to the node."""
    has_claims: Callable[[HolderId], bool] = lambda uid: False
    """Whether the pod of that uid asks for its GPUs by claims."""


def wanted_shadows(node: NodeView) -> dict[str, Shadow]:
    """Return the shadows by name."""
    found = (
        shadow
        for entry in node.entries
        if (device := node.devices.get(entry.gpu.uuid)) is not None
        for shadow in _of_gpu(entry, device, node)
    )
    return {shadow.name: shadow for shadow in found}


def _of_gpu(entry: GpuEntry, device: AdvertisedDevice, node: NodeView) -> Iterator[Shadow]:
    pods = [share for share in entry.shares.values() if not share.holder.is_claim]
    why_none = "" if device.is_tainted else entry.gpu.unusable or node.unusable
    if entry.kept_for is not None and not node.has_claims(entry.kept_for.uid):
        why_none = f"kept for {entry.kept_for}"
    if not device.divides:
        has_claims = len(pods) < len(entry.shares)
        if (pods or why_none) and not has_claims:
            words = ", ".join(sorted(share.holder.full_name for share in pods)) or why_none
            yield Shadow(device, entry.gpu, REST, None, words)
        return
    for share in pods:
        yield Shadow(device, entry.gpu, share.holder.uid, MiB(entry.held(share)), share.holder.full_name)
    if why_none and entry.free > 0:
        yield Shadow(device, entry.gpu, REST, MiB(entry.free), why_none)
