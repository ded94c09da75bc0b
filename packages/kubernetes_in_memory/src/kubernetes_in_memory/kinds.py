"""The kinds that the embedded API serves: the built-in ones as a table, and whatever CRDs add.

A kind is served under one group and version; several versions of one custom resource share their storage.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
CREATE_ONLY = ("create",)


@dataclass(frozen=True, slots=True)
class Subresource:
    verbs: tuple[str, ...]
    group: str = ""
    version: str = ""
    kind: str = ""
    """What is sent there; empty: the object itself."""


SUBRESOURCES = {
    "status": Subresource(("get", "patch", "update")),
    "ephemeralcontainers": Subresource(("get", "patch", "update")),
    "resize": Subresource(("get", "patch", "update")),
    "finalize": Subresource(("update",)),
    "binding": Subresource(("create",), "", "v1", "Binding"),
    "eviction": Subresource(("create",), "policy", "v1", "Eviction"),
    "token": Subresource(("create",), "authentication.k8s.io", "v1", "TokenRequest"),
    "log": Subresource(("get",)),
    "attach": Subresource(("create", "get"), "", "v1", "PodAttachOptions"),
    "exec": Subresource(("create", "get"), "", "v1", "PodExecOptions"),
    "portforward": Subresource(("create", "get"), "", "v1", "PodPortForwardOptions"),
}
OF_A_KUBELET = ("log", "attach", "exec", "portforward")
"""A kubelet would answer these. There is none, so they are refused with that reason."""


@dataclass(frozen=True, slots=True)
class Kind:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    """`status` among them means: main writes leave status alone, status writes leave everything else alone."""
    counts_generations: bool = False
    """metadata.generation goes up when something other than metadata and status changes."""
    verbs: tuple[str, ...] = VERBS
    categories: tuple[str, ...] = ()
    singular: str = ""
    list_kind: str = ""
    storage_version: str = ""
    """The version that is written; empty: this one."""
    schema: Json | None = None
    """Custom resources: their structural schema."""
    printer_columns: tuple[Json, ...] = ()
    """Custom resources: additionalPrinterColumns."""
    selectable: tuple[str, ...] = ()
    """Field selectors beyond metadata.name and metadata.namespace, as dotted paths."""
    custom: bool = False
    stored_group: str | None = None
    """Where two groups serve the same objects: the group in whose form they are kept. None: this one."""
    renamed: tuple[tuple[str, str], ...] = ()
    """Fields that the stored form calls by another name: the name here → the name there."""
    type_name: str = ""
    """Its type in `built_in_fields.json`, if another kind of this name is there already."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def storage(self) -> tuple[str, str]:
        return (self.group if self.stored_group is None else self.stored_group, self.plural)

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    @property
    def qualified_plural(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def singular_name(self) -> str:
        return self.singular or self.kind.lower()

    @property
    def list_name(self) -> str:
        return self.list_kind or f"{self.kind}List"

    @property
    def stored_api_version(self) -> str:
        group, version = self.storage[0], self.storage_version or self.version
        return f"{group}/{version}" if group else version

    @property
    def fields_type(self) -> str:
        return self.type_name or self.kind

    def stored_field(self, path: str) -> str:
        """A dotted path of this form, in the stored form."""
        if not self.renamed:
            return path
        name, dot, rest = path.partition(".")
        return dict(self.renamed).get(name, name) + dot + rest

    def as_stored(self, tree: Json) -> Json:
        """A tree of this form, in the stored form."""
        names = dict(self.renamed)
        named = {names.get(name, name): value for name, value in tree.items()} if names else tree
        return {**named, "apiVersion": self.stored_api_version}

    def as_shown(self, tree: Json) -> Json:
        """A stored tree, in this form."""
        if tree["apiVersion"] == self.api_version:
            return tree
        names = {there: here for here, there in self.renamed}
        named = {names.get(name, name): value for name, value in tree.items()} if names else tree
        return {**named, "apiVersion": self.api_version}


POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
SLICE_FIELDS = ("spec.nodeName", "spec.driver")
STATUS = ("status",)
ALL = ("all",)

PODS = Kind(
    "",
    "v1",
    "pods",
    "Pod",
    True,
    ("po",),
    ("status", "binding", "eviction", "ephemeralcontainers", "resize", *OF_A_KUBELET),
    True,
    categories=ALL,
    selectable=POD_FIELDS,
)
NAMESPACES = Kind(
    "", "v1", "namespaces", "Namespace", False, ("ns",), ("status", "finalize"), selectable=("status.phase",)
)
NODES = Kind("", "v1", "nodes", "Node", False, ("no",), STATUS, selectable=("spec.unschedulable",))
EVENTS = Kind("", "v1", "events", "Event", True, ("ev",), selectable=EVENT_FIELDS)
EVENTS_OF_EVENTS_GROUP = Kind(
    "events.k8s.io",
    "v1",
    "events",
    "Event",
    True,
    ("ev",),
    selectable=(
        *(field.replace("involvedObject", "regarding") for field in EVENT_FIELDS if field.startswith("involved")),
        "reason",
        "reportingController",
        "type",
    ),
    stored_group="",
    renamed=(
        ("regarding", "involvedObject"),
        ("note", "message"),
        ("reportingController", "reportingComponent"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
    ),
    type_name="EventsV1Event",
)
"""The same Events as in the core group, with other names for some fields: what kube-scheduler writes."""
SECRETS = Kind("", "v1", "secrets", "Secret", True, (), selectable=("type",))
SERVICE_ACCOUNTS = Kind("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",), ("token",))
CRDS = Kind(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    ("crd", "crds"),
    STATUS,
    True,
    categories=("api-extensions",),
)
MUTATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    counts_generations=True,
    categories=("api-extensions",),
)
VALIDATING_WEBHOOKS = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    False,
    counts_generations=True,
    categories=("api-extensions",),
)
DISRUPTION_BUDGETS = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), STATUS, True)
RESOURCE_CLAIMS = Kind(
    "resource.k8s.io",
    "v1",
    "resourceclaims",
    "ResourceClaim",
    True,
    (),
    STATUS,
    type_name="ResourceV1ResourceClaim",
)
PRIORITY_CLASSES = Kind(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",), counts_generations=True
)
RUNTIME_CLASSES = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
TOKEN_REVIEWS = Kind("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False, verbs=CREATE_ONLY)
SELF_SUBJECT_REVIEWS = Kind(
    "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, verbs=CREATE_ONLY
)
SUBJECT_ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False, verbs=CREATE_ONLY
)
SELF_SUBJECT_ACCESS_REVIEWS = Kind(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False, verbs=CREATE_ONLY
)

BUILT_IN: tuple[Kind, ...] = (
    PODS,
    NAMESPACES,
    NODES,
    EVENTS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Kind("", "v1", "configmaps", "ConfigMap", True, ("cm",)),
    Kind("", "v1", "services", "Service", True, ("svc",), STATUS, categories=ALL),
    Kind("", "v1", "replicationcontrollers", "ReplicationController", True, ("rc",), STATUS, True, categories=ALL),
    Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), STATUS),
    Kind("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), STATUS),
    Kind("apps", "v1", "deployments", "Deployment", True, ("deploy",), STATUS, True, categories=ALL),
    Kind("apps", "v1", "replicasets", "ReplicaSet", True, ("rs",), STATUS, True, categories=ALL),
    Kind("apps", "v1", "statefulsets", "StatefulSet", True, ("sts",), STATUS, True, categories=ALL),
    Kind("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), STATUS, True, categories=ALL),
    Kind("batch", "v1", "jobs", "Job", True, (), STATUS, True, categories=ALL),
    Kind("coordination.k8s.io", "v1", "leases", "Lease", True),
    EVENTS_OF_EVENTS_GROUP,
    PRIORITY_CLASSES,
    RUNTIME_CLASSES,
    DISRUPTION_BUDGETS,
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",)),
    Kind("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", False, (), STATUS),
    Kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver", False, counts_generations=True),
    Kind("storage.k8s.io", "v1", "csinodes", "CSINode", False, (), STATUS),
    Kind("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", True),
    RESOURCE_CLAIMS,
    Kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True),
    Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, (), (), True, selectable=SLICE_FIELDS),
    Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, (), (), True),
    Kind("resource.k8s.io", "v1", "devicetaintrules", "DeviceTaintRule", False, (), STATUS, True),
    MUTATING_WEBHOOKS,
    VALIDATING_WEBHOOKS,
    CRDS,
    TOKEN_REVIEWS,
    SELF_SUBJECT_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
    SELF_SUBJECT_ACCESS_REVIEWS,
)


@dataclass(slots=True)
class Kinds:
    """The kinds that are served now. Built-in kinds never change; those of CRDs are added and removed."""

    _served: dict[tuple[str, str, str], Kind] = field(
        default_factory=lambda: {(kind.group, kind.version, kind.plural): kind for kind in BUILT_IN}
    )

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._served.values())

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._served.get((group, version, plural))

    def of_object(self, api_version: str, kind_name: str) -> Kind | None:
        """The kind that an `apiVersion` and `kind` name, as owner references do."""
        group, _, version = api_version.rpartition("/")
        return next(
            (k for k in self._served.values() if k.kind == kind_name and k.group == group and k.version == version),
            None,
        )

    def why_not(self, api_version: str, word: str) -> str:
        """Why what somebody names by its kind or its plural is not there, and what is."""
        there = sorted(kind.kind for kind in self if kind.api_version == api_version)
        if there:
            return f"{api_version} has no {word!r} here, only {', '.join(there)}"
        versions = sorted({kind.api_version for kind in self})
        return f"{api_version!r} is not served, only {', '.join(versions)}; definitions of custom resources add others"

    def stored(self) -> Iterator[Kind]:
        """One kind for each storage, so that iterating over all objects visits each once."""
        seen: set[tuple[str, str]] = set()
        for kind in self._served.values():
            if kind.storage not in seen and "list" in kind.verbs:
                seen.add(kind.storage)
                yield kind

    def serve(self, kinds: list[Kind]) -> None:
        for kind in kinds:
            self._served[kind.group, kind.version, kind.plural] = kind

    def withdraw(self, group: str, plural: str) -> None:
        self._served = {key: kind for key, kind in self._served.items() if kind.storage != (group, plural)}
