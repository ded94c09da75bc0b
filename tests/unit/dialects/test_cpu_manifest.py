"""A pod that goes on without a GPU asks for no node with one."""

from typing import Any

import pytest

from carrel.dialects.cpu_manifest import is_gpu_label, without_gpu_nodes

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HAS_GPU = {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
IN_ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
NO_GPU = {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}


@pytest.mark.parametrize(
    "label",
    [
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.product",
        "nvidia.com/gpu.count",
        "nvidia.com/mig.strategy",
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-0302_10de.present",
        "cloud.google.com/gke-accelerator",
        "cloud.google.com/gke-accelerator-count",
        "k8s.amazonaws.com/accelerator",
        "karpenter.k8s.aws/instance-gpu-name",
        "kubernetes.azure.com/accelerator",
        "accelerator",
        "gpushare",
        "gpu",
    ],
)
def test_a_label_that_only_gpu_nodes_have_is_known(label: str) -> None:
    assert is_gpu_label(label)
    assert without_gpu_nodes({"nodeSelector": {label: "x", "room": "b12"}}) == {"nodeSelector": {"room": "b12"}}
    assert without_gpu_nodes({"nodeSelector": {label: "x"}}) == {}


@pytest.mark.parametrize(
    "label",
    [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "feature.node.kubernetes.io/pci-8086.present",
        "feature.node.kubernetes.io/cpu-model.id",
        "node.kubernetes.io/instance-type",
        "gpu-free",
    ],
)
def test_other_labels_stay(label: str) -> None:
    assert without_gpu_nodes({"nodeSelector": {label: "x"}}) == {"nodeSelector": {label: "x"}}


def affinity(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": t} for t in terms]}}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(affinity([HAS_GPU]), {}, id="nothing else is asked"),
        pytest.param(affinity([HAS_GPU, IN_ZONE]), affinity([IN_ZONE]), id="the zone stays"),
        pytest.param(affinity([HAS_GPU], [IN_ZONE]), affinity([IN_ZONE]), id="a term that says nothing goes"),
        pytest.param(affinity([NO_GPU]), affinity([NO_GPU]), id="a node without a GPU may be asked for"),
    ],
)
def test_a_required_affinity_is_relaxed(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert without_gpu_nodes(before) == after


def test_what_is_preferred_is_relaxed_and_everything_else_stays() -> None:
    wishes = [
        {"weight": 1, "preference": {"matchExpressions": [HAS_GPU]}},
        {"weight": 2, "preference": {"matchExpressions": [HAS_GPU, IN_ZONE]}},
    ]
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    spec = {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {
            "podAntiAffinity": {"x": "y"},
            "nodeAffinity": {PREFERRED: wishes, REQUIRED: {"nodeSelectorTerms": [field]}},
        },
    }

    assert without_gpu_nodes(spec) == {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "affinity": {
            "podAntiAffinity": {"x": "y"},
            "nodeAffinity": {
                PREFERRED: [{"weight": 2, "preference": {"matchExpressions": [IN_ZONE]}}],
                REQUIRED: {"nodeSelectorTerms": [field]},
            },
        },
    }


@pytest.mark.parametrize("broken", [{"affinity": None}, {"affinity": {"nodeAffinity": None}}, {"nodeSelector": None}])
def test_null_is_nothing(broken: dict[str, Any]) -> None:
    assert without_gpu_nodes(broken) in ({}, {"affinity": {}})
