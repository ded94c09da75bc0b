"""By which fields the lists of built-in kinds are merged. A table of facts about Kubernetes' own types.

Two merges read it, and they differ in places: a strategic merge patch knows a container's port by `containerPort`,
server-side apply by `containerPort` and `protocol`. A list that is not named here is replaced as a whole; a map is
merged field by field. The facts are those of the published OpenAPI document (`x-kubernetes-patch-merge-key`,
`x-kubernetes-list-map-keys`, `x-kubernetes-map-type`). Limit: kinds not named here have only the entries of `metadata`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MergeKeys:
    """How the value at one place is merged, and the values below it."""

    fields: Mapping[str, "MergeKeys"] = field(default_factory=dict)
    """The places below: the fields of a map, or of each element of a list of maps. A field not named is `PLAIN`."""
    every: "MergeKeys | None" = None
    """The place below for every key that `fields` does not name: a map with free keys."""
    patch_key: str = ""
    """Strategic merge patch: elements with the same value of this field are one element."""
    apply_keys: tuple[str, ...] = ()
    """Server-side apply: elements with the same values of these fields are one element."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """What an apply key means where an element leaves it out."""
    patch_set: bool = False
    """Strategic merge patch: a list of scalars that is merged as a set."""
    apply_set: bool = False
    """Server-side apply: a list of scalars in which each element has its own owner."""
    atomic: bool = False
    """Server-side apply: a map with one owner."""

    def below(self, name: str) -> "MergeKeys":
        return self.fields.get(name) or self.every or PLAIN


PLAIN = MergeKeys()
_ATOMIC = MergeKeys(atomic=True)


def _list(
    key: str, fields: Mapping[str, MergeKeys] | None = None, *, apply: tuple[str, ...] | None = None
) -> MergeKeys:
    """A list of maps that both merges know by the same field, unless `apply` says otherwise (empty: atomic there)."""
    return MergeKeys(fields or {}, patch_key=key, apply_keys=(key,) if apply is None else apply)


def _map(**fields: MergeKeys) -> MergeKeys:
    return MergeKeys(fields)


def _ports(key: str) -> MergeKeys:
    return MergeKeys(patch_key=key, apply_keys=(key, "protocol"), defaults={"protocol": "TCP"})


_SET = MergeKeys(patch_set=True, apply_set=True)
_CONDITIONS = _list("type")
METADATA = _map(finalizers=_SET, ownerReferences=_list("uid"))

_ENV = _list(
    "name",
    {"valueFrom": _map(fieldRef=_ATOMIC, resourceFieldRef=_ATOMIC, configMapKeyRef=_ATOMIC, secretKeyRef=_ATOMIC)},
)
_CONTAINERS = _list(
    "name",
    {
        "env": _ENV,
        "ports": _ports("containerPort"),
        "volumeMounts": _list("mountPath"),
        "volumeDevices": _list("devicePath"),
        "resources": _map(claims=MergeKeys(apply_keys=("name",))),
    },
)
_POD_SPEC = _map(
    containers=_CONTAINERS,
    initContainers=_CONTAINERS,
    ephemeralContainers=_CONTAINERS,
    volumes=_list("name"),
    imagePullSecrets=_list("name"),
    hostAliases=_list("ip"),
    topologySpreadConstraints=MergeKeys(
        {"labelSelector": _ATOMIC}, patch_key="topologyKey", apply_keys=("topologyKey", "whenUnsatisfiable")
    ),
    schedulingGates=_list("name"),
    resourceClaims=_list("name"),
    nodeSelector=_ATOMIC,
)
_POD_STATUS = _map(
    conditions=_CONDITIONS,
    podIPs=_list("ip"),
    hostIPs=_list("ip", apply=()),
    resourceClaimStatuses=_list("name"),
)
_TEMPLATE = _map(metadata=METADATA, spec=_POD_SPEC)
_WORKLOAD = _map(
    metadata=METADATA, spec=_map(selector=_ATOMIC, template=_TEMPLATE), status=_map(conditions=_CONDITIONS)
)
_JOB_SPEC = _map(selector=_ATOMIC, template=_TEMPLATE)
_WEBHOOKS = _map(metadata=METADATA, webhooks=_list("name", {"namespaceSelector": _ATOMIC, "objectSelector": _ATOMIC}))
_WITH_CONDITIONS = _map(metadata=METADATA, status=_map(conditions=_CONDITIONS))
_ONLY_METADATA = _map(metadata=METADATA)

_KINDS: Mapping[str, MergeKeys] = {
    "Pod": _map(metadata=METADATA, spec=_POD_SPEC, status=_POD_STATUS),
    "PodTemplate": _map(metadata=METADATA, template=_TEMPLATE),
    "Node": _map(
        metadata=METADATA,
        spec=_map(podCIDRs=_SET),
        status=_map(conditions=_CONDITIONS, addresses=_list("type")),
    ),
    "Namespace": _WITH_CONDITIONS,
    "Service": _map(
        metadata=METADATA, spec=_map(ports=_ports("port"), selector=_ATOMIC), status=_map(conditions=_CONDITIONS)
    ),
    "ServiceAccount": _map(metadata=METADATA, secrets=_list("name")),
    "PersistentVolumeClaim": _map(
        metadata=METADATA, spec=_map(selector=_ATOMIC, dataSource=_ATOMIC), status=_map(conditions=_CONDITIONS)
    ),
    "ReplicationController": _map(
        metadata=METADATA, spec=_map(selector=_ATOMIC, template=_TEMPLATE), status=_map(conditions=_CONDITIONS)
    ),
    "Event": _map(metadata=METADATA, involvedObject=_ATOMIC, related=_ATOMIC),
    "Event.events.k8s.io": _map(metadata=METADATA, regarding=_ATOMIC, related=_ATOMIC),
    "Deployment.apps": _WORKLOAD,
    "ReplicaSet.apps": _WORKLOAD,
    "StatefulSet.apps": _WORKLOAD,
    "DaemonSet.apps": _WORKLOAD,
    "Job.batch": _map(metadata=METADATA, spec=_JOB_SPEC, status=_map(conditions=_list("type", apply=()))),
    "CronJob.batch": _map(metadata=METADATA, spec=_map(jobTemplate=_map(metadata=METADATA, spec=_JOB_SPEC))),
    "PodDisruptionBudget.policy": _map(
        metadata=METADATA, spec=_map(selector=_ATOMIC), status=_map(conditions=_CONDITIONS)
    ),
    "HorizontalPodAutoscaler.autoscaling": _WITH_CONDITIONS,
    "MutatingWebhookConfiguration.admissionregistration.k8s.io": _WEBHOOKS,
    "ValidatingWebhookConfiguration.admissionregistration.k8s.io": _WEBHOOKS,
    "APIService.apiregistration.k8s.io": _WITH_CONDITIONS,
    "CSINode.storage.k8s.io": _map(metadata=METADATA, spec=_map(drivers=_list("name"))),
    "CustomResourceDefinition.apiextensions.k8s.io": _map(
        metadata=METADATA, status=_map(conditions=MergeKeys(apply_keys=("type",)))
    ),
}


def merge_keys_for(group_kind: str) -> MergeKeys:
    """For `Pod`, `Deployment.apps`, … Custom resources have only `metadata`; their lists: `schema.merge_keys_of`."""
    return _KINDS.get(group_kind, _ONLY_METADATA)
