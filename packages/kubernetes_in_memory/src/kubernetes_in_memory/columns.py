"""The columns that `kubectl get` shows for each kind, and how each cell is computed.

Pure. A cell depends on the object and the time (ages). Custom resources define their own columns as JSONPaths.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from kubernetes_in_memory.json_path import JsonPath
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.pod_columns import POD
from kubernetes_in_memory.store import Storage
from kubernetes_in_memory.times import age

Json = dict[str, Any]
Cell = Callable[[Json, datetime], Any]

NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    cell: Cell
    type: str = "string"
    priority: int = 0
    """Above 0: shown with `-o wide` only."""
    format: str = ""
    description: str = ""


def _at(*path: str, missing: Any = NONE) -> Cell:
    def cell(tree: Json, now: datetime) -> Any:
        value: Any = tree
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return missing if value in (None, "") else value

    return cell


def _count(*path: str) -> Cell:
    value = _at(*path, missing=())
    return lambda tree, now: len(value(tree, now))


def _age(tree: Json, now: datetime) -> str:
    return age(tree["metadata"].get("creationTimestamp"), now)


NAME = Column("Name", _at("metadata", "name"), format="name")
AGE = Column("Age", _age)


def _wide(name: str, *path: str) -> Column:
    return Column(name, _at(*path), priority=1)


def _node_status(node: Json, now: datetime) -> str:
    ready = [one for one in node.get("status", {}).get("conditions", ()) if one.get("type") == "Ready"]
    words = ["Unknown"] if not ready else ["Ready" if ready[0].get("status") == "True" else "NotReady"]
    if node.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(node: Json, now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in node["metadata"].get("labels", {}) if key.startswith(prefix))
    return ",".join(filter(None, roles)) or NONE


def _address(kind: str) -> Cell:
    def cell(node: Json, now: datetime) -> str:
        addresses = node.get("status", {}).get("addresses", ())
        return next((one.get("address", NONE) for one in addresses if one.get("type") == kind), NONE)

    return cell


def _last_seen(event: Json, now: datetime) -> str:
    series = event.get("series", {}).get("lastObservedTime")
    return age(series or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"), now)


def _event_about(event: Json, now: datetime) -> str:
    about = event.get("involvedObject", {})
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _service_ports(service: Json, now: datetime) -> str:
    ports = service.get("spec", {}).get("ports", ())
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or NONE


def _pairs(*path: str) -> Cell:
    value = _at(*path, missing={})
    return lambda tree, now: ",".join(f"{key}={text}" for key, text in value(tree, now).items()) or NONE


def _data_count(holder: Json, now: datetime) -> int:
    return len(holder.get("data", {})) + len(holder.get("binaryData", {}))


_ACCESS = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _access_modes(*path: str) -> Cell:
    value = _at(*path, missing=())
    return lambda tree, now: ",".join(word for mode, word in _ACCESS.items() if mode in value(tree, now))


def _volume_claim_status(claim: Json, now: datetime) -> str:
    return "Terminating" if claim["metadata"].get("deletionTimestamp") else claim.get("status", {}).get("phase", "")


def _claimed_by(volume: Json, now: datetime) -> str:
    claim = volume.get("spec", {}).get("claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


def _resource_claim_state(claim: Json, now: datetime) -> str:
    known = claim.get("status", {})
    words = ["deleted"] if claim["metadata"].get("deletionTimestamp") else []
    if "allocation" in known:
        words.append("allocated")
    elif not words:
        words.append("pending")
    return ",".join([*words, *(["reserved"] if known.get("reservedFor") else ())])


def _ready_of(field: str) -> Cell:
    def cell(tree: Json, now: datetime) -> str:
        wanted = tree.get("spec", {}).get("replicas", 1)
        return f"{tree.get('status', {}).get(field, 0)}/{wanted}"

    return cell


def _number(name: str, *path: str) -> Column:
    return Column(name, _at(*path, missing=0), "integer")


_REPLICAS = (
    NAME,
    _number("Desired", "spec", "replicas"),
    _number("Current", "status", "replicas"),
    _number("Ready", "status", "readyReplicas"),
    AGE,
)
_WEBHOOKS = (NAME, Column("Webhooks", _count("webhooks"), "integer"), AGE)

_COLUMNS: dict[Storage, tuple[Column, ...]] = {
    ("", "pods"): (NAME, *(Column(*column) for column in POD[:3]), AGE, *(Column(*column) for column in POD[3:])),
    ("", "nodes"): (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", _at("status", "nodeInfo", "kubeletVersion", missing="")),
        Column("Internal-IP", _address("InternalIP"), priority=1),
        Column("External-IP", _address("ExternalIP"), priority=1),
        _wide("OS-Image", "status", "nodeInfo", "osImage"),
        _wide("Kernel-Version", "status", "nodeInfo", "kernelVersion"),
        _wide("Container-Runtime", "status", "nodeInfo", "containerRuntimeVersion"),
    ),
    ("", "namespaces"): (NAME, Column("Status", _at("status", "phase")), AGE),
    ("", "events"): (
        Column("Last Seen", _last_seen),
        Column("Type", _at("type")),
        Column("Reason", _at("reason")),
        Column("Object", _event_about),
        Column("Subobject", _at("involvedObject", "fieldPath", missing=""), priority=1),
        Column("Source", _at("source", "component", missing=""), priority=1),
        Column("Message", _at("message", missing="")),
        Column("Count", _at("count", missing=1), "integer", priority=1),
        Column("Name", _at("metadata", "name"), format="name", priority=1),
    ),
    ("", "configmaps"): (NAME, Column("Data", _data_count, "integer"), AGE),
    ("", "secrets"): (NAME, Column("Type", _at("type")), Column("Data", _data_count, "integer"), AGE),
    ("", "serviceaccounts"): (NAME, Column("Secrets", _count("secrets"), "integer"), AGE),
    ("", "services"): (
        NAME,
        Column("Type", _at("spec", "type")),
        Column("Cluster-IP", _at("spec", "clusterIP")),
        Column("External-IP", _at("spec", "externalName")),
        Column("Port(s)", _service_ports),
        AGE,
        Column("Selector", _pairs("spec", "selector"), priority=1),
    ),
    ("", "replicationcontrollers"): _REPLICAS,
    ("", "persistentvolumeclaims"): (
        NAME,
        Column("Status", _volume_claim_status),
        Column("Volume", _at("spec", "volumeName", missing="")),
        Column("Capacity", _at("status", "capacity", "storage", missing="")),
        Column("Access Modes", _access_modes("status", "accessModes")),
        Column("StorageClass", _at("spec", "storageClassName", missing="")),
        AGE,
        _wide("VolumeMode", "spec", "volumeMode"),
    ),
    ("", "persistentvolumes"): (
        NAME,
        Column("Capacity", _at("spec", "capacity", "storage", missing="")),
        Column("Access Modes", _access_modes("spec", "accessModes")),
        Column("Reclaim Policy", _at("spec", "persistentVolumeReclaimPolicy", missing="")),
        Column("Status", _volume_claim_status),
        Column("Claim", _claimed_by),
        Column("StorageClass", _at("spec", "storageClassName", missing="")),
        AGE,
        _wide("VolumeMode", "spec", "volumeMode"),
    ),
    ("storage.k8s.io", "storageclasses"): (
        NAME,
        Column("Provisioner", _at("provisioner")),
        Column("ReclaimPolicy", _at("reclaimPolicy")),
        Column("VolumeBindingMode", _at("volumeBindingMode")),
        Column("AllowVolumeExpansion", _at("allowVolumeExpansion", missing=False), "boolean"),
        AGE,
    ),
    ("resource.k8s.io", "resourceclaims"): (NAME, Column("State", _resource_claim_state), AGE),
    ("resource.k8s.io", "resourceslices"): (
        NAME,
        Column("Node", _at("spec", "nodeName", missing="")),
        Column("Driver", _at("spec", "driver", missing="")),
        Column("Pool", _at("spec", "pool", "name", missing="")),
        AGE,
    ),
    ("coordination.k8s.io", "leases"): (NAME, Column("Holder", _at("spec", "holderIdentity", missing="")), AGE),
    ("scheduling.k8s.io", "priorityclasses"): (
        NAME,
        Column("Value", _at("value"), "integer"),
        Column("Global-Default", _at("globalDefault", missing=False), "boolean"),
        AGE,
        Column("PreemptionPolicy", _at("preemptionPolicy", missing="")),
    ),
    ("policy", "poddisruptionbudgets"): (
        NAME,
        Column("Min Available", _at("spec", "minAvailable", missing="N/A")),
        Column("Max Unavailable", _at("spec", "maxUnavailable", missing="N/A")),
        _number("Allowed Disruptions", "status", "disruptionsAllowed"),
        AGE,
    ),
    ("apps", "deployments"): (
        NAME,
        Column("Ready", _ready_of("readyReplicas")),
        _number("Up-to-date", "status", "updatedReplicas"),
        _number("Available", "status", "availableReplicas"),
        AGE,
    ),
    ("apps", "replicasets"): _REPLICAS,
    ("apps", "statefulsets"): (NAME, Column("Ready", _ready_of("readyReplicas")), AGE),
    ("batch", "jobs"): (
        NAME,
        Column("Status", lambda job, now: _job_status(job)),
        Column(
            "Completions",
            lambda job, now: f"{job.get('status', {}).get('succeeded', 0)}/{job.get('spec', {}).get('completions', 1)}",
        ),
        AGE,
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): (
        NAME,
        Column("Created At", _at("metadata", "creationTimestamp"), "date"),
    ),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _WEBHOOKS,
}


def _job_status(job: Json) -> str:
    conditions = job.get("status", {}).get("conditions", ())
    done = [one.get("type", "") for one in conditions if one.get("status") == "True"]
    return done[-1] if done else "Running"


def columns_of(kind: Kind) -> tuple[Column, ...]:
    if kind.custom and kind.printer_columns:
        return (NAME, *_custom(kind.printer_columns))
    return _COLUMNS.get(kind.storage, (NAME, AGE))


def _custom(declared: Iterable[Json]) -> Iterable[Column]:
    for one in declared:
        path = _parsed(one["jsonPath"])
        yield Column(
            one["name"],
            _date_cell(path) if one["type"] == "date" else _path_cell(path),
            one["type"],
            one.get("priority", 0),
            one.get("format", ""),
            one.get("description", ""),
        )


_parsed = lru_cache(maxsize=256)(JsonPath.parse)


def _path_cell(path: JsonPath) -> Cell:
    def cell(tree: Json, now: datetime) -> Any:
        found = path.find(tree)
        return found[0] if len(found) == 1 and not isinstance(found[0], dict | list) else path.text(found) or None

    return cell


def _date_cell(path: JsonPath) -> Cell:
    return lambda tree, now: age(path.text(path.find(tree)), now)


def definitions(columns: Iterable[Column]) -> list[Json]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in columns
    ]
