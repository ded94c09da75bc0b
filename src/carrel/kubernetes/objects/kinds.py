"""What Carrel reads of each of Kubernetes' own kinds, as msgspec Structs. Lists and watches are decoded into them.

A class lists only what some decision, record or message needs. The decoder skips all other fields, and they never
become Python objects: a pod costs about 4 kB instead of 100. Absent text is the empty string, an absent map or list is
empty and an absent part has its own empty values, so that no reader asks twice. Instants stay text: only
`parsing.time` understands them. Nothing writes to these objects. The garbage collector does not track them
(`gc=False`), which is safe because they never refer to each other in a circle.
"""

import msgspec

from carrel.ids import NO_NODE, NO_POD, NodeName, PodUid


class ObjectPart(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """Any part of an object, with Kubernetes' spelling of the fields: `node_name` is `nodeName`."""


class OwnerReference(ObjectPart):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(ObjectPart):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Object(ObjectPart):
    """Any kind. An object of a kind that has no class of its own is read as this."""

    metadata: Metadata = msgspec.field(default_factory=Metadata)


class Resources(ObjectPart):
    """Quantities as text, by resource name: `{"nvidia.com/gpu": "1"}`."""

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


_NO_RESOURCES = Resources()
"""Shared by the many pods that ask for nothing besides what their containers ask for."""


class Container(ObjectPart):
    name: str = ""
    restart_policy: str = ""
    """An init container with `Always` is a sidecar. On other containers it says nothing that matters here."""
    resources: Resources = msgspec.field(default_factory=Resources)


class NodeRequirement(ObjectPart):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(ObjectPart):
    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class RequiredNodes(ObjectPart):
    node_selector_terms: tuple[NodeTerm, ...] = ()


class Preference(ObjectPart):
    """A wish that kube-scheduler weighs against others. What it is about, only kube-scheduler needs to know."""

    weight: int = 0


class NodeAffinity(ObjectPart):
    required_during_scheduling_ignored_during_execution: RequiredNodes = msgspec.field(default_factory=RequiredNodes)
    preferred_during_scheduling_ignored_during_execution: tuple[Preference, ...] = ()


class PodAffinity(ObjectPart):
    preferred_during_scheduling_ignored_during_execution: tuple[Preference, ...] = ()


_NO_POD_AFFINITY = PodAffinity()


class Affinity(ObjectPart):
    node_affinity: NodeAffinity = msgspec.field(default_factory=NodeAffinity)
    pod_affinity: PodAffinity = msgspec.field(default_factory=lambda: _NO_POD_AFFINITY)
    pod_anti_affinity: PodAffinity = msgspec.field(default_factory=lambda: _NO_POD_AFFINITY)


class SpreadConstraint(ObjectPart):
    when_unsatisfiable: str = ""
    """`ScheduleAnyway`: a preference; `DoNotSchedule`: a demand."""


_NO_AFFINITY = Affinity()
"""Shared by the many pods that have none."""


class Toleration(ObjectPart):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class SchedulingGate(ObjectPart):
    name: str = ""


class SchedulingGroup(ObjectPart):
    pod_group_name: str = ""
    """Kubernetes' own PodGroup, of the pod's namespace."""


_NO_GROUP = SchedulingGroup()
"""Shared by the many pods that have none."""


class PodClaim(ObjectPart):
    """A ResourceClaim that a pod uses: one that exists, or one that is made for it by a template."""

    name: str = ""
    """Within the pod."""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodMetadata(Metadata):
    uid: PodUid = NO_POD


class PodSpec(ObjectPart):
    node_name: NodeName = NO_NODE
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    """Until the last of them is removed, no scheduler looks at the pod."""
    scheduling_group: SchedulingGroup = msgspec.field(default_factory=lambda: _NO_GROUP)
    scheduler_name: str = ""
    service_account_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity = msgspec.field(default_factory=lambda: _NO_AFFINITY)
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: Resources = msgspec.field(default_factory=lambda: _NO_RESOURCES)
    """Of the pod as a whole: a request here replaces the sum of its containers."""
    overhead: dict[str, str] = {}
    """What its RuntimeClass adds."""
    resource_claims: tuple[PodClaim, ...] = ()


class Condition(ObjectPart):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class ExtendedRequest(ObjectPart):
    """A resource of a container that a claim stands for."""

    resource_name: str = ""


class MadeClaim(ObjectPart):
    """The ResourceClaim that was made for a pod."""

    name: str = ""
    """As the pod calls it; empty: the scheduler made it for an extended resource."""
    resource_claim_name: str = ""
    request_mappings: tuple[ExtendedRequest, ...] = ()
    """Of a claim for extended resources."""


class PodStatus(ObjectPart):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str = ""
    conditions: tuple[Condition, ...] = ()
    resource_claim_statuses: tuple[MadeClaim, ...] = ()
    extended_resource_claim_status: MadeClaim | None = None


class Pod(Object):
    metadata: PodMetadata = msgspec.field(default_factory=PodMetadata)
    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class Taint(ObjectPart):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeMetadata(Metadata):
    name: NodeName = NO_NODE


class NodeSpec(ObjectPart):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(ObjectPart):
    type: str = ""
    address: str = ""


class NodeInfo(ObjectPart):
    kubelet_version: str = ""
    container_runtime_version: str = ""
    """As `containerd://2.2.1`."""


class NodeStatus(ObjectPart):
    node_info: NodeInfo = msgspec.field(default_factory=NodeInfo)
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class NodeObject(Object):
    """A Node of Kubernetes. The GPUs of a machine are `carrel.ledger.gpus.Node`."""

    metadata: NodeMetadata = msgspec.field(default_factory=NodeMetadata)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class RuntimeClass(Object):
    handler: str = ""
    """What the container runtime of a node calls it."""


class LeaseSpec(ObjectPart):
    holder_identity: str = ""
    lease_transitions: int = 0


class Lease(Object):
    spec: LeaseSpec = msgspec.field(default_factory=LeaseSpec)


class NamespaceStatus(ObjectPart):
    phase: str = ""


class Namespace(Object):
    status: NamespaceStatus = msgspec.field(default_factory=NamespaceStatus)


class ConfigMap(Object):
    data: dict[str, str] = {}


class PriorityClass(Object):
    value: int = 0
    global_default: bool = False


class InvolvedObject(ObjectPart):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""


class EventObject(Object):
    """An Event of Kubernetes: a message about an object. A change on a watch is `kubernetes.cluster.WatchEvent`."""

    involved_object: InvolvedObject = msgspec.field(default_factory=InvolvedObject)
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    last_timestamp: str = ""


class ListMetadata(ObjectPart):
    """Of a list, and of a bookmark on a watch."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")
