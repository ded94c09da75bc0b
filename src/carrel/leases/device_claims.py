"""What one process knows of Dynamic Resource Allocation: claims, templates, classes and slices.

Only where the cluster's admin has enabled it (`--dra`): the caches cost memory, and old clusters lack the kinds.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from carrel.dialects import dra
from carrel.dialects.dra import CLASSES, DevicePlace
from carrel.dialects.registry import dialects_of
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resource_claims import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
)
from carrel.kubernetes.objects.resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from carrel.kubernetes.reflector import Reflector
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request

POOL_OF = "pool"
NOT_DIVIDED = Refusal(
    "it names an amount of memory, and claims get whole GPUs in this cluster: its API server drops the amount (the"
    " feature gate DRAConsumableCapacity is off, as it is by default before Kubernetes 1.36); leave out capacity"
)


class AskedClaim(NamedTuple):
    """A claim that a pod names, and what is known of it."""

    name: str
    """Within the pod."""
    source: str
    """The claim or the template, for messages."""
    spec: ResourceClaimSpec | None
    """None: it does not exist yet."""


class DeviceClaims:
    def __init__(self, informers: Informers, drivers: Sequence[str] = (dra.DRIVER,)) -> None:
        self.drivers = tuple(drivers)
        """Whose devices are counted."""
        self.claims: Reflector[ResourceClaim] = informers.watch(RESOURCE_CLAIMS, optional=True)
        self.templates: Reflector[ResourceClaimTemplate] = informers.watch(RESOURCE_CLAIM_TEMPLATES, optional=True)
        self.classes: Reflector[DeviceClass] = informers.watch(DEVICE_CLASSES, optional=True)
        self.slices: Reflector[ResourceSlice] = informers.watch(
            RESOURCE_SLICES,
            indexes={POOL_OF: lambda each: [_pool_key(each.spec.driver, each.spec.pool.name)]},
            optional=True,
        )

    # --- devices -----------------------------------------------------------------------------------------------------

    def uuid_of(self, place: DevicePlace, attribute: str = dra.UUID) -> str:
        """The GPU that a device is; empty: no slice says it. While a pool is replaced, the newest slices count."""
        found = self.slices.store.find(POOL_OF, _pool_key(place.driver, place.pool))
        newest = max((each.spec.pool.generation for each in found), default=0)
        current = [each for each in found if each.spec.pool.generation == newest]
        return next((uuid for each in current if (uuid := dra.uuids_in(each, attribute).get(place))), "")

    def why_not_divided(self, spec: ResourceClaimSpec) -> Refusal | None:
        """Why a claim gets no part of a GPU: the API server keeps neither the amount that it names, nor that the GPUs
        of a slice can be divided. None: it can be had, or it cannot be said, because no slice is there yet."""
        ours = [each for each in self.slices.store.snapshot() if each.spec.driver == dra.DRIVER and each.spec.devices]
        if not ours or any(device.allow_multiple_allocations for each in ours for device in each.spec.devices):
            return None
        return NOT_DIVIDED if dra.names_memory(spec, self._is_gpu_class) else None

    # --- what pods ask for -------------------------------------------------------------------------------------------

    def request_of(self, pod: Pod) -> Request | None:
        """The GPUs that the pod asks for by claims which exist, for people and for limits; None: none. Raises
        `Malformed`."""
        asked = [request for each in self.asked_by(pod) if (request := self._request(each, pod)) is not None]
        if not asked:
            return None
        first = asked[0]
        return Request(sum(each.cards for each in asked), first.amount, topology=first.topology)

    def why_twice(self, pod: Pod) -> Refusal | None:
        """Why a pod that has claims for GPUs may not ask in another dialect too: each would be promised its own GPU."""
        others = dialects_of(pod) if pod.spec.resource_claims else ()
        if not others:
            return None
        claims = [each.source for each in self.asked_by(pod) if self._request(each, pod) is not None]
        if not claims:
            return None
        words = " and ".join([*(each.words for each in others), ", ".join(claims)])
        return Refusal(f"{subject(pod.metadata)} asks for GPUs in {len(others) + 1} ways: {words}; keep one of them")

    def asked_by(self, pod: Pod) -> Iterator[AskedClaim]:
        namespace = pod.metadata.namespace
        for each in pod.spec.resource_claims:
            if name := each.resource_claim_name:
                claim = self.claims.store.get(name, namespace)
                yield AskedClaim(each.name, f"ResourceClaim {name}", claim.spec if claim else None)
            elif name := each.resource_claim_template_name:
                template = self.templates.store.get(name, namespace)
                yield AskedClaim(each.name, f"ResourceClaimTemplate {name}", template.spec.spec if template else None)

    def _request(self, asked: AskedClaim, pod: Pod) -> Request | None:
        if asked.spec is None:
            return None
        return dra.request_of_claim(asked.spec, f"{asked.source} of {subject(pod.metadata)}", self._is_gpu_class)

    def _is_gpu_class(self, name: str) -> bool:
        """Also of a driver whose devices are not counted: its GPU would be promised beside ours."""
        return dra.is_gpu_class(name, self.classes.store.get(name), CLASSES)


def _pool_key(driver: str, pool: str) -> str:
    return f"{driver}/{pool}"
