"""Shadow claims: ResourceClaims in Carrel's own namespace that show to every scheduler what is not free of a GPU.

Schedulers count what claims have, and nothing else. So what pods of other dialects hold of a device is allocated to a
claim that no pod uses:

    label carrel.dev/shadow: "true"          nobody else's claim: it is changed and deleted without asking
    annotation carrel.dev/lease: gpu-n1-0    the Lease that says who holds the GPU
    annotation carrel.dev/holder: lab/train  and who it is, for people
    status.reservedFor                       that Lease, so that nobody takes the claim for unused

A shadow is a hint, never a record: what it shows is on Leases, and the gate looks there. It has no finalizer, so that
a plain delete removes it at any time. Its amount cannot change: another amount is another shadow.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from carrel.dialects.carrel import RESERVED_LEASE, SHADOW, SHADOW_HOLDER
from carrel.dialects.gpuclaim import lease_name
from carrel.ledger.gpus import Gpu, MiB
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
    uuid: str
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
