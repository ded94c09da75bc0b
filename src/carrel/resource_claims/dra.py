"""Dynamic Resource Allocation: GPUs by ResourceClaims (`resource.k8s.io/v1`).

    a ResourceClaim asks       deviceClassName: gpu.carrel.dev        of our driver; other classes may select it too
                               count: 2                               so many different GPUs
                               capacity: {requests: {memory: 8138Mi}} of each; none: the whole GPU
                               resource.kubernetes.io/extended-resource-claim: "true"     made for nvidia.com/gpu, or
    a pod asks                 resources deviceclass.resource.kubernetes.io/<class>: 1    a scheduler makes the claim
                               constraints: [{matchAttribute: gpu.carrel.dev/island}]     linked by NVLink
    a ResourceSlice advertises driver gpu.carrel.dev, pool <node>, device gpu-<UUID>
                               attributes uuid, model, index, island; capacity memory
                               taint carrel.dev/unusable: no pod may have it now, its GpuNodeStatus says why
    an allocation says         which devices a claim got, and how much of each (`consumedCapacity`)
                               resource.kubernetes.io/delete-protection               the finalizer of such a claim

Any scheduler may allocate. What it writes passes only if the Leases of the GPUs could be taken (the webhook's gate).
The holder of the share is the claim, and not its pods. Quantities may have any unit, and are rounded up to whole MiB.

Selectors are written in CEL, which the scheduler evaluates and Carrel does not. Four conditions are understood, alone
or joined by `&&`:

    device.driver == 'gpu.carrel.dev'
    device.attributes['gpu.nvidia.com'].type == 'gpu'        in NVIDIA's own DeviceClass: no MIG slice; or `mig`
    device.attributes['gpu.nvidia.com'].profile == '1g.10gb' of a MIG slice
    device.attributes['gpu.carrel.dev'].model == 'NVIDIA-A100-SXM4-80GB'

Of other drivers than those whose devices are counted, none is. A claim that says more, or has a `config` for its driver
(its class, too), is served by the scheduler as everywhere. But Carrel cannot say which GPUs would do for it: it
revokes none for it, and does not allocate it by itself.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from carrel.dialects.interface import Dialect, Reading
from carrel.dialects.options import DraDriver
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.quantity import quantity
from carrel.ledger.gpus import MiB
from carrel.ledger.requests import ANY_SLICE, WHOLE, Amount, Memory, Request, Topology, TopologyMode
from carrel.ledger.shares import Holder, HolderKind
from carrel.parsing.time import seconds
from carrel.resource_claims.objects import (
    AllocatedDevice,
    DeviceAlternative,
    DeviceClaim,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceSlice,
)

Json = dict[str, Any]

DRIVER, NVIDIA_DRIVER = DraDriver.CARREL.value, DraDriver.NVIDIA.value
"""Of NVIDIA's DRA driver; also the DeviceClass that claims written for it name."""
DELETE_PROTECTION = "resource.kubernetes.io/delete-protection"
"""The finalizer of every allocated claim: it is deleted only after it was deallocated."""
CLASSES = frozenset({DRIVER, NVIDIA_DRIVER})
"""DeviceClasses that are for GPUs even while the class itself cannot be read."""
MEMORY = "memory"
UUID = "uuid"
PARENT_UUID = "parentUUID"
"""Of a MIG slice, in slices of NVIDIA's driver: the GPU that it is a part of."""
MODEL = "model"
INDEX = "index"
ISLAND = "island"
ALL_DEVICES = "All"
EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""On a claim that a scheduler has made for a pod which asks for a resource (`extendedResourceName` of a class)."""
CDI_KIND = "carrel.dev/gpu"
"""Of the devices that a container runtime is told of. One stands for all GPUs of a claim, and is named by its uid."""
CDI_FILE = "carrel.dev-gpu-"
"""How the names of their files begin."""
_BYTES = 2**20
_LONGEST_NAME = 63
"""Of a device, as of every label of DNS. UUIDs have 40 characters; longer ones are made up, and differ at the end."""


def device_name(uuid: GpuUuid) -> str:
    """Name a GPU as claims know it: by its UUID. Its index may change; an allocation cannot."""
    return re.sub("[^a-z0-9]+", "-", uuid.lower()).strip("-")[-_LONGEST_NAME:].strip("-")


def slice_name(node: NodeName) -> str:
    return f"{node}-{DRIVER}"


def qualified(word: str) -> str:
    """An attribute or a capacity of our driver, as others name it."""
    return f"{DRIVER}/{word}"


def mebibytes(text: str, where: str, field: str) -> MiB:
    """Rounded up, and at least 1: nobody gets a part of a GPU for nothing. Raises `Malformed`."""
    return MiB(max(1, -(-quantity(text, where, field) // Fraction(_BYTES))))


def holder_of_claim(claim: ResourceClaim) -> Holder:
    return Holder(claim.metadata.uid, claim.metadata.namespace, claim.metadata.name, HolderKind.CLAIM)


def is_for_extended_resource(claim: ResourceClaim) -> bool:
    return claim.metadata.annotations.get(EXTENDED_RESOURCE_CLAIM) == "true"


# --- what a claim asks for -------------------------------------------------------------------------------------------


def is_gpu_class(name: str, found: DeviceClass | None, drivers: Collection[str]) -> bool:
    """Whether devices of a class are GPUs of these drivers. Its selectors are CEL, which only the scheduler evaluates:
    a class that names a driver counts as selecting it."""
    if found is None:
        return name in CLASSES
    expressions = [each.cel.expression for each in found.spec.selectors]
    return any(_names(expression, driver) for expression in expressions for driver in drivers)


def _names(expression: str, driver: str) -> bool:
    return f"'{driver}'" in expression or f'"{driver}"' in expression


def request_of_claim(spec: ResourceClaimSpec, where: str, is_gpu: Callable[[str], bool]) -> Request | None:
    """What a claim asks for, for people and for limits; None: no GPU. Raises `Malformed`.

    A claim may ask for more than a `Request` can say: of requests that differ, the largest amount counts for all; of
    alternatives, the first with GPUs; of all GPUs that match, one. What it gets in the end, its allocation says.
    """
    wanted = [each for request in spec.devices.requests for each in gpus_wanted(request, is_gpu)]
    if not wanted:
        return None
    amounts = [amount_of(each, where) for each in wanted]
    count = sum(1 if each.allocation_mode == ALL_DEVICES else max(1, each.count) for each in wanted)
    linked = any(each.match_attribute == qualified(ISLAND) for each in spec.devices.constraints)
    topology = Topology(TopologyMode.REQUIRED) if linked and count > 1 else Topology(TopologyMode.IGNORE)
    return Request(count, largest(amounts), topology=topology)


def spec_of_resource(device_class: str, count: int) -> ResourceClaimSpec:
    """Return what the claim asks for that a scheduler makes for a resource."""
    exactly = DeviceAlternative(device_class_name=device_class, count=count)
    return ResourceClaimSpec(devices=DeviceClaim(requests=(DeviceRequest(exactly=exactly),)))


def names_memory(spec: ResourceClaimSpec, is_gpu: Callable[[str], bool]) -> bool:
    """Whether a claim asks for parts of GPUs."""
    asked = [each for request in spec.devices.requests for each in _alternatives(request)]
    return any(is_gpu(each.device_class_name) and _memory_in(each.capacity.requests, DRIVER) for each in asked)


def _alternatives(request: DeviceRequest) -> tuple[DeviceAlternative, ...]:
    return request.first_available or ((request.exactly,) if request.exactly is not None else ())


def gpus_wanted(request: DeviceRequest, is_gpu: Callable[[str], bool]) -> Iterable[DeviceAlternative]:
    first = next((each for each in _alternatives(request) if is_gpu(each.device_class_name)), None)
    return () if first is None or first.admin_access else (first,)


def amount_of(wanted: DeviceAlternative, where: str) -> Amount:
    text = _memory_in(wanted.capacity.requests, DRIVER)
    return WHOLE if text is None else Memory(mebibytes(text, where, f"memory of {wanted.device_class_name}"))


def largest(amounts: Collection[Amount]) -> Amount:
    memories = [each.mib for each in amounts if isinstance(each, Memory)]
    parts = [each for each in amounts if not isinstance(each, Memory)]
    return parts[0] if parts else Memory(max(memories))


def _memory_in(capacity: Mapping[str, str], driver: str) -> str | None:
    return capacity.get(MEMORY, capacity.get(f"{driver}/{MEMORY}"))


# --- what a claim got ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """Where a device is, as claims name it."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


def place_of(result: AllocatedDevice) -> DevicePlace:
    return DevicePlace(result.driver, result.pool, result.device)


def is_for_admin(claim: ResourceClaim, result: AllocatedDevice) -> bool:
    """Whether a claim only looks at a device that others use. Only if the claim asks for that: then the API server has
    looked whether its namespace may have it."""
    asked = (each for each in claim.spec.devices.requests if each.name == result.request)
    return result.admin_access and any(each.exactly is not None and each.exactly.admin_access for each in asked)


def allocated(claim: ResourceClaim, drivers: Collection[str]) -> Mapping[DevicePlace, MiB | None]:
    """How much of each device of these drivers a claim got, all its requests together; None: the whole of it. Admin
    access takes nothing. Raises `Malformed`."""
    taken: dict[DevicePlace, MiB | None] = {}
    if claim.status.allocation is None:
        return taken
    where = subject(claim.metadata, "ResourceClaim")
    for result in claim.status.allocation.devices.results:
        if result.driver not in drivers or is_for_admin(claim, result):
            continue
        text, place = _memory_in(result.consumed_capacity, result.driver), place_of(result)
        more = None if text is None else mebibytes(text, where, f"consumedCapacity of {place}")
        before = taken.get(place, MiB(0))
        taken[place] = None if more is None or before is None else MiB(before + more)
    return taken


def uuids_in(resource_slice: ResourceSlice, attribute: str = UUID) -> Mapping[DevicePlace, GpuUuid]:
    """The UUID of each device of a slice that says it."""
    spec = resource_slice.spec
    return {
        DevicePlace(spec.driver, spec.pool.name, device.name): GpuUuid(found.string)
        for device in spec.devices
        if (found := device.attributes.get(attribute) or device.attributes.get(f"{spec.driver}/{attribute}"))
        and found.string
    }


# --- what Carrel writes ----------------------------------------------------------------------------------------------


def write_result(request: str, place: DevicePlace, memory: MiB | None = None, share: str = "") -> Json:
    """One device of an allocation. `memory`: how much of a device that can be divided; `share`: what nobody else has of
    it, so that the same share has the same id each time."""
    result: Json = {"request": request, "driver": place.driver, "pool": place.pool, "device": place.device}
    if memory is not None:  # servers that do not divide devices drop both
        result["shareID"] = str(uuid5(NAMESPACE_OID, share))
        result["consumedCapacity"] = {MEMORY: f"{memory}Mi"}
    return result


def write_allocation(results: Sequence[Json], node: NodeName, now: datetime) -> Json:
    """The time of the allocation must be set, or Kubernetes 1.37 fails on it for ever."""
    is_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "allocationTimestamp": seconds(now),
        "devices": {"results": list(results)},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [is_node]}]},
    }


# --- the dialect -----------------------------------------------------------------------------------------------------


def _request_of(pod: Pod, reading: Reading) -> None:
    """What a pod asks for by claims is in other objects (`device_claims`)."""
    return


DIALECT = Dialect(name="dra", words="a ResourceClaim", example="dra.yaml", request_of=_request_of, any_scheduler=True)
"""Not in the registry: no word on a pod says that it speaks it, and Carrel does not place its pods."""


# --- selectors -------------------------------------------------------------------------------------------------------

_QUOTED = r"""(?:'([^'"]+)'|"([^'"]+)")"""
_OF_DRIVER = re.compile(rf"device\.driver\s*==\s*{_QUOTED}")
_OF_ATTRIBUTE = re.compile(rf"device\.attributes\[{_QUOTED}\]\.({MODEL}|type|profile)\s*==\s*{_QUOTED}")


class NamedGpus(NamedTuple):
    """Which GPUs selectors name."""

    model: str = ""
    """Empty: any."""
    slices: str = ""
    """As in a `Request`: MIG slices of this profile, or of any."""


def gpus_named(selectors: Iterable[DeviceSelector], drivers: Collection[str]) -> NamedGpus | None:
    """What the selectors name; None: they say something that is not understood, name two models or profiles, or ask for
    devices of other drivers than these."""
    models: set[str] = set()
    slices: set[str] = set()
    for part in (part.strip() for each in selectors for part in each.cel.expression.split("&&")):
        if found := _OF_DRIVER.fullmatch(part):
            if (found[1] or found[2]) not in drivers:
                return None
            continue
        of_attribute = _OF_ATTRIBUTE.fullmatch(part)
        if of_attribute is None:
            return None
        driver, attribute, value = (
            of_attribute[1] or of_attribute[2],
            of_attribute[3],
            of_attribute[4] or of_attribute[5],
        )
        if driver not in drivers:
            return None
        if attribute == MODEL and driver == DRIVER:
            models.add(value)
        elif attribute == "profile" or (attribute, value) == ("type", "mig"):
            slices.add(value.replace("+", ".") if attribute == "profile" else ANY_SLICE)
        elif (attribute, value) != ("type", "gpu"):
            return None
    profiles = slices - {ANY_SLICE} or slices
    if len(models) > 1 or len(profiles) > 1:
        return None
    return NamedGpus("".join(models), "".join(profiles))


def gpus_named_by(
    spec: ResourceClaimSpec,
    is_gpu: Callable[[str], bool],
    class_named: Callable[[str], DeviceClass | None],
    drivers: Collection[str],
) -> NamedGpus | None:
    """Which GPUs a claim names. None: it asks for something that Carrel does not understand. `drivers`: whose devices
    are counted."""
    devices = spec.devices
    wanted = [each for request in devices.requests for each in gpus_wanted(request, is_gpu)]
    if (
        devices.config
        or len(wanted) != len(devices.requests)
        or not all(_is_met(each, spec) for each in devices.constraints)
    ):
        return None
    named = {_named_by(each, class_named, drivers) for each in wanted}
    return named.pop() if len(named) == 1 else None


def _is_met(constraint: DeviceConstraint, spec: ResourceClaimSpec) -> bool:
    """Whether the GPUs that Carrel chooses are as the constraint says. They are different ones anyhow. The island is
    that of all GPUs of a claim; a single GPU may have none, and then Kubernetes does not give it."""
    if constraint.match_attribute != qualified(ISLAND):
        return constraint.distinct_attribute == qualified(UUID)
    requests = spec.devices.requests
    applies_to_all = not constraint.requests or {each.name for each in requests}.issubset(constraint.requests)
    exact = [each.exactly for each in requests]
    return applies_to_all and (len(requests) > 1 or any(each is not None and each.count > 1 for each in exact))


def _named_by(
    wanted: DeviceAlternative, class_named: Callable[[str], DeviceClass | None], drivers: Collection[str]
) -> NamedGpus | None:
    found = class_named(wanted.device_class_name)
    if found is None or found.spec.config or wanted.allocation_mode == ALL_DEVICES:
        return None
    return gpus_named([*found.spec.selectors, *wanted.selectors], drivers)
