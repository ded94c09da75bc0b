"""The ledger in gpushare's words and units, as its `inspect` answers."""

from collections.abc import Callable, Iterable, Sequence

from carrel.dialects.gpushare import InspectedGpu, InspectedNode, InspectedPod
from carrel.dialects.options import Unit
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import GpuEntry, Ledger


def inspected(
    ledger: Ledger,
    unit: Unit,
    nodes: Iterable[str] | None = None,
    entries_of: Callable[[str], Sequence[GpuEntry]] | None = None,
) -> list[InspectedNode]:
    """The named nodes, or all of them; by name. `entries_of`: the GPUs of a node as they are shown."""
    entries_of = entries_of or ledger.entries
    return [
        InspectedNode(name, [_gpu(entry, unit) for entry in entries_of(name)])
        for name in sorted(ledger.nodes if nodes is None else nodes)
    ]


def _gpu(entry: GpuEntry, unit: Unit) -> InspectedGpu:
    pods = []
    for share in entry.shares.values():
        holder = share.holder
        pods.append(InspectedPod(holder.name or holder.uid, holder.namespace, unit.from_memory(MiB(entry.held(share)))))
    return InspectedGpu(entry.gpu.index, unit.from_memory(entry.gpu.memory), pods)
