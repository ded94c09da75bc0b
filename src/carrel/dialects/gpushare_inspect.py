"""The ledger in gpushare's words and units, as its `inspect` answers."""

from collections.abc import Iterable

from carrel.dialects.gpushare import InspectedCard, InspectedNode, InspectedPod
from carrel.dialects.options import Unit
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Card, Ledger


def inspected(ledger: Ledger, unit: Unit, nodes: Iterable[str] | None = None) -> list[InspectedNode]:
    """The named nodes, or all of them; by name."""
    return [
        InspectedNode(name, [_card(card, unit) for card in ledger.cards(name)])
        for name in sorted(ledger.nodes if nodes is None else nodes)
    ]


def _card(card: Card, unit: Unit) -> InspectedCard:
    pods = []
    for share in card.shares.values():
        holder = share.holder
        pods.append(InspectedPod(holder.name or holder.uid, holder.namespace, unit.from_memory(MiB(card.held(share)))))
    return InspectedCard(card.gpu.index, unit.from_memory(card.gpu.memory), pods)
