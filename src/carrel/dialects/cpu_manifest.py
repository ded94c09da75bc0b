"""A pod's manifest without its GPU: the manifest with which a workload continues when it has lost its GPU.

Taken off: the GPU resources and annotations of every dialect, the ResourceClaims for GPUs, what Carrel wrote on the
pod, the node it was bound to and the labels that only nodes with a GPU have (see below), the scheduler and the
priority that it had for its GPU. Its name, labels, owners, volumes and everything else stay, whether Carrel has heard
of it or not: sidecars, tolerations, claims for other devices, resources of the pod as a whole (which never are GPUs:
Kubernetes takes only processors, memory and huge pages there), scheduling gates that nobody has removed yet. In every
container, sidecars too, `NVIDIA_VISIBLE_DEVICES` is reset: an image may ask for all GPUs by itself, and empty is what
NVIDIA's runtime takes for no GPU and no driver. The variables of each dialect are taken off.

Labels that only nodes with GPUs have (tolerations stay: they only allow nodes):

    nvidia.com/…                                    NVIDIA's feature discovery and operator: gpu.present, gpu.product, …
    feature.node.kubernetes.io/pci-…10de….present   Node Feature Discovery: a PCI device of NVIDIA
    cloud.google.com/gke-accelerator…, gke-gpu…     Google's
    k8s.amazonaws.com/accelerator                   Amazon's; karpenter.k8s.aws/instance-gpu-… Karpenter's
    kubernetes.azure.com/accelerator, accelerator   Microsoft's
    gpushare, aliyun.accelerator/…, gpu             gpushare's and HAMi's
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from carrel.dialects import carrel, nvidia, protected_keys, registry
from carrel.dialects.options import SCHEDULER
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
    if spec.get("schedulerName") == SCHEDULER:
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
            spec[group] = [_container(each, claims) for each in spec[group]]
    named = {key: metadata[key] for key in ("name", "namespace", "ownerReferences") if metadata.get(key)}
    foreign = OF_THE_NODE if pod["spec"].get("nodeName") else frozenset[str]()
    labels = {
        key: each
        for key, each in metadata.get("labels", {}).items()
        if key not in foreign and not protected_keys.is_protected_label(key)
    }
    stays = {
        key: each
        for key, each in metadata.get("annotations", {}).items()
        if key not in registry.ALL.asked and not protected_keys.is_protected_annotation(key)
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**named, "labels": labels, "annotations": {**stays, **notes}},
        "spec": spec,
    }


def without_resources(container: Mapping[str, Any], is_gone: Callable[[str], bool]) -> Manifest:
    """The container, which asks for the other resources only."""
    resources = {
        name: {key: amount for key, amount in amounts.items() if not is_gone(key)}
        if name in ("limits", "requests") and amounts
        else amounts
        for name, amounts in (container.get("resources") or {}).items()
    }
    return {**container, "resources": resources}


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
    without = without_resources(container, lambda word: word in claims or registry.ALL.is_resource(word))
    used = without["resources"].pop("claims", None) or ()
    if left := [each for each in used if each.get("name") not in claims]:
        without["resources"]["claims"] = left
    return {**without, "env": [*({"name": each, "value": RESET} for each in hidden), *env]}


# --- labels that only nodes with GPUs have ---------------------------------------------------------------------------

PREFIXES = (
    "nvidia.com/",
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-gpu",
    "karpenter.k8s.aws/instance-gpu-",
    "aliyun.accelerator/",
)
LABELS = frozenset({"k8s.amazonaws.com/accelerator", "kubernetes.azure.com/accelerator", "accelerator", "gpu"})
_PCI, _NVIDIA = "feature.node.kubernetes.io/pci-", "10de"

WITHOUT = ("NotIn", "DoesNotExist")
"""What says this about such a label asks for a node without a GPU, and stays."""


def is_gpu_label(key: str) -> bool:
    is_of_pci = key.startswith(_PCI) and _NVIDIA in key
    return is_of_pci or key.startswith(PREFIXES) or key in LABELS or key in registry.ALL.node_labels


def without_gpu_nodes(spec: Mapping[str, Any]) -> Manifest:
    """The pod's spec, in whose selector and node affinity no label of GPU nodes is asked for."""
    changed = dict(spec)
    if selector := changed.pop("nodeSelector", None):
        kept = {key: value for key, value in selector.items() if not is_gpu_label(key)}
        changed |= {"nodeSelector": kept} if kept else {}
    if affinity := changed.pop("affinity", None):
        relaxed = _affinity(affinity)
        changed |= {"affinity": relaxed} if relaxed else {}
    return changed


def _affinity(affinity: Mapping[str, Any]) -> Manifest:
    nodes = dict(affinity.get("nodeAffinity") or {})
    required, preferred = (
        "requiredDuringSchedulingIgnoredDuringExecution",
        "preferredDuringSchedulingIgnoredDuringExecution",
    )
    if terms := (nodes.pop(required, None) or {}).get("nodeSelectorTerms"):
        # Any of the terms will do. One that says nothing any more would match no node.
        kept = [each for each in map(_term, terms) if each]
        nodes |= {required: {"nodeSelectorTerms": kept}} if kept else {}
    if wishes := nodes.pop(preferred, None):
        relaxed = [{**each, "preference": _term(each.get("preference") or {})} for each in wishes]
        left = [each for each in relaxed if each["preference"]]
        nodes |= {preferred: left} if left else {}
    others = {key: value for key, value in affinity.items() if key != "nodeAffinity"}
    return {**others, **({"nodeAffinity": nodes} if nodes else {})}


def _term(term: Mapping[str, Any]) -> Manifest:
    left = {key: _expressions(value) if key == "matchExpressions" else value for key, value in term.items()}
    return {key: value for key, value in left.items() if value}


def _expressions(expressions: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    return [
        each
        for each in expressions or ()
        if not is_gpu_label(str(each.get("key", ""))) or each.get("operator") in WITHOUT
    ]
