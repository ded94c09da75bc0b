"""What one process knows of Dynamic Resource Allocation: claims, templates, classes and slices.

Only where the configuration enables it (`resourceClaims`): the caches cost memory, and old clusters lack the kinds.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from carrel.dialects.gpu_lease import read_lease_name
from carrel.dialects.interface import ClaimedGpus
from carrel.dialects.registry import ALL, asked_in_ways, dialects_of
from carrel.ids import NO_GPU, NO_NODE, GpuUuid, HolderId, NodeName
from carrel.kubernetes.cluster import Cluster, NotFound
from carrel.kubernetes.objects.kinds import Object, Pod
from carrel.kubernetes.objects.pods import (
    CLASS_RESOURCE,
    extended_resources,
    resource_asked,
    resources_by_claim,
    subject,
)
from carrel.kubernetes.objects.resources import Resource
from carrel.kubernetes.reflector import Informers, Reflector
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import Request
from carrel.parsing import Malformed
from carrel.resource_claims import dra
from carrel.resource_claims.allocation.allocation_words import nodes_named
from carrel.resource_claims.dra import CLASSES, DevicePlace, NamedGpus, gpus_named_by
from carrel.resource_claims.objects import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Allocation,
    DeviceClass,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
)
from carrel.resource_claims.shadows import shadow_words as dra_shadows
from carrel.resource_claims.shadows.shadow_words import AdvertisedDevice

NOT_DIVIDED = Refusal(
    "it names an amount of memory, and claims get whole GPUs in this cluster: its API server drops the amount (the"
    " feature gate DRAConsumableCapacity is off, as it is by default before Kubernetes 1.36); leave out capacity"
)
MOST_LOOKED_UP = 500
"""Objects that were read before the watch showed them, and sets of nodes, that are remembered."""
T = TypeVar("T", bound=Object)
POOL_OF, NODE_OF, USED_BY, SHADOWS_ON, RESOURCE_OF = "pool", "node", "used by", "shadows", "resource"
NOWHERE = NodeName("-")
"""The node of a shadow claim that names none; no node can have this name."""


class AskedClaim(NamedTuple):
    """A claim that a pod names, and what is known of it."""

    name: str
    """Within the pod; or the resource for which a scheduler makes the claim."""
    source: str
    """The claim, the template or the resource, for messages."""
    spec: ResourceClaimSpec | None
    """None: it does not exist yet."""
    claim: ResourceClaim | None = None
    """The claim itself, once there is one."""

    @property
    def is_allocated(self) -> bool:
        return self.claim is not None and self.claim.status.allocation is not None


class DeviceClaims:
    def __init__(
        self, informers: Informers, drivers: Sequence[str] = (dra.DRIVER,), own_namespace: str = "carrel"
    ) -> None:
        self.drivers = tuple(drivers)
        """Whose devices are counted."""
        self._own_namespace = own_namespace
        self.claims: Reflector[ResourceClaim] = informers.watch(
            RESOURCE_CLAIMS,
            indexes={
                USED_BY: lambda each: [user.uid for user in each.status.reserved_for if user.is_pod],
                SHADOWS_ON: lambda each: filter(None, [self.shadowed_node(each)]),
            },
            optional=True,
        )
        self.templates: Reflector[ResourceClaimTemplate] = informers.watch(RESOURCE_CLAIM_TEMPLATES, optional=True)
        self.classes: Reflector[DeviceClass] = informers.watch(
            DEVICE_CLASSES, indexes={RESOURCE_OF: lambda each: [each.spec.extended_resource_name]}, optional=True
        )
        self.slices: Reflector[ResourceSlice] = informers.watch(
            RESOURCE_SLICES,
            indexes={
                POOL_OF: lambda each: [_pool_key(each.spec.driver, each.spec.pool.name)],
                NODE_OF: lambda each: [each.spec.node_name],
            },
            optional=True,
        )

        self._looked_up: dict[tuple[str, str, str], Object] = {}  # what the watch had not shown yet
        self.claims.on_change(partial(self._forget_early, RESOURCE_CLAIMS.kind))
        self.templates.on_change(partial(self._forget_early, RESOURCE_CLAIM_TEMPLATES.kind))
        self._on_slices: dict[int, tuple[tuple[NodeName, ...], tuple[NodeName, ...]]] = {}
        self._uuids: dict[tuple[DevicePlace, str], GpuUuid] = {}  # of devices in current slices, by attribute
        self.slices.on_change(self._on_slice)

    # --- devices -----------------------------------------------------------------------------------------------------

    def uuid_of(self, place: DevicePlace, attribute: str = dra.UUID) -> GpuUuid:
        """The GPU that a device is; empty: no slice says it. While a pool is replaced, the newest slices count."""
        if known := self._uuids.get((place, attribute)):
            return known
        found = self.slices.store.find(POOL_OF, _pool_key(place.driver, place.pool))
        newest = max((each.spec.pool.generation for each in found), default=0)
        for each in found:
            if each.spec.pool.generation == newest:
                for device, uuid in dra.uuids_in(each, attribute).items():
                    self._uuids.setdefault((device, attribute), uuid)
        return self._uuids.get((place, attribute), NO_GPU)

    def _on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        self._on_slices.clear()
        self._uuids.clear()

    def why_not_divided(self, spec: ResourceClaimSpec) -> Refusal | None:
        """Why a claim gets no part of a GPU: the API server keeps neither the amount that it names, nor that the GPUs
        of a slice can be divided. None: it can be had, or it cannot be said, because no slice is there yet."""
        ours = [each for each in self.slices.store if each.spec.driver == dra.DRIVER and each.spec.devices]
        if not ours or any(device.allow_multiple_allocations for each in ours for device in each.spec.devices):
            return None
        return NOT_DIVIDED if dra.names_memory(spec, self.is_gpu_class) else None

    def with_slices(self, nodes: tuple[NodeName, ...]) -> tuple[NodeName, ...]:
        """Those nodes that advertise GPUs by claims; the same object for the same nodes, until a slice changes."""
        known = self._on_slices.get(id(nodes))
        if known is None or known[0] is not nodes:
            if len(self._on_slices) >= MOST_LOOKED_UP:
                self._on_slices.clear()
            advertising = {each.spec.node_name for each in self.slices.store if each.spec.driver in self.drivers}
            known = self._on_slices[id(nodes)] = (nodes, tuple(node for node in nodes if node in advertising))
        return known[1]

    def within_reach(
        self, pod: Pod, nodes: tuple[NodeName, ...], gpus_on: Callable[[HolderId], Collection[NodeName]]
    ) -> tuple[NodeName, ...]:
        """Those of the nodes where the devices that claims of the pod have already can be used. `gpus_on`: the nodes of
        the GPUs that the claim of that uid holds."""
        for claim in filter(None, (each.claim for each in self.asked_by(pod))):
            allocation = claim.status.allocation
            allowed = gpus_on(claim.metadata.uid) or (nodes_named(allocation) if allocation is not None else ())
            if allowed:
                nodes = tuple(node for node in nodes if node in allowed)
        return nodes

    def devices_on(self, node: NodeName) -> dict[GpuUuid, AdvertisedDevice]:
        """The devices that slices advertise there, by the UUID of their GPU; of drivers that are counted."""
        return {
            each.uuid: each
            for found in self.slices.store.find(NODE_OF, node)
            if found.spec.driver in self.drivers
            for each in dra_shadows.advertised(found)
            if self.uuid_of(each.place) == each.uuid  # else a newer slice replaces it
        }

    # --- shadow claims -----------------------------------------------------------------------------------------------

    def is_shadow(self, claim: ResourceClaim) -> bool:
        return dra_shadows.is_shadow(claim, self._own_namespace)

    def shadowed_node(self, claim: ResourceClaim) -> NodeName:
        """The node of a shadow claim; empty: it is none. One that does not say it readably has none of the others."""
        if not self.is_shadow(claim):
            return NO_NODE
        place = read_lease_name(dra_shadows.lease_of(claim))
        return place[0] if place is not None else NOWHERE

    def shadows_on(self, node: NodeName) -> Sequence[ResourceClaim]:
        return self.claims.store.find(SHADOWS_ON, node)

    # --- what pods ask for -------------------------------------------------------------------------------------------

    def request_of(self, pod: Pod) -> Request | None:
        """The GPUs that the pod asks for by claims which exist, for people and for limits; None: none. Raises
        `Malformed`."""
        return self._requested(pod, self.asked_by(pod))

    def wanted_by(self, pod: Pod, holds_gpus: Callable[[HolderId], bool]) -> Request | None:
        """Return what a pod waits for: by the claims that have no GPUs yet. `holds_gpus`: whether Leases name the
        claim of that uid; then its allocation is about to be written."""
        claims = [each for each in self.asked_by(pod) if not each.is_allocated]
        waiting = [each for each in claims if each.claim is None or not holds_gpus(each.claim.metadata.uid)]
        return self._requested(pod, waiting)

    def may_be_asked_by(self, pod: Pod) -> bool:
        """Whether the pod names claims, or a resource for which a scheduler may make one: few pods of a cluster do."""
        return bool(pod.spec.resource_claims) or not all(map(ALL.is_resource, extended_resources(pod)))

    def gpu_claims_of(self, pod: Pod) -> Sequence[AskedClaim]:
        """The claims of the pod that are for GPUs. Raises `Malformed`."""
        return [each for each in self.asked_by(pod) if self._request(each, pod) is not None]

    def claimed_by(self, pod: Pod) -> ClaimedGpus:
        """Return what it has by all its claims: also by one with GPUs whose class is gone. Raises `Malformed`."""
        claims = [each for each in self.asked_by(pod) if self._has_gpus(each) or self._request(each, pod) is not None]
        return ClaimedGpus(frozenset(each.name for each in claims), self._requested(pod, claims))

    async def look_up(self, pod: Pod, cluster: Cluster) -> None:
        """Reads the claims and templates that the pod names and that the watch has not shown yet. Raises
        `ClusterError`."""
        namespace = pod.metadata.namespace
        for each in pod.spec.resource_claims:
            name = each.resource_claim_name or each.resource_claim_template_name
            resource = RESOURCE_CLAIMS if each.resource_claim_name else RESOURCE_CLAIM_TEMPLATES
            store = self.claims.store if each.resource_claim_name else self.templates.store
            if not name or store.get(name, namespace) is not None:
                continue
            self._looked_up.pop((resource.kind, namespace, name), None)
            with suppress(NotFound, msgspec.ValidationError):
                found = msgspec.convert(await cluster.get(resource, name, namespace), resource.object_type)
                if len(self._looked_up) >= MOST_LOOKED_UP:
                    self._looked_up.clear()
                self._looked_up[resource.kind, namespace, name] = found

    def _forget_early(self, kind: str, old: Object | None, new: Object | None) -> None:
        if (shown := new or old) is not None:
            self._looked_up.pop((kind, shown.metadata.namespace, shown.metadata.name), None)

    def _requested(self, pod: Pod, claims: Iterable[AskedClaim]) -> Request | None:
        asked = [request for each in claims if (request := self._request(each, pod)) is not None]
        if not asked:
            return None
        models, slices = {each.model for each in asked}, {each.slices for each in asked}
        amount, topology = dra.largest([each.amount for each in asked]), asked[0].topology
        return Request(
            sum(each.gpus for each in asked),
            amount,
            min(models) if len(models) == 1 else "",
            topology=topology,
            slices=min(slices) if len(slices) == 1 else "",
        )

    def why_unknown(self, pod: Pod) -> str:
        """Say which claim or template of the pod is not there yet; empty: it asks for no more than is known."""
        missing = [each.source for each in self.asked_by(pod) if each.spec is None]
        return f"{' and '.join(missing)} of {subject(pod.metadata)} is not known yet" if missing else ""

    def why_twice(self, pod: Pod) -> Refusal | None:
        """Why a pod that has claims for GPUs may not ask in another dialect too: each would be promised its own GPU."""
        others = dialects_of(pod)
        if not others:
            return None
        claims = [each.source for each in self.asked_by(pod) if self._request(each, pod) is not None]
        if not claims:
            return None
        return asked_in_ways(pod, [*(each.words for each in others), ", ".join(claims)])

    def asked_by(self, pod: Pod) -> Iterator[AskedClaim]:
        namespace = pod.metadata.namespace
        for each in pod.spec.resource_claims:
            if name := each.resource_claim_name:
                claim = self.claims.store.get(name, namespace) or self._early(RESOURCE_CLAIMS, namespace, name)
                yield AskedClaim(each.name, f"ResourceClaim {name}", claim.spec if claim else None, claim)
            elif name := each.resource_claim_template_name:
                template = self.templates.store.get(name, namespace)
                template = template or self._early(RESOURCE_CLAIM_TEMPLATES, namespace, name)
                made = self._made(each.name, pod)
                spec = made.spec if made else template.spec.spec if template else None
                yield AskedClaim(each.name, f"ResourceClaimTemplate {name}", spec, made)
        # Those of dialects are asked for in them.
        for word in sorted(word for word in extended_resources(pod) if not ALL.is_resource(word)):
            yield from self._asked_by_resource(pod, word)

    def _asked_by_resource(self, pod: Pod, word: str) -> Iterator[AskedClaim]:
        """What a pod asks for by a resource for which a scheduler makes a ResourceClaim."""
        named = word.removeprefix(CLASS_RESOURCE)
        classes = (
            [named] if named != word else [each.metadata.name for each in self.classes.store.find(RESOURCE_OF, word)]
        )
        chosen = next(filter(self.is_gpu_class, classes), "")
        with suppress(Malformed):  # of such an amount no scheduler makes a claim either
            if (count := resource_asked(pod, word).total) and (chosen or word in resources_by_claim(pod)):
                made = self._made_for_resources(pod)
                yield AskedClaim(word, f"resource {word}", dra.spec_of_resource(chosen, count), made)

    def _early(self, resource: Resource[T], namespace: str, name: str) -> T | None:
        found = self._looked_up.get((resource.kind, namespace, name))
        return found if isinstance(found, resource.object_type) else None

    def _made(self, name: str, pod: Pod) -> ResourceClaim | None:
        """The claim that was made for the pod by a template."""
        made = next((each.resource_claim_name for each in pod.status.resource_claim_statuses if each.name == name), "")
        return self.claims.store.get(made, pod.metadata.namespace) if made else None

    def _made_for_resources(self, pod: Pod) -> ResourceClaim | None:
        """The claim that a scheduler made for the pod's resources; the pod's status names it a moment later."""
        if (made := pod.status.extended_resource_claim_status) is not None:
            return self.claims.store.get(made.resource_claim_name, pod.metadata.namespace)
        used = self.claims.store.find(USED_BY, pod.metadata.uid)
        return next(filter(dra.is_for_extended_resource, used), None)

    def _request(self, asked: AskedClaim, pod: Pod) -> Request | None:
        if asked.spec is None:
            return None
        where = f"{asked.source} of {subject(pod.metadata)}"
        request = dra.request_of_claim(asked.spec, where, self.is_gpu_class)
        named = self._named_by(asked.spec) if request is not None else None
        return replace(request, model=named.model, slices=named.slices) if request and named and any(named) else request

    def _has_gpus(self, asked: AskedClaim) -> bool:
        return asked.claim is not None and bool(dra.allocated(asked.claim, self.drivers))

    def is_understood(self, pod: Pod) -> bool:
        """Whether Carrel knows which GPUs would do for the claims of the pod that wait, and on which nodes."""
        if any(nodes_named(each) is None for each in self._allocations_of(pod)):
            return False
        waiting = [each.spec for each in self.gpu_claims_of(pod) if each.spec is not None and not each.is_allocated]
        if len(waiting) > 1 and any(spec.devices.constraints for spec in waiting):
            return False  # one request for all of them cannot say which of the GPUs belong together
        return all(self._named_by(spec) is not None for spec in waiting)

    def _allocations_of(self, pod: Pod) -> Iterator[Allocation]:
        for each in self.asked_by(pod):
            if each.claim is not None and each.claim.status.allocation is not None:
                yield each.claim.status.allocation

    def _named_by(self, spec: ResourceClaimSpec) -> NamedGpus | None:
        return gpus_named_by(spec, self.is_gpu_class, self.classes.store.get, self.drivers)

    def is_gpu_class(self, name: str) -> bool:
        """Also of a driver whose devices are not counted: its GPU would be promised beside ours."""
        return dra.is_gpu_class(name, self.classes.store.get(name), CLASSES)


def _pool_key(driver: str, pool: str) -> str:
    return f"{driver}/{pool}"
