"""What lists and watches decode into: small Structs that keep only what Carrel reads (`kubernetes.objects.shapes`).

Fields that Carrel does not read are skipped by the decoder and never become Python objects: a pod costs about 4 kB
instead of 100. Views are out of the garbage collector's sight (`gc=False`), which is safe because they never refer
to each other in a circle. They are read-only by convention; nothing in Carrel writes to one.

A view never makes a list fail: an object that does not fit (a null where text belongs, a custom resource written
before its schema) is read again without its nulls and, if that does not help, by its metadata alone, with a warning.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from carrel.kubernetes.objects import shapes
from carrel.kubernetes.objects.resources import (
    CONFIG_MAPS,
    EVENTS,
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NAMESPACES,
    NODES,
    POD_GROUPS,
    PODS,
    PRIORITY_CLASSES,
    Resource,
)

V = TypeVar("V")

log = logging.getLogger(__name__)


class View(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """Absent text is empty, an absent map or list is empty, an absent part has its own empty values."""


class OwnerReference(View):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(View):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Object(View):
    """Any kind that Carrel has no shape for."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)


class Resources(View):
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class Container(View):
    name: str = ""
    restart_policy: str = ""
    resources: Resources = msgspec.field(default_factory=Resources)


class NodeRequirement(View):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(View):
    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class RequiredNodes(View):
    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(View):
    required_during_scheduling_ignored_during_execution: RequiredNodes = msgspec.field(default_factory=RequiredNodes)


class Affinity(View):
    node_affinity: NodeAffinity = msgspec.field(default_factory=NodeAffinity)


_NO_AFFINITY = Affinity()
"""Shared by the many pods that have none."""


class Toleration(View):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class SchedulingGate(View):
    name: str = ""


class PodSpec(View):
    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduler_name: str = ""
    service_account_name: str = ""
    priority_class_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity = msgspec.field(default_factory=lambda: _NO_AFFINITY)
    tolerations: tuple[Toleration, ...] = ()
    termination_grace_period_seconds: int | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class Condition(View):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class PodStatus(View):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    conditions: tuple[Condition, ...] = ()


class Pod(Object):
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Taint(View):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(View):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class Address(View):
    type: str = ""
    address: str = ""


class NodeInfo(View):
    kubelet_version: str = ""


class NodeStatus(View):
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[Address, ...] = ()


class Node(Object):
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class LeaseSpec(View):
    holder_identity: str = ""
    lease_duration_seconds: int | None = None
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int = 0


class Lease(Object):
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class NamespaceStatus(View):
    phase: str = ""


class Namespace(Object):
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


class ConfigMap(Object):
    data: dict[str, str] = {}


class PriorityClass(Object):
    value: int = 0
    global_default: bool = False


class InvolvedObject(View):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class Event(Object):
    involved_object: InvolvedObject = msgspec.field(default_factory=InvolvedObject)
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    last_timestamp: str = ""


class PodGroupSpec(View):
    min_member: int = 0


class PodGroup(Object):
    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


class ClaimSelector(View):
    match_labels: dict[str, str] = {}


class ClaimDevices(View):
    count: int = 0
    policy: str = ""
    prefer_ids: tuple[int, ...] = ()
    exclusivity: str = ""
    memory_mib: int | None = msgspec.field(default=None, name="memoryMiB")


class ClaimTopology(View):
    mode: str = ""
    min_bandwidth_gbps: int = msgspec.field(default=0, name="minBandwidthGBps")


class GpuClaimSpec(View):
    selector: ClaimSelector = msgspec.field(default_factory=ClaimSelector)
    devices: ClaimDevices = msgspec.field(default_factory=ClaimDevices)
    topology: ClaimTopology = msgspec.field(default_factory=ClaimTopology)
    gang_ref: str = ""
    gang_size: int | None = None


class GpuClaimStatus(View):
    phase: str = ""
    node_name: str = ""
    gpu_ids: tuple[int, ...] = ()
    allocated: str = ""
    message: str = ""
    observed_generation: int = 0


class GpuClaim(Object):
    spec: GpuClaimSpec = msgspec.field(default_factory=GpuClaimSpec)
    status: GpuClaimStatus = msgspec.field(default_factory=GpuClaimStatus)


class Device(View):
    id: int = 0
    in_use_by: tuple[str, ...] = ()
    health: str = ""
    bandwidth_gbps: int = msgspec.field(default=0, name="bandwidthGBps")
    island: str = ""
    uuid: str = ""
    model: str = ""
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    reason: str = ""
    numa_node: int | None = None


class GpuNodeStatusSpec(View):
    node_name: str = ""


class GpuNodeStatusStatus(View):
    total: int = 0
    devices: tuple[Device, ...] = ()
    heartbeat: str = ""
    mode: str = ""
    memory_unit: str = ""


class GpuNodeStatus(Object):
    spec: GpuNodeStatusSpec = msgspec.field(default_factory=GpuNodeStatusSpec)
    status: GpuNodeStatusStatus = msgspec.field(default_factory=GpuNodeStatusStatus)


class ListMetadata(View):
    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, rename="camel"):
    """One page, its objects not yet read."""

    metadata: ListMetadata = msgspec.field(default_factory=ListMetadata)
    items: list[msgspec.Raw] | None = None


_VIEWS: Mapping[Resource[Any], type[Object]] = {
    PODS: Pod,
    NODES: Node,
    LEASES: Lease,
    NAMESPACES: Namespace,
    CONFIG_MAPS: ConfigMap,
    EVENTS: Event,
    PRIORITY_CLASSES: PriorityClass,
    POD_GROUPS: PodGroup,
    GPU_CLAIMS: GpuClaim,
    GPU_NODE_STATUSES: GpuNodeStatus,
}

_list_reader = msgspec.json.Decoder(_List)


@cache
def reader_of(resource: Resource[V]) -> Callable[[bytes | msgspec.Raw], V]:
    """Reads one object of the kind from its JSON. Raises `msgspec.DecodeError` only if it is not JSON at all."""
    view = _VIEWS.get(resource, Object)
    decode = msgspec.json.Decoder(view).decode

    def read(body: bytes | msgspec.Raw) -> V:
        try:
            return cast("V", decode(body))
        except msgspec.ValidationError as mismatch:
            return cast("V", _read_leniently(view, body, mismatch))

    return read


def read_strictly(resource: Resource[V], document: Any) -> V:
    """One object from decoded JSON. Raises `msgspec.ValidationError` where it does not fit; nulls count as absent."""
    return cast("V", msgspec.convert(_without_nulls(document), _VIEWS.get(resource, Object)))


def read_list(resource: Resource[V], body: bytes) -> tuple[ListMetadata, Sequence[V]]:
    page = _list_reader.decode(body)
    read = reader_of(resource)
    return page.metadata, [read(item) for item in page.items or ()]


def _read_leniently(view: type[Object], body: bytes | msgspec.Raw, mismatch: msgspec.ValidationError) -> Object:
    document = msgspec.json.decode(body)
    try:
        return msgspec.convert(_without_nulls(document), view)
    except msgspec.ValidationError:
        metadata = msgspec.convert(_without_nulls(document.get("metadata", {})), Metadata)
        log.warning("object_unreadable kind=%s %s/%s: %s", view.__name__, metadata.namespace, metadata.name, mismatch)
        return view(metadata=metadata)


def _without_nulls(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _without_nulls(value) for key, value in document.items() if value is not None}
    if isinstance(document, list):
        return [_without_nulls(item) for item in document if item is not None]
    return document


if TYPE_CHECKING:
    # The type checker proves here that each view has its shape.
    _pod: shapes.Pod = Pod()
    _node: shapes.NodeObject = Node()
    _lease: shapes.Lease = Lease()
    _namespace: shapes.Namespace = Namespace()
    _config_map: shapes.ConfigMap = ConfigMap()
    _event: shapes.EventObject = Event()
    _priority_class: shapes.PriorityClass = PriorityClass()
    _pod_group: shapes.PodGroup = PodGroup()
    _claim: shapes.GpuClaim = GpuClaim()
    _node_status: shapes.GpuNodeStatus = GpuNodeStatus()
    _object: shapes.Object = Object()
