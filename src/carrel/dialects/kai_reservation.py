"""KAI's reservation pod: it takes one whole GPU or MIG slice of a node from the kubelet, finds out which, and writes it
on itself.

    annotation   run.ai/reserve_for_gpu_index   the UUID of the GPU (it says "index", and is none)
    label        runai-gpu-group                the group of fraction pods that share the GPU

Two spellings are in use: that of KAI ≥ 0.17, and the one before it. Both names of the pod come from node and group
alone, so that creating it twice is creating it once.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from carrel.dialects import mig, nvidia
from carrel.dialects.kai import GPU_GROUP
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field
from carrel.parsing.malformed import Malformed

RESERVED_GPU = "run.ai/reserve_for_gpu_index"
_LONGEST_LABEL = 63
_LONGEST_PART = 200
"""Of a node's name, in a pod's: either may have 253 characters."""


@dataclass(frozen=True, slots=True)
class ReservationSpelling:
    namespace: str
    """Also the name of its ServiceAccount and the value of its `app` label."""
    container: str
    labels: Mapping[str, str]
    old: bool = False

    def pod_name(self, node: str, group: str) -> str:
        digest = hashlib.sha256(f"{node}/{group}".encode()).hexdigest()
        return (
            f"runai-reservation-gpu-{node[:_LONGEST_PART]}-{digest[:5]}"
            if self.old
            else f"gpu-reservation-{digest[:16]}"
        )


KAI_0_17 = ReservationSpelling("kai-resource-reservation", "resource-reservation", {})
BEFORE_KAI_0_17 = ReservationSpelling(
    "runai-reservation", "runai-reservation", {"app.runai.resource.reservation": "runai-reservation-gpu"}, old=True
)
SPELLINGS = (KAI_0_17, BEFORE_KAI_0_17)
_NAMESPACES = frozenset(spelling.namespace for spelling in SPELLINGS)


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """One GPU of a node, for a group of fraction pods."""

    node: NodeName
    group: str
    image: str
    notes: Mapping[str, str] = field(default_factory=dict)
    """Annotations by which its maker knows it again."""
    runtime_class: str = ""
    """Empty: the node's default."""
    resource: str = nvidia.GPU
    """By which the kubelet is asked for it; a MIG slice has one of its own."""


def reservation_pod(reservation: ReservationRequest, spelling: ReservationSpelling = KAI_0_17) -> dict[str, Any]:
    one_gpu = {reservation.resource: "1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spelling.pod_name(reservation.node, reservation.group),
            "namespace": spelling.namespace,
            "labels": {"app": spelling.namespace, GPU_GROUP: reservation.group, **spelling.labels},
            "annotations": {"karpenter.sh/do-not-disrupt": "true", **reservation.notes},
        },
        "spec": {
            # Named, so that no scheduler has a say: the kubelet alone decides which GPU it gets.
            "nodeName": reservation.node,
            "serviceAccountName": spelling.namespace,
            # Wherever a pod may run that shares the GPU, this must; and it must be the last to be put out.
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": 5,
            "enableServiceLinks": False,
            **({"runtimeClassName": reservation.runtime_class} if reservation.runtime_class else {}),
            "containers": [
                {
                    "name": spelling.container,
                    "image": reservation.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["carrel", "reservation"],
                    "resources": {"requests": one_gpu, "limits": one_gpu},
                    "env": [_from_itself("POD_NAME", "name"), _from_itself("POD_NAMESPACE", "namespace")],
                }
            ],
        },
    }


def group_of(lease: str) -> str:
    """The group that shares a slot: the name of the slot's Lease, or its digest where that is too long for a label."""
    return lease if len(lease) <= _LONGEST_LABEL else hashlib.sha256(lease.encode()).hexdigest()[:_LONGEST_LABEL]


def is_reservation(pod: Pod) -> bool:
    """Told by its namespace, which is ours, and not by a label alone, which anyone can write."""
    return pod.metadata.namespace in _NAMESPACES and GPU_GROUP in pod.metadata.labels


def reserved_in(annotations: Mapping[str, str], where: str) -> GpuUuid:
    """The UUID of the GPU; empty while the pod has not found it yet."""
    uuid = GpuUuid(annotations.get(RESERVED_GPU, ""))
    if uuid and not uuid.startswith(("GPU-", mig.UUID)):
        raise Malformed(where, annotation_field(RESERVED_GPU), uuid, "the UUID of a GPU: GPU-… or MIG-…")
    return uuid


def write_reserved(uuid: GpuUuid) -> dict[str, str]:
    return {RESERVED_GPU: uuid}


def _from_itself(variable: str, field: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
