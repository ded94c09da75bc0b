"""Labels that only nodes with GPUs have, and a pod's spec that does not ask for them.

    nvidia.com/…                                    NVIDIA's feature discovery and operator: gpu.present, gpu.product, …
    feature.node.kubernetes.io/pci-…10de….present   Node Feature Discovery: a PCI device of NVIDIA
    cloud.google.com/gke-accelerator…, gke-gpu…     Google's
    k8s.amazonaws.com/accelerator                   Amazon's; karpenter.k8s.aws/instance-gpu-… Karpenter's
    kubernetes.azure.com/accelerator, accelerator   Microsoft's
    gpushare, aliyun.accelerator/…, gpu             gpushare's and HAMi's

A pod that goes on without a GPU must be able to run on a node without one. Tolerations stay: they only allow nodes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from carrel.dialects import registry

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

Json = dict[str, Any]


def is_gpu_label(key: str) -> bool:
    is_of_pci = key.startswith(_PCI) and _NVIDIA in key
    return is_of_pci or key.startswith(PREFIXES) or key in LABELS or key in registry.ALL.node_labels


def without_gpu_nodes(spec: Mapping[str, Any]) -> Json:
    """The pod's spec, in whose selector and node affinity no label of GPU nodes is asked for."""
    changed = dict(spec)
    if selector := changed.pop("nodeSelector", None):
        kept = {key: value for key, value in selector.items() if not is_gpu_label(key)}
        changed |= {"nodeSelector": kept} if kept else {}
    if affinity := changed.pop("affinity", None):
        relaxed = _affinity(affinity)
        changed |= {"affinity": relaxed} if relaxed else {}
    return changed


def _affinity(affinity: Mapping[str, Any]) -> Json:
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


def _term(term: Mapping[str, Any]) -> Json:
    left = {key: _expressions(value) if key == "matchExpressions" else value for key, value in term.items()}
    return {key: value for key, value in left.items() if value}


def _expressions(expressions: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    return [
        each
        for each in expressions or ()
        if not is_gpu_label(str(each.get("key", ""))) or each.get("operator") in WITHOUT
    ]
