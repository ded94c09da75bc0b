"""The rules for all kinds: identity, names, metadata that only the server writes, optimistic concurrency.

Pure: trees in, a new tree or an `ApiError` out. A tree that comes from a body belongs to the caller and may be changed;
a stored tree never is.
"""

import re
from functools import lru_cache
from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.causes import Cause, prohibited, required, wrong
from kubernetes_in_memory.kinds import Kind
from kubernetes_in_memory.request_info import Target

Json = dict[str, Any]

SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink")
"""What a body says about these is ignored: the live object's values stay."""

STATUS_WRITES_TAKE_METADATA = frozenset(
    {("", "pods"), ("", "nodes"), ("", "namespaces"), ("", "services"), ("policy", "poddisruptionbudgets")}
)
"""For these kinds a write to `status` may change labels and annotations too. For the others it changes status only."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_ANNOTATIONS = 256 * 1024
_LABEL_NAMED = frozenset({("", "namespaces"), ("", "services")})

LABEL_RULE = (
    "at most 63 lower case letters, digits or '-', the first and the last a letter or digit "
    "(a DNS label such as 'my-name')"
)
SUBDOMAIN_RULE = (
    "at most 253 lower case letters, digits, '-' or '.', the first and the last of each part a letter or digit "
    "(a DNS name such as 'example.com')"
)
KEY_RULE = (
    "a name of at most 63 letters, digits, '-', '_' or '.', the first and the last a letter or digit, with an optional "
    "DNS name and '/' before it (such as 'example.com/my-name')"
)
VALUE_RULE = "at most 63 letters, digits, '-', '_' or '.', the first and the last a letter or digit, or nothing at all"


def check_creatable(kind: Kind, tree: Json) -> None:
    metadata = tree["metadata"]
    if metadata.get("resourceVersion"):
        raise status.bad_request("resourceVersion should not be set on objects to be created")
    if not metadata.get("name") and not metadata.get("generateName"):
        raise status.invalid(kind, "", [required("metadata.name", "name or generateName is required")])


def stamp_new(kind: Kind, tree: Json, *, name: str, uid: str, now: str) -> None:
    """Gives a new object its identity."""
    metadata = tree["metadata"]
    for field in (*SERVER_OWNED, "resourceVersion"):
        metadata.pop(field, None)
    metadata["name"] = name
    metadata["uid"] = uid
    metadata["creationTimestamp"] = now
    if kind.counts_generations:
        metadata["generation"] = 1


def merged_update(target: Target, live: Json, candidate: Json) -> Json:
    """The live object after a write: the candidate without what this write may not change.

    Raises a conflict if the candidate names another version or another object.
    """
    kind = target.kind
    name = live["metadata"]["name"]
    proposed = candidate["metadata"]
    if (given := proposed.get("name")) != name:
        raise status.invalid(kind, name, [wrong("metadata.name", given, "field is immutable")])
    if proposed.get("resourceVersion", "") not in ("", live["metadata"]["resourceVersion"]):
        raise status.conflict(kind, name)
    if proposed.get("uid", "") not in ("", live["metadata"]["uid"]):
        raise status.conflict(kind, name, status.failed_precondition("UID", proposed["uid"], live["metadata"]["uid"]))
    if target.subresource == "status":
        return _with_status(kind, live, candidate)
    metadata = {key: value for key, value in proposed.items() if key not in SERVER_OWNED and value not in ({}, [])}
    metadata |= {key: live["metadata"][key] for key in (*SERVER_OWNED, "resourceVersion") if key in live["metadata"]}
    tree = {**candidate, "metadata": metadata}
    if kind.has_status:
        tree.pop("status", None)
        if "status" in live:
            tree["status"] = live["status"]
    if kind.counts_generations and _desired(tree) != _desired(live):
        metadata["generation"] = live["metadata"].get("generation", 0) + 1
    return tree


def _with_status(kind: Kind, live: Json, candidate: Json) -> Json:
    tree = {**live, "metadata": dict(live["metadata"])}
    tree.pop("status", None)
    if "status" in candidate:
        tree["status"] = candidate["status"]
    if kind.storage in STATUS_WRITES_TAKE_METADATA:
        for field in ("labels", "annotations", "finalizers"):
            tree["metadata"].pop(field, None)
            if candidate["metadata"].get(field):
                tree["metadata"][field] = candidate["metadata"][field]
    return tree


def _desired(tree: Json) -> Json:
    return {key: value for key, value in tree.items() if key not in ("metadata", "status", "apiVersion", "kind")}


def same(before: Json, after: Json) -> bool:
    """True if a write would change nothing: then it gets no new version. Field ownership is not compared."""
    return _comparable(before) == _comparable(after)


def _comparable(tree: Json) -> Json:
    metadata = {
        key: value for key, value in tree["metadata"].items() if key not in ("managedFields", "resourceVersion")
    }
    return {**tree, "metadata": metadata}


def metadata_causes(kind: Kind, tree: Json, live: Json | None) -> list[Cause]:
    metadata = tree["metadata"]
    causes: list[Cause] = []
    if live is None:
        causes += name_causes(kind, metadata["name"])
    labels = metadata.get("labels")
    if labels:
        for key, value in labels.items():
            causes += _key_causes("metadata.labels", key) + _label_value_causes(value)
    annotations = metadata.get("annotations")
    if annotations:
        for key in annotations:
            causes += _key_causes("metadata.annotations", key.lower())
        if sum(len(key) + len(value) for key, value in annotations.items()) > _MAX_ANNOTATIONS:
            causes.append(
                Cause(
                    "metadata.annotations", "FieldValueTooLong", f"Too long: must have at most {_MAX_ANNOTATIONS} bytes"
                )
            )
    if "ownerReferences" in metadata:
        causes += _owner_causes(metadata["ownerReferences"])
    if "finalizers" in metadata:
        causes += _finalizer_causes(metadata, live)
    return causes


def name_causes(kind: Kind, name: str) -> list[Cause]:
    if kind.storage in _LABEL_NAMED:
        return [] if is_label(name) else [wrong("metadata.name", name, LABEL_RULE)]
    return [] if is_subdomain(name) else [wrong("metadata.name", name, SUBDOMAIN_RULE)]


def is_label(name: str) -> bool:
    return len(name) <= 63 and bool(_LABEL.fullmatch(name))


def is_subdomain(name: str) -> bool:
    return len(name) <= 253 and bool(_SUBDOMAIN.fullmatch(name))


@lru_cache(maxsize=4096)
def is_qualified(key: str) -> bool:
    """A label key, an annotation key or a resource name: `name` or `prefix.domain/name`."""
    prefix, slash, name = key.rpartition("/")
    if slash and (not prefix or len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return False
    return 0 < len(name) <= 63 and bool(_QUALIFIED.fullmatch(name))


@lru_cache(maxsize=4096)
def is_label_value(value: str) -> bool:
    return value == "" or (len(value) <= 63 and bool(_QUALIFIED.fullmatch(value)))


def _key_causes(field: str, key: str) -> list[Cause]:
    return [] if is_qualified(key) else [wrong(field, key, KEY_RULE)]


def _label_value_causes(value: str) -> list[Cause]:
    return [] if is_label_value(value) else [wrong("metadata.labels", value, VALUE_RULE)]


def _owner_causes(owners: list[Json]) -> list[Cause]:
    causes = []
    for index, owner in enumerate(owners):
        place = f"metadata.ownerReferences[{index}]"
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                causes.append(wrong(f"{place}.{field}", owner.get(field, ""), f"{field} must not be empty"))
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        kinds = ", ".join(f"{owner.get('kind')}/{owner.get('name')}" for owner in controllers)
        causes.append(wrong("metadata.ownerReferences", kinds, "Only one reference can have Controller set to true"))
    return causes


def _finalizer_causes(metadata: Json, live: Json | None) -> list[Cause]:
    causes = [
        wrong("metadata.finalizers", finalizer, "name is neither a standard finalizer name nor is it fully qualified")
        for finalizer in metadata["finalizers"]
        if not is_qualified(finalizer)
        or ("/" not in finalizer and finalizer not in ("orphan", "foregroundDeletion", "kubernetes"))
    ]
    if live is not None and live["metadata"].get("deletionTimestamp"):
        added = [one for one in metadata["finalizers"] if one not in live["metadata"].get("finalizers", ())]
        if added:
            listed = ", ".join(f'"{one}"' for one in added)
            why = f"no new finalizers can be added if the object is being deleted, found {listed}"
            causes.append(prohibited("metadata.finalizers", why))
    return causes
