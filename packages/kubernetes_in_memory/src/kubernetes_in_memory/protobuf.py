"""Bodies in Kubernetes' protobuf form, read into the same trees as JSON.

kubectl's typed commands (`create namespace`, `create token`, `auth can-i`, `drain` …) send nothing else, nor does
kube-scheduler when it creates or updates (Events, Bindings, the Lease of its leader). Answers are always JSON, which
every client reads. The table contains what those send; anything else is refused, never dropped, and the error says
to use JSON.

A field is written `name type`. Types are `string`, `bytes`, `int`, `bool`, `int-or-string`, `quantity`, `time`,
`micro-time`, the name of another message, `[type]` for repeated, `{type}` for a map from strings. A zero means "not
given", unless the type ends in `?`: that is a pointer in the sender's types, and its zero is a value. What is `ignored`
only the server writes.
"""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from kubernetes_in_memory import status

Json = dict[str, Any]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"

_OBJECT = {1: "metadata ObjectMeta", 2: "spec {}Spec", 3: "status ignored"}

_MESSAGES: dict[str, dict[int, str]] = {
    "Unknown": {1: "type TypeMeta", 2: "raw raw", 3: "encoding string", 4: "mediaType string"},
    "TypeMeta": {1: "apiVersion string", 2: "kind string"},
    "ObjectMeta": {
        1: "name string",
        2: "generateName string",
        3: "namespace string",
        4: "selfLink ignored",
        5: "uid string",
        6: "resourceVersion string",
        7: "generation ignored",
        8: "creationTimestamp ignored",
        9: "deletionTimestamp ignored",
        10: "deletionGracePeriodSeconds ignored",
        11: "labels {string}",
        12: "annotations {string}",
        13: "ownerReferences [OwnerReference]",
        14: "finalizers [string]",
        17: "managedFields ignored",
    },
    "OwnerReference": {
        1: "kind string",
        3: "name string",
        4: "uid string",
        5: "apiVersion string",
        6: "controller bool?",
        7: "blockOwnerDeletion bool?",
    },
    "LabelSelector": {1: "matchLabels {string}", 2: "matchExpressions [LabelSelectorRequirement]"},
    "LabelSelectorRequirement": {1: "key string", 2: "operator string", 3: "values [string]"},
    "LocalObjectReference": {1: "name string"},
    "Namespace": _OBJECT,
    "NamespaceSpec": {1: "finalizers [string]"},
    "ConfigMap": {1: "metadata ObjectMeta", 2: "data {string}", 3: "binaryData {bytes}", 4: "immutable bool?"},
    "Secret": {
        1: "metadata ObjectMeta",
        2: "data {bytes}",
        3: "type string",
        4: "stringData {string}",
        5: "immutable bool?",
    },
    "ServiceAccount": {
        1: "metadata ObjectMeta",
        2: "secrets [LocalObjectReference]",
        3: "imagePullSecrets [LocalObjectReference]",
        4: "automountServiceAccountToken bool?",
    },
    "Service": _OBJECT,
    "ServiceSpec": {
        1: "ports [ServicePort]",
        2: "selector {string}",
        3: "clusterIP string",
        4: "type string",
        5: "externalIPs [string]",
        7: "sessionAffinity string",
        8: "loadBalancerIP string",
        9: "loadBalancerSourceRanges [string]",
        10: "externalName string",
        11: "externalTrafficPolicy string",
        12: "healthCheckNodePort int",
        13: "publishNotReadyAddresses bool",
    },
    "ServicePort": {
        1: "name string",
        2: "protocol string",
        3: "port int",
        4: "targetPort int-or-string",
        5: "nodePort int",
        6: "appProtocol string",
    },
    "PriorityClass": {
        1: "metadata ObjectMeta",
        2: "value int",
        3: "globalDefault bool",
        4: "description string",
        5: "preemptionPolicy string",
    },
    "PodDisruptionBudget": _OBJECT,
    "PodDisruptionBudgetSpec": {
        1: "minAvailable int-or-string",
        2: "selector LabelSelector",
        3: "maxUnavailable int-or-string",
        4: "unhealthyPodEvictionPolicy string",
    },
    "Deployment": _OBJECT,
    "DeploymentSpec": {
        1: "replicas int?",
        2: "selector LabelSelector",
        3: "template PodTemplateSpec",
        4: "strategy DeploymentStrategy",
        5: "minReadySeconds int",
        6: "revisionHistoryLimit int?",
        7: "paused bool",
        9: "progressDeadlineSeconds int?",
    },
    "DeploymentStrategy": {1: "type string"},
    "Job": _OBJECT,
    "JobSpec": {
        1: "parallelism int?",
        2: "completions int?",
        3: "activeDeadlineSeconds int?",
        4: "selector LabelSelector",
        5: "manualSelector bool?",
        6: "template PodTemplateSpec",
        7: "backoffLimit int?",
        8: "ttlSecondsAfterFinished int?",
    },
    "PodTemplateSpec": {1: "metadata ObjectMeta", 2: "spec PodSpec"},
    "PodSpec": {
        2: "containers [Container]",
        3: "restartPolicy string",
        4: "terminationGracePeriodSeconds int?",
        5: "activeDeadlineSeconds int?",
        6: "dnsPolicy string",
        7: "nodeSelector {string}",
        8: "serviceAccountName string",
        9: "serviceAccount string",
        10: "nodeName string",
        11: "hostNetwork bool",
        12: "hostPID bool",
        13: "hostIPC bool",
        16: "hostname string",
        17: "subdomain string",
        19: "schedulerName string",
        20: "initContainers [Container]",
        24: "priorityClassName string",
        25: "priority int?",
    },
    "Container": {
        1: "name string",
        2: "image string",
        3: "command [string]",
        4: "args [string]",
        5: "workingDir string",
        6: "ports [ContainerPort]",
        8: "resources ResourceRequirements",
        13: "terminationMessagePath string",
        14: "imagePullPolicy string",
        16: "stdin bool",
        17: "stdinOnce bool",
        18: "tty bool",
        20: "terminationMessagePolicy string",
    },
    "ContainerPort": {
        1: "name string",
        2: "hostPort int",
        3: "containerPort int",
        4: "protocol string",
        5: "hostIP string",
    },
    "ResourceRequirements": {1: "limits {quantity}", 2: "requests {quantity}"},
    "Binding": {1: "metadata ObjectMeta", 2: "target ObjectReference"},
    "ObjectReference": {
        1: "kind string",
        2: "namespace string",
        3: "name string",
        4: "uid string",
        5: "apiVersion string",
        6: "resourceVersion string",
        7: "fieldPath string",
    },
    "Event": {
        1: "metadata ObjectMeta",
        2: "involvedObject ObjectReference",
        3: "reason string",
        4: "message string",
        5: "source EventSource",
        6: "firstTimestamp time",
        7: "lastTimestamp time",
        8: "count int",
        9: "type string",
        10: "eventTime micro-time",
        11: "series EventSeries",
        12: "action string",
        13: "related ObjectReference",
        14: "reportingComponent string",
        15: "reportingInstance string",
    },
    "Event of events.k8s.io/v1": {
        1: "metadata ObjectMeta",
        2: "eventTime micro-time",
        3: "series EventSeries",
        4: "reportingController string",
        5: "reportingInstance string",
        6: "action string",
        7: "reason string",
        8: "regarding ObjectReference",
        9: "related ObjectReference",
        10: "note string",
        11: "type string",
        12: "deprecatedSource EventSource",
        13: "deprecatedFirstTimestamp time",
        14: "deprecatedLastTimestamp time",
        15: "deprecatedCount int",
    },
    "EventSource": {1: "component string", 2: "host string"},
    "EventSeries": {1: "count int", 2: "lastObservedTime micro-time"},
    "Lease": _OBJECT,
    "LeaseSpec": {
        1: "holderIdentity string?",
        2: "leaseDurationSeconds int?",
        3: "acquireTime micro-time",
        4: "renewTime micro-time",
        5: "leaseTransitions int?",
        6: "strategy string",
        7: "preferredHolder string",
    },
    "Eviction": {1: "metadata ObjectMeta", 2: "deleteOptions DeleteOptions"},
    "DeleteOptions": {
        1: "gracePeriodSeconds int?",
        2: "preconditions Preconditions",
        3: "orphanDependents bool?",
        4: "propagationPolicy string",
        5: "dryRun [string]",
    },
    "Preconditions": {1: "uid string", 2: "resourceVersion string"},
    "TokenRequest": _OBJECT,
    "TokenRequestSpec": {
        1: "audiences [string]",
        3: "boundObjectRef BoundObjectReference",
        4: "expirationSeconds int?",
    },
    "BoundObjectReference": {1: "kind string", 2: "apiVersion string", 3: "name string", 4: "uid string"},
    "TokenReview": _OBJECT,
    "TokenReviewSpec": {1: "token string", 2: "audiences [string]"},
    "SelfSubjectReview": {1: "metadata ObjectMeta", 2: "status ignored"},
    "SelfSubjectAccessReview": _OBJECT,
    "SelfSubjectAccessReviewSpec": {
        1: "resourceAttributes ResourceAttributes",
        2: "nonResourceAttributes NonResourceAttributes",
    },
    "ResourceAttributes": {
        1: "namespace string",
        2: "verb string",
        3: "group string",
        4: "version string",
        5: "resource string",
        6: "subresource string",
        7: "name string",
    },
    "NonResourceAttributes": {1: "path string", 2: "verb string"},
}


def decode(body: bytes) -> Json:
    """The tree of one object. Raises the API's 400 for bytes that are broken, 415 for what is not in the table."""
    if not body.startswith(MAGIC):
        raise status.bad_request("the body is not in Kubernetes' protobuf form: it does not start with k8s")
    try:
        envelope = _message("Unknown", body[len(MAGIC) :])
        named = envelope["type"]
        particular = f"{named['kind']} of {named['apiVersion']}"
        message = particular if particular in _MESSAGES else named["kind"]
        return {**named, **_message(message, envelope.get("raw", b""))}
    except (IndexError, KeyError, OverflowError, ValueError) as error:
        raise status.bad_request(f"couldn't read the body as protobuf: {error!r}") from error


def _beyond(what: str) -> status.ApiError:
    return status.unsupported_media_type(f"{MEDIA_TYPE} with {what}", "application/json, application/yaml")


@lru_cache(maxsize=512)
def _field(message: str, number: int) -> tuple[str, str]:
    fields = _MESSAGES.get(message)
    if fields is None:
        raise _beyond(message)
    if number not in fields:
        raise _beyond(f"field {number} of {message}")
    name, kind = fields[number].split(" ")
    return name, kind.format(message) if kind == "{}Spec" else kind


def _message(message: str, content: bytes) -> Json:
    if message not in _MESSAGES:
        raise _beyond(message)
    tree: Json = {}
    for number, raw in _fields(content):
        name, kind = _field(message, number)
        if kind == "ignored":
            continue
        if kind[0] == "[":
            tree.setdefault(name, []).append(_value(kind[1:-1], raw))
        elif kind[0] == "{":
            entry = dict(_fields(raw if isinstance(raw, bytes) else b""))
            key = _value("string", entry.get(1, b""))
            tree.setdefault(name, {})[key] = _value(kind[1:-1], entry.get(2, b""))
        else:
            value = _value(kind.removesuffix("?"), raw)
            if kind.endswith("?") or value not in (None, "", 0, False, {}, b""):
                tree[name] = value
    return tree


def _value(kind: str, raw: bytes | int) -> Any:
    if isinstance(raw, int):
        return bool(raw) if kind == "bool" else raw - (1 << 64) if raw >= 1 << 63 else raw
    match kind:
        case "string":
            return raw.decode()
        case "bytes":
            return base64.b64encode(raw).decode()
        case "raw":
            return raw
        case "quantity":
            return _value("string", dict(_fields(raw)).get(1, b"0"))
        case "time" | "micro-time":
            return _moment(dict(_fields(raw)), "seconds" if kind == "time" else "microseconds")
        case "int-or-string":
            parts = dict(_fields(raw))
            return _value("string", parts.get(3, b"")) if parts.get(1) else _value("int", parts.get(2, 0))
    return _message(kind, raw)


def _moment(parts: dict[int, bytes | int], precision: str) -> str:
    """A time as JSON writes it; nothing at all for the zero time."""
    seconds, nanoseconds = _value("int", parts.get(1, 0)), _value("int", parts.get(2, 0))
    if not seconds and not nanoseconds:
        return ""
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)
    return at.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Field numbers and their raw content: an integer, or bytes."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        if tag & 7 == 0:
            number, at = _varint(content, at)
            yield tag >> 3, number
        elif tag & 7 == 2:
            size, at = _varint(content, at)
            if at + size > len(content):
                raise ValueError("the body ends inside a field")
            yield tag >> 3, content[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {tag & 7} is not used by Kubernetes")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")
