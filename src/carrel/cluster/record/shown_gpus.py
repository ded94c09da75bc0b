"""The GPUs of a node with their holders, as people see them: by the numbers of the GPUs, never of slots.

Where the kubelet chooses the GPUs, the ledger has slots. Behind a slot is the GPU that its reservation pod holds or,
for a pod that asked the kubelet itself, the GPU that the agent saw it with. A holder whose GPU nobody knows yet is
shown on a GPU that nobody else has, so that the sums are right; so is the reason why a free slot cannot be had.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from carrel.cluster.record.cluster_ledger import ClusterLedger
from carrel.dialects import mig
from carrel.ids import NO_GPU, GpuUuid, HolderId, NodeName
from carrel.ledger.gpus import Gpu, Node
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.shares import Holder, Share


def shown_gpus(cluster_ledger: ClusterLedger, node: NodeName) -> Sequence[GpuEntry]:
    reported = cluster_ledger.reported(node)
    if reported is None or not cluster_ledger.kubelet_chooses(node):
        return cluster_ledger.ledger.entries(node)
    found: list[GpuEntry] = []
    for kind in {gpu.kind for gpu in reported.gpus}:
        found += _shown_of_kind(cluster_ledger, reported, kind)
    return sorted(found, key=lambda entry: entry.gpu.index)


def _shown_of_kind(cluster_ledger: ClusterLedger, reported: Node, kind: str) -> list[GpuEntry]:
    """The GPUs, or the MIG slices of one profile: a slot of one kind is never a GPU of another."""
    node, gpus = reported.name, tuple(gpu for gpu in reported.gpus if gpu.kind == kind)
    held: dict[GpuUuid, dict[HolderId, Share]] = {gpu.uuid: {} for gpu in gpus}
    kept: dict[GpuUuid, Holder | None] = {}
    unknown: list[tuple[Iterable[Share], Holder | None]] = []
    spare: list[str] = []  # of each free slot, why it cannot be had
    for slot in (each for each in cluster_ledger.ledger.entries(node) if each.gpu.kind == kind):
        uuid = _gpu_of(cluster_ledger, slot, gpus, held)
        if uuid:
            _show(slot.shares.values(), uuid, held)
            kept[uuid] = slot.kept_for
        elif slot.shares or slot.kept_for:
            unknown.append((slot.shares.values(), slot.kept_for))
        else:
            spare.append(slot.gpu.unusable)
    for pod in cluster_ledger.unrecorded(node):
        for gpu in (each for each in pod.gpus if each.kind == kind):
            _show(pod.shares([gpu]), gpu.uuid, held)
        is_unknown = not pod.is_known and pod.resource == mig.resource_named(kind)
        unknown += [(pod.shares(gpus[:1]), None)] * (pod.count if is_unknown else 0)
    healthy_first = sorted(gpus, key=lambda gpu: bool(gpu.unusable))
    idle = [gpu for gpu in healthy_first if not held[gpu.uuid] and gpu.uuid not in kept]
    for (shares, keeper), gpu in zip(unknown, idle, strict=False):
        _show(shares, gpu.uuid, held)
        kept[gpu.uuid] = keeper
    left = [gpu.uuid for gpu in idle[len(unknown) :] if not gpu.unusable]
    # Two pods to which the kubelet gave one GPU count as two: it might give that GPU once more, instead of a free one.
    spare += [f"it is kept free: the kubelet gave another GPU of {node} twice"] * (len(left) - len(spare))
    closed = dict(zip(left[spare.count("") :], filter(None, spare), strict=False))
    return [
        GpuEntry(replace(gpu, unusable=gpu.unusable or closed.get(gpu.uuid, "")), held[gpu.uuid], kept.get(gpu.uuid))
        for gpu in gpus
    ]


def shown_gpu(cluster_ledger: ClusterLedger, uuid: GpuUuid) -> GpuEntry | None:
    """The GPU with this UUID; None if no node reports it."""
    entry = cluster_ledger.ledger.entry(uuid)
    if entry is not None and not cluster_ledger.kubelet_chooses(entry.gpu.node):
        return entry
    nodes = filter(cluster_ledger.kubelet_chooses, cluster_ledger.ledger.nodes)
    shown = (entry for node in nodes for entry in shown_gpus(cluster_ledger, node))
    return next((entry for entry in shown if entry.gpu.uuid == uuid), None)


def shown_indices(cluster_ledger: ClusterLedger, node: NodeName, uid: HolderId) -> tuple[int, ...]:
    """The numbers of the GPUs of a pod."""
    return tuple(entry.gpu.index for entry in shown_gpus(cluster_ledger, node) if uid in entry.shares)


def _gpu_of(
    cluster_ledger: ClusterLedger, slot: GpuEntry, gpus: Sequence[Gpu], held: dict[GpuUuid, dict[HolderId, Share]]
) -> GpuUuid:
    """The UUID of the GPU behind a slot; empty if it is not known."""
    if len(slot.gpu.possible_uuids) == 1 and not slot.gpu.possible_uuids.isdisjoint(held):
        return next(iter(slot.gpu.possible_uuids))
    users = {gpu.uuid: cluster_ledger.users_of(gpu) for gpu in gpus}
    own = (uuid for uuid in held if not held[uuid] and any(uid in users[uuid] for uid in slot.shares))
    return next(own, NO_GPU)


def _show(shares: Iterable[Share], uuid: GpuUuid, held: dict[GpuUuid, dict[HolderId, Share]]) -> None:
    held[uuid].update((share.holder.uid, replace(share, gpu=uuid)) for share in shares)
