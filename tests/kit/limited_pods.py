"""Pods with a part of a GPU in each dialect, and nodes that can limit their memory."""

from carrel.admission.options import AdmissionOptions
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import MergePatch
from tests.kit.eventually import eventually
from tests.kit.lab import Lab, Replica
from tests.kit.reviews import Json, a_pod

ON = AdmissionOptions(limits_memory=True)
MEM = {"aliyun.com/gpu-mem": "8138"}
CLAIM = {"metadata": {"name": "c", "namespace": "lab"}, "spec": {"devices": {"count": 1, "exclusivity": "Shared"}}}
PARTS = {
    "gpushare": (a_pod(MEM), "8138"),
    "KAI's fraction": (a_pod(annotations={"gpu-fraction": "0.5"}), "8138"),
    "KAI's memory": (a_pod(annotations={"gpu-memory": "4000"}), "4000"),
    "HAMi's memory": (a_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}), "3000"),
    "HAMi's percentage": (a_pod({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "25"}), "4069"),
    "a shared GpuClaim": (a_pod(annotations={"gpu.scheduling/claim": "c"}), "4069"),
    "Carrel's own": (a_pod(annotations={"carrel.dev/gpu-memory-mib": "2000"}), "2000"),
}
"""A part in each dialect, and what the container may have of a GPU of 16,276 MiB."""


def named(pod: Json) -> Json:
    """The pod as it may be created in a lab, which has no PriorityClass."""
    spec = {key: each for key, each in pod["spec"].items() if key != "priorityClassName"}
    metadata = {**pod["metadata"], "name": "a", "namespace": "lab"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def says(lab: Lab, words: str, node: str = "n1") -> None:
    """What the node's agent says about limits of memory."""
    said = MergePatch({"status": {"memoryLimits": words}})
    await lab.client.patch(GPU_NODE_STATUSES, node, said, subresource="status")


async def can_limit(lab: Lab, replica: Replica) -> None:
    await says(lab, "possible")
    await eventually(lambda: not any(replica.ledger.node(name).why_no_limits for name in replica.ledger.nodes))  # type: ignore[union-attr] # it is there
