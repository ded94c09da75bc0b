"""Defaults and checks of volumes and their drivers: kinds that kube-scheduler reads before it places a pod.

Nothing here provides a volume. The objects are kept, with the defaults that kube-scheduler relies on.
"""

from collections.abc import Callable
from typing import Any

from kubernetes_in_memory.causes import Cause, required

Json = dict[str, Any]


def default_claim(claim: Json) -> Json:
    claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    claim.setdefault("status", {}).setdefault("phase", "Pending")
    return claim


def default_volume(volume: Json) -> Json:
    spec = volume.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")
    volume.setdefault("status", {}).setdefault("phase", "Pending")
    return volume


def default_class(storage_class: Json) -> Json:
    storage_class.setdefault("reclaimPolicy", "Delete")
    storage_class.setdefault("volumeBindingMode", "Immediate")
    return storage_class


def default_attachment(attachment: Json) -> Json:
    attachment.setdefault("status", {}).setdefault("attached", False)
    return attachment


def default_driver(driver: Json) -> Json:
    spec = driver.setdefault("spec", {})
    spec.setdefault("attachRequired", True)
    for flag in ("podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"):
        spec.setdefault(flag, False)
    spec.setdefault("fsGroupPolicy", "ReadWriteOnceWithFSType")
    spec.setdefault("volumeLifecycleModes", ["Persistent"])
    return driver


def default_controller(controller: Json) -> Json:
    spec = controller.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    labels = spec.get("template", {}).get("metadata", {}).get("labels")
    if labels:
        spec.setdefault("selector", labels)
        controller["metadata"].setdefault("labels", labels)
    return controller


def requires(*paths: str) -> Callable[[Json, Json | None], list[Cause]]:
    """A check that these fields are present, by their dotted paths."""
    return lambda tree, live: [required(path) for path in paths if not _at(tree, path)]


def _at(tree: Any, path: str) -> Any:
    for step in path.split("."):
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree
