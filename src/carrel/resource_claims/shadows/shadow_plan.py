"""PURE. Which shadow claims a node should have (`shadows.shadow_words`).

    a pod holds a part of a GPU               a shadow of that amount; claims hold what they have themselves
    the GPU is kept for a booked pod,         a shadow of all that is free of it; not if that pod has claims: its
    or no pod may have it now                 scheduler must see the GPU, and the gate refuses it to others
    the device cannot be divided              one shadow, if anything of it is not free

A device that has a taint already, because its own node says that no pod may have it, needs no shadow for that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import GpuEntry
from carrel.resource_claims.shadows.shadow_words import AdvertisedDevice, Shadow

REST = "rest"
"""The key of a shadow that stands for all that is free."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the plan of one node is made from."""

    entries: Iterable[GpuEntry]
    devices: Mapping[str, AdvertisedDevice]
    """By UUID, as the node's slices advertise them."""
    unusable: str = ""
    """Why no pod comes to the node."""
    has_claims: Callable[[str], bool] = lambda uid: False
    """Whether the pod of that uid asks for its GPUs by claims."""


def wanted_shadows(node: NodeView) -> dict[str, Shadow]:
    """Return the shadows by name."""
    found = (
        shadow
        for entry in node.entries
        if (device := node.devices.get(entry.gpu.uuid)) is not None
        for shadow in _of_gpu(entry, device, node)
    )
    return {shadow.name: shadow for shadow in found}


def _of_gpu(entry: GpuEntry, device: AdvertisedDevice, node: NodeView) -> Iterator[Shadow]:
    pods = [share for share in entry.shares.values() if not share.holder.is_claim]
    why_none = "" if device.is_tainted else entry.gpu.unusable or node.unusable
    if entry.kept_for is not None and not node.has_claims(entry.kept_for.uid):
        why_none = f"kept for {entry.kept_for}"
    if not device.divides:
        has_claims = len(pods) < len(entry.shares)
        if (pods or why_none) and not has_claims:
            words = ", ".join(sorted(share.holder.full_name for share in pods)) or why_none
            yield Shadow(device, entry.gpu, REST, None, words)
        return
    for share in pods:
        yield Shadow(device, entry.gpu, share.holder.uid, MiB(entry.held(share)), share.holder.full_name)
    if why_none and entry.free > 0:
        yield Shadow(device, entry.gpu, REST, MiB(entry.free), why_none)
