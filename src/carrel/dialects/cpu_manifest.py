"""A pod's manifest without its GPU: the manifest with which a workload continues when it has lost its GPU.

Taken off: the GPU resources and annotations of every dialect, the ResourceClaims for GPUs, what Carrel wrote on the
pod, the node it was bound to and the labels that only nodes with a GPU have (`gpu_node_labels`), the scheduler and the
priority that it had for its GPU. Its name, labels, owners, volumes and everything else stay, whether Carrel has heard
of it or not: sidecars, tolerations, claims for other devices, resources of the pod as a whole (which never are GPUs:
Kubernetes takes only processors, memory and huge pages there), scheduling gates that nobody has removed yet. In every
container, sidecars too, `NVIDIA_VISIBLE_DEVICES` is reset: an image may ask for all GPUs by itself, and empty is what
NVIDIA's runtime takes for no GPU and no driver. The variables of each dialect are taken off.
"""

from collections.abc import Collection, Mapping
from typing import Any

from carrel.dialects import carrel, gpuclaim, nvidia, protected_keys, registry
from carrel.dialects.gpu_node_labels import without_gpu_nodes
from carrel.kubernetes.objects.pods import annotation_field

Manifest = dict[str, Any]

OF_THE_NODE = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})
"""Labels of a pod that the API server copies from its node when it is bound."""

RESET = ""
_LEAST_GRACE_S = 1
"""What Kubernetes makes of a negative grace period. Old API servers stored such pods; those of today refuse them."""
_OF_THE_SERVER = ("nodeName", "priority", "preemptionPolicy", "overhead", "ephemeralContainers")
"""Fields of the spec that the API server fills in itself, or does not take from whoever creates a pod."""


def on_cpu(pod: Mapping[str, Any], notes: Mapping[str, str], claims: Collection[str] = ()) -> Manifest:
    """The manifest of a pod as it is on the API server, to be created anew; `notes` are added to its annotations.
    `claims`: its ResourceClaims for GPUs, as the pod calls them, and the resources for which a scheduler makes some."""
    metadata, spec = pod["metadata"], dict(pod["spec"])
    for field in _OF_THE_SERVER:
        spec.pop(field, None)
    if spec.get("schedulerName") == gpuclaim.SCHEDULER:
        del spec["schedulerName"]  # a pod without a GPU need not wait for those who hand out GPUs
    if spec.get("priorityClassName") == carrel.PRIORITY_CLASS:
        del spec["priorityClassName"]
    # The gate of Carrel holds a pod for a booking, and without a GPU it needs none.
    gates = [gate for gate in spec.pop("schedulingGates", None) or () if gate.get("name") != carrel.BOOKING]
    if gates:
        spec["schedulingGates"] = gates
    # NVIDIA's operator has several: nvidia, nvidia-cdi, nvidia-legacy. A node without GPUs has none of them.
    if spec.get("runtimeClassName", "").startswith(nvidia.RUNTIME_CLASS):
        del spec["runtimeClassName"]
    if (spec.get("terminationGracePeriodSeconds") or 0) < 0:
        spec["terminationGracePeriodSeconds"] = _LEAST_GRACE_S
    spec = without_gpu_nodes(spec)
    if kept := [each for each in spec.pop("resourceClaims", None) or () if each.get("name") not in claims]:
        spec["resourceClaims"] = kept
    for group in ("initContainers", "containers"):
        if group in spec:
            spec[group] = [_without_claims(_container(each, claims), claims) for each in spec[group]]
    named = {key: metadata[key] for key in ("name", "namespace", "ownerReferences") if metadata.get(key)}
    foreign = OF_THE_NODE if pod["spec"].get("nodeName") else frozenset[str]()
    labels = {
        key: each
        for key, each in metadata.get("labels", {}).items()
        if key not in foreign and not protected_keys.is_protected_label(key)
    }
    stays = {key: each for key, each in metadata.get("annotations", {}).items() if _stays(key)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**named, "labels": labels, "annotations": {**stays, **notes}},
        "spec": spec,
    }


def _stays(annotation: str) -> bool:
    return annotation not in registry.ALL.asked and not protected_keys.is_protected_annotation(annotation)


def without_resources(container: Mapping[str, Any], words: Collection[str]) -> Manifest:
    """The container, which does not ask for any of these resources."""
    resources = {
        name: {key: amount for key, amount in amounts.items() if key not in words}
        if name in ("limits", "requests") and amounts
        else amounts
        for name, amounts in (container.get("resources") or {}).items()
    }
    return {**container, "resources": resources}


def _without_claims(container: Manifest, claims: Collection[str]) -> Manifest:
    resources = container.get("resources") or {}
    used = resources.get("claims") or ()
    left = [each for each in used if each.get("name") not in claims]
    if len(left) == len(used):
        return container
    others = {key: each for key, each in resources.items() if key != "claims"}
    return {**container, "resources": {**others, "claims": left} if left else others}


def _is_told(variable: Mapping[str, Any]) -> bool:
    """Whether it reads what Carrel wrote on the pod."""
    field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
    return any(field == annotation_field(key) for key in registry.ALL.variable_sources)


def _container(container: Mapping[str, Any], claims: Collection[str]) -> Manifest:
    written = {variable["name"] for variable in container.get("env", [])}
    # Where CUDA's own variable is written, it names GPUs that the container does not have any more.
    hidden = [
        nvidia.VISIBLE_DEVICES,
        *([nvidia.CUDA_VISIBLE_DEVICES] if nvidia.CUDA_VISIBLE_DEVICES in written else []),
    ]
    gone = {*hidden, *registry.ALL.variable_names}
    env = [variable for variable in container.get("env", []) if variable["name"] not in gone and not _is_told(variable)]
    # First, as other variables may refer to them.
    without = without_resources(container, registry.ALL.resources.union(claims))
    return {**without, "env": [*({"name": each, "value": RESET} for each in hidden), *env]}
