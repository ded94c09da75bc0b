"""How much memory of a GPU pods may share: all that is written on it, or that without what its driver keeps.

The agent decides it for its node, and reports it with the GPU, so that everybody counts alike. What the Node shows to
kube-scheduler and the kubelet stays the whole memory: a pod that asks for all of a GPU must pass both.
"""

from collections.abc import Mapping
from dataclasses import replace

from carrel.configuration.gpu_memory import Capacity
from carrel.dialects import gpushare
from carrel.ids import GpuUuid
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.ledger.gpus import Gpu, MiB, shareable
from carrel.node.interfaces import NOTHING_KEPT, GpuDetails


def counts_all_memory(capacity: Capacity, node: NodeObject | None, *, serves_gpushare: bool) -> bool:
    """`serves_gpushare`: its own plugin has the node. By default the label that this plugin needs decides, too."""
    labels = node.metadata.labels if node is not None else {}
    is_gpushare = serves_gpushare or labels.get(gpushare.NODE_LABEL) == "true"
    return capacity is Capacity.TOTAL or (capacity is Capacity.AUTO and is_gpushare)


def with_usable_memory(gpus: tuple[Gpu, ...], details: Mapping[GpuUuid, GpuDetails]) -> tuple[Gpu, ...]:
    """Return the GPUs with what their drivers leave to pods. A driver that claims to keep all is not believed."""

    def usable(gpu: Gpu) -> MiB:
        there = details.get(gpu.uuid)
        kept = there.kept if there is not None else NOTHING_KEPT
        return shareable(gpu.memory - kept, gpu.memory) if 0 < kept < gpu.memory else gpu.memory

    return tuple(replace(gpu, memory=usable(gpu)) for gpu in gpus)
