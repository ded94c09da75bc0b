"""How much memory of a GPU pods may share: all that is written on it, or that without what its driver keeps.

The agent decides it for its node, and reports it with the GPU, so that everybody counts alike. What the Node shows to
kube-scheduler and the kubelet stays the whole memory: a pod that asks for all of a GPU must pass both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from carrel.configuration.gpu_memory import Capacity
from carrel.dialects import gpushare
from carrel.ids import GpuUuid
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.ledger.gpus import Gpu, shareable
from carrel.node.interfaces import NOTHING_KEPT, GpuDetails


def counts_all_memory(capacity: Capacity, node: NodeObject | None, *, serves_gpushare: bool) -> bool:
    """`serves_gpushare`: its own plugin has the node. By default the label that this plugin needs decides, too."""
    labels = node.metadata.labels if node is not None else {}
    is_gpushare = serves_gpushare or labels.get(gpushare.NODE_LABEL) == "true"
    return capacity is Capacity.TOTAL or (capacity is Capacity.AUTO and is_gpushare)


def with_usable_memory(gpus: Iterable[Gpu], details: Mapping[GpuUuid, GpuDetails]) -> tuple[Gpu, ...]:
    """Return the GPUs with what their drivers leave to pods. A driver that claims to keep all is not believed."""
    kept = ((gpu, details[gpu.uuid].kept if gpu.uuid in details else NOTHING_KEPT) for gpu in gpus)
    return tuple(
        replace(gpu, memory=shareable(gpu.memory - mib, gpu.memory)) if 0 < mib < gpu.memory else gpu
        for gpu, mib in kept
    )
