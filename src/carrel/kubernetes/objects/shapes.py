"""What Carrel reads of each kind of object: read-only shapes, no data.

An adapter may decode into any class that has these attributes. A shape lists only what some decision, record or
message needs. Absent text is the empty string, an absent map or list is empty and an absent part has its own empty
values, so that no reader asks twice. Instants stay text: only `kubernetes.time` understands them.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol


class OwnerReference(Protocol):
    @property
    def api_version(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def controller(self) -> bool: ...


class Metadata(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def generate_name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def creation_timestamp(self) -> str: ...
    @property
    def deletion_timestamp(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def annotations(self) -> Mapping[str, str]: ...
    @property
    def finalizers(self) -> Sequence[str]: ...
    @property
    def owner_references(self) -> Sequence[OwnerReference]: ...


class Object(Protocol):
    """Any kind: what is known of an object of a resource that Carrel has no shape for."""

    @property
    def metadata(self) -> Metadata: ...


class Resources(Protocol):
    """Quantities as text, by resource name: `{"nvidia.com/gpu": "1"}`."""

    @property
    def limits(self) -> Mapping[str, str]: ...
    @property
    def requests(self) -> Mapping[str, str]: ...


class Container(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def restart_policy(self) -> str:
        """An init container with `Always` is a sidecar. On other containers it says nothing that matters here."""

    @property
    def resources(self) -> Resources: ...


class NodeRequirement(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def values(self) -> Sequence[str]: ...


class NodeTerm(Protocol):
    @property
    def match_expressions(self) -> Sequence[NodeRequirement]: ...
    @property
    def match_fields(self) -> Sequence[NodeRequirement]: ...


class RequiredNodes(Protocol):
    @property
    def node_selector_terms(self) -> Sequence[NodeTerm]: ...


class NodeAffinity(Protocol):
    @property
    def required_during_scheduling_ignored_during_execution(self) -> RequiredNodes: ...


class Affinity(Protocol):
    @property
    def node_affinity(self) -> NodeAffinity: ...


class Toleration(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def effect(self) -> str: ...


class SchedulingGate(Protocol):
    @property
    def name(self) -> str: ...


class PodSpec(Protocol):
    @property
    def node_name(self) -> str: ...
    @property
    def scheduling_gates(self) -> Sequence[SchedulingGate]:
        """Until the last of them is removed, no scheduler looks at the pod."""

    @property
    def scheduler_name(self) -> str: ...
    @property
    def service_account_name(self) -> str: ...
    @property
    def priority_class_name(self) -> str: ...
    @property
    def node_selector(self) -> Mapping[str, str]: ...
    @property
    def affinity(self) -> Affinity: ...
    @property
    def tolerations(self) -> Sequence[Toleration]: ...
    @property
    def termination_grace_period_seconds(self) -> int | None: ...
    @property
    def containers(self) -> Sequence[Container]: ...
    @property
    def init_containers(self) -> Sequence[Container]: ...


class Condition(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def last_transition_time(self) -> str: ...


class PodStatus(Protocol):
    @property
    def phase(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def start_time(self) -> str: ...
    @property
    def conditions(self) -> Sequence[Condition]: ...


class Pod(Protocol):
    @property
    def metadata(self) -> Metadata: ...
    @property
    def spec(self) -> PodSpec: ...
    @property
    def status(self) -> PodStatus: ...


class Address(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def address(self) -> str: ...


class Taint(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def effect(self) -> str: ...


class NodeSpec(Protocol):
    @property
    def unschedulable(self) -> bool: ...
    @property
    def taints(self) -> Sequence[Taint]: ...


class NodeInfo(Protocol):
    @property
    def kubelet_version(self) -> str: ...


class NodeStatus(Protocol):
    @property
    def node_info(self) -> NodeInfo: ...
    @property
    def capacity(self) -> Mapping[str, str]: ...
    @property
    def allocatable(self) -> Mapping[str, str]: ...
    @property
    def conditions(self) -> Sequence[Condition]: ...
    @property
    def addresses(self) -> Sequence[Address]: ...


class NodeObject(Protocol):
    """A Node of Kubernetes. The cards of a machine are `carrel.ledger.gpus.Node`."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def spec(self) -> NodeSpec: ...
    @property
    def status(self) -> NodeStatus: ...


class LeaseSpec(Protocol):
    @property
    def holder_identity(self) -> str: ...
    @property
    def lease_duration_seconds(self) -> int | None: ...
    @property
    def acquire_time(self) -> str: ...
    @property
    def renew_time(self) -> str: ...
    @property
    def lease_transitions(self) -> int: ...


class Lease(Protocol):
    @property
    def metadata(self) -> Metadata: ...
    @property
    def spec(self) -> LeaseSpec: ...


class NamespaceStatus(Protocol):
    @property
    def phase(self) -> str: ...


class Namespace(Protocol):
    @property
    def metadata(self) -> Metadata: ...
    @property
    def status(self) -> NamespaceStatus: ...


class ConfigMap(Protocol):
    @property
    def metadata(self) -> Metadata: ...
    @property
    def data(self) -> Mapping[str, str]: ...


class PriorityClass(Protocol):
    @property
    def metadata(self) -> Metadata: ...
    @property
    def value(self) -> int: ...
    @property
    def global_default(self) -> bool: ...


class InvolvedObject(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class EventObject(Protocol):
    """An Event of Kubernetes (a message about an object). A change on a watch is `carrel.kubernetes.cluster.Event`."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def involved_object(self) -> InvolvedObject: ...
    @property
    def type(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def last_timestamp(self) -> str: ...


class PodGroupSpec(Protocol):
    @property
    def min_member(self) -> int: ...


class PodGroup(Protocol):
    """KAI's word for a gang. It is named in the annotation of its pods."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def spec(self) -> PodGroupSpec: ...


class ClaimSelector(Protocol):
    @property
    def match_labels(self) -> Mapping[str, str]: ...


class ClaimDevices(Protocol):
    @property
    def count(self) -> int: ...
    @property
    def policy(self) -> str: ...
    @property
    def prefer_ids(self) -> Sequence[int]: ...
    @property
    def exclusivity(self) -> str: ...
    @property
    def memory_mib(self) -> int | None:
        """Carrel's own field, `memoryMiB`: a shared claim's part of each card."""


class ClaimTopology(Protocol):
    @property
    def mode(self) -> str: ...
    @property
    def min_bandwidth_gbps(self) -> int:
        """Spelled `minBandwidthGBps`."""


class GpuClaimSpec(Protocol):
    @property
    def selector(self) -> ClaimSelector: ...
    @property
    def devices(self) -> ClaimDevices: ...
    @property
    def topology(self) -> ClaimTopology: ...
    @property
    def gang_ref(self) -> str: ...
    @property
    def gang_size(self) -> int | None:
        """Carrel's own field, `gangSize`: how many pods the gang has."""


class GpuClaimStatus(Protocol):
    @property
    def phase(self) -> str: ...
    @property
    def node_name(self) -> str: ...
    @property
    def gpu_ids(self) -> Sequence[int]: ...
    @property
    def allocated(self) -> str: ...
    @property
    def message(self) -> str: ...
    @property
    def observed_generation(self) -> int: ...


class GpuClaim(Protocol):
    @property
    def metadata(self) -> Metadata: ...
    @property
    def spec(self) -> GpuClaimSpec: ...
    @property
    def status(self) -> GpuClaimStatus: ...


class Device(Protocol):
    """One card in a GpuNodeStatus. The last five are Carrel's own fields, absent where another agent wrote it."""

    @property
    def id(self) -> int: ...
    @property
    def in_use_by(self) -> Sequence[str]: ...
    @property
    def health(self) -> str: ...
    @property
    def bandwidth_gbps(self) -> int:
        """Spelled `bandwidthGBps`."""

    @property
    def island(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def memory_mib(self) -> int:
        """Spelled `memoryMiB`."""

    @property
    def reason(self) -> str:
        """Why the card is not healthy."""

    @property
    def numa_node(self) -> int | None: ...


class GpuNodeStatusSpec(Protocol):
    @property
    def node_name(self) -> str: ...


class GpuNodeStatusStatus(Protocol):
    @property
    def total(self) -> int: ...
    @property
    def devices(self) -> Sequence[Device]: ...
    @property
    def heartbeat(self) -> str:
        """Carrel's own field: when the agent last looked at its cards."""

    @property
    def mode(self) -> str:
        """Carrel's own field: `native` (also if absent), or `coexist` where NVIDIA's plugin hands the cards over."""

    @property
    def memory_unit(self) -> str:
        """Carrel's own field: what one unit of gpushare's memory is there; empty where it is not offered."""


class GpuNodeStatus(Protocol):
    @property
    def metadata(self) -> Metadata: ...
    @property
    def spec(self) -> GpuNodeStatusSpec: ...
    @property
    def status(self) -> GpuNodeStatusStatus: ...
