"""PURE. Which shadow claims a node should have (`dialects.dra_shadows`).

    a pod holds a part of a GPU               a shadow of that amount; claims hold what they have themselves
    the GPU is kept for a booked pod,         a shadow of all that is free of it; not if that pod has claims: its
    or no pod may have it now                 scheduler must see the GPU, and the gate refuses it to others
    the device cannot be divided              one shadow, if anything of it is not free

A device that has a taint already, because its own node says that no pod may have it, needs no shadow for that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from carrel.dialects.dra_shadows import OfferedDevice, Shadow
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Card

REST = "rest"
"""The key of a shadow that stands for all that is free."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the plan of one node is made from."""

    cards: Iterable[Card]
    devices: Mapping[str, OfferedDevice]
    """By UUID, as the node's slices offer them."""
    unusable: str = ""
    """Why no pod comes to the node."""
    has_claims: Callable[[str], bool] = lambda uid: False
    """Whether the pod of that uid asks for its GPUs by claims."""


def wanted_shadows(node: NodeView) -> dict[str, Shadow]:
    """By name."""
    found = (
        shadow
        for card in node.cards
        if (device := node.devices.get(card.gpu.uuid)) is not None
        for shadow in _of_card(card, device, node)
    )
    return {shadow.name: shadow for shadow in found}


def _of_card(card: Card, device: OfferedDevice, node: NodeView) -> Iterator[Shadow]:
    pods = [share for share in card.shares.values() if not share.holder.is_claim]
    why_none = "" if device.is_tainted else card.gpu.unusable or node.unusable
    if card.kept_for is not None and not node.has_claims(card.kept_for.uid):
        why_none = f"kept for {card.kept_for}"
    if not device.divides:
        has_claims = len(pods) < len(card.shares)
        if (pods or why_none) and not has_claims:
            words = ", ".join(sorted(share.holder.full_name for share in pods)) or why_none
            yield Shadow(device, card.gpu, REST, None, words)
        return
    for share in pods:
        yield Shadow(device, card.gpu, share.holder.uid, MiB(card.held(share)), share.holder.full_name)
    if why_none and card.free > 0:
        yield Shadow(device, card.gpu, REST, MiB(card.free), why_none)
