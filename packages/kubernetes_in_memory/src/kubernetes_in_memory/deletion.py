"""Deletes one object: at once, or by a mark and later.

An object is kept with a deletionTimestamp as long as it has finalizers, or its content or dependents have to be deleted
first (see `garbage_collector`), or, for a pod on a node, until the kubelet reports its end by a delete of grace 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kubernetes_in_memory import status
from kubernetes_in_memory.body_decoding import read_as
from kubernetes_in_memory.kinds import CRDS, NAMESPACES, PODS, Kind
from kubernetes_in_memory.request_info import Call
from kubernetes_in_memory.store import ObjectStore, Storage, StoredObject, encode
from kubernetes_in_memory.times import timestamp

Json = dict[str, Any]

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
CRD_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
PROPAGATIONS = ("Background", "Foreground", "Orphan")
LONGEST_S = 2**63 // 10**9
"""A grace period may be any number; Go counts time in nanoseconds, in 64 bits: 292 years."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """DeleteOptions, from the body or the query."""

    grace_s: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    dry_run: bool = False


def options_of(call: Call) -> DeleteOptions:
    return read_options(read_as(call, "DeleteOptions") if call.body.strip() else {}, call)


def read_options(body: Json, call: Call) -> DeleteOptions:
    """From a body of the right types, or from the query."""
    preconditions = body.get("preconditions", {})
    grace = body.get("gracePeriodSeconds", call.number("gracePeriodSeconds"))
    propagation = body.get("propagationPolicy") or call.query.get("propagationPolicy") or ""
    if not propagation and body.get("orphanDependents") is not None:
        propagation = "Orphan" if body["orphanDependents"] else "Background"
    if propagation and propagation not in PROPAGATIONS:
        raise status.bad_request(
            f'propagationPolicy: Unsupported value: "{propagation}": supported values: {", ".join(PROPAGATIONS)}'
        )
    if grace is not None and grace < 0:
        raise status.bad_request(f"gracePeriodSeconds: Invalid value: {grace}: must be a whole number, 0 or more")
    return DeleteOptions(
        grace,
        preconditions.get("uid", ""),
        preconditions.get("resourceVersion", ""),
        propagation,
        call.dry_run or body.get("dryRun") == ["All"],
    )


class Deleter:
    def __init__(self, store: ObjectStore, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._clock = clock

    def check_preconditions(self, kind: Kind, stored: StoredObject, options: DeleteOptions) -> None:
        name = stored.key[1]
        if options.uid and options.uid != stored.uid:
            raise status.conflict(kind, name, status.failed_precondition("UID", options.uid, stored.uid))
        if options.resource_version and options.resource_version != str(stored.version):
            why = status.failed_precondition("ResourceVersion", options.resource_version, str(stored.version))
            raise status.conflict(kind, name, why)

    def delete(self, storage: Storage, stored: StoredObject, options: DeleteOptions) -> tuple[StoredObject, bool]:
        """Removes or marks an object. Returns its last state, and whether it is removed."""
        tree = self._marked(storage, stored.tree, options)
        if _is_over(storage, tree):
            return (stored if options.dry_run else self._store.remove(storage, stored)), True
        if tree == stored.tree:
            return stored, False
        if options.dry_run:
            return StoredObject(tree, encode(tree), stored.version), False
        return self._store.write(storage, stored, tree), False

    def finish(self, storage: Storage, stored: StoredObject) -> StoredObject:
        """Removes a marked object if nothing keeps it any more."""
        if stored.tree["metadata"].get("deletionTimestamp") and _is_over(storage, stored.tree):
            return self._store.remove(storage, stored)
        return stored

    def drop_finalizer(self, storage: Storage, stored: StoredObject, finalizer: str) -> None:
        metadata = dict(stored.tree["metadata"])
        metadata["finalizers"] = [one for one in metadata.get("finalizers", ()) if one != finalizer]
        if not metadata["finalizers"]:
            del metadata["finalizers"]
        tree = {**stored.tree, "metadata": metadata}
        if storage == NAMESPACES.storage and finalizer in tree.get("spec", {}).get("finalizers", ()):
            tree["spec"] = {
                **tree["spec"],
                "finalizers": [one for one in tree["spec"]["finalizers"] if one != finalizer],
            }
        self.finish(storage, self._store.write(storage, stored, tree))

    def _marked(self, storage: Storage, tree: Json, options: DeleteOptions) -> Json:
        metadata = dict(tree["metadata"])
        finalizers = _finalizers(storage, metadata.get("finalizers", []), options)
        metadata.pop("finalizers", None)
        if finalizers:
            metadata["finalizers"] = finalizers
        grace_s = _grace_s(storage, tree, options)
        marked_grace_s = metadata.get("deletionGracePeriodSeconds", 0)
        if "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = timestamp(self._clock() + timedelta(seconds=min(grace_s, LONGEST_S)))
            metadata["deletionGracePeriodSeconds"] = grace_s
            if "generation" in metadata:
                metadata["generation"] += 1
        elif grace_s < marked_grace_s:
            # A second delete may shorten the wait, never lengthen it.
            ends_at = datetime.fromisoformat(metadata["deletionTimestamp"])
            sooner = timedelta(seconds=min(marked_grace_s, LONGEST_S) - min(grace_s, LONGEST_S))
            metadata["deletionTimestamp"] = timestamp(ends_at - sooner)
            metadata["deletionGracePeriodSeconds"] = grace_s
        marked = {**tree, "metadata": metadata}
        if storage == NAMESPACES.storage:
            marked["status"] = {**tree.get("status", {}), "phase": "Terminating"}
        return marked


def _finalizers(storage: Storage, present: list[str], options: DeleteOptions) -> list[str]:
    finalizers = list(present)
    if options.propagation:
        wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(options.propagation, "")
        finalizers = [one for one in finalizers if one not in (ORPHAN, FOREGROUND)] + ([wanted] if wanted else [])
    if storage == CRDS.storage and CRD_CLEANUP not in finalizers:
        finalizers.append(CRD_CLEANUP)
    return finalizers


def _grace_s(storage: Storage, tree: Json, options: DeleteOptions) -> int:
    """Only a pod that a kubelet may be running has a grace period."""
    if storage != PODS.storage:
        return 0
    if not tree["spec"].get("nodeName") or tree.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace_s is not None:
        return options.grace_s
    if "deletionGracePeriodSeconds" in tree["metadata"]:
        return int(tree["metadata"]["deletionGracePeriodSeconds"])
    return int(tree["spec"].get("terminationGracePeriodSeconds", 30))


def _is_over(storage: Storage, tree: Json) -> bool:
    metadata = tree["metadata"]
    if metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds"):
        return False
    return not (storage == NAMESPACES.storage and tree.get("spec", {}).get("finalizers"))
