"""The ledger in gpushare's words and units, as its `inspect` answers."""

from collections.abc import Callable, Iterable, Sequence

from carrel.dialects.gpushare import InspectedCard, InspectedNode, InspectedPod
from carrel.dialects.options import Unit
from carrel.ledger.gpus import MiB
from carrel.ledger.ledger import Card, Ledger


def inspected(
    ledger: Ledger,
    unit: Unit,
    nodes: Iterable[str] | None = None,
    cards_of: Callable[[str], Sequence[Card]] | None = None,
) -> list[InspectedNode]:
    """The named nodes, or all of them; by name. `cards_of`: the GPUs of a node as they are shown."""
    cards_of = cards_of or ledger.cards
    return [
        InspectedNode(name, [_card(card, unit) for card in cards_of(name)])
        for name in sorted(ledger.nodes if nodes is None else nodes)
    ]


def _card(card: Card, unit: Unit) -> InspectedCard:
    pods = []
    for share in card.shares.values():
        holder = share.holder
        pods.append(InspectedPod(holder.name or holder.uid, holder.namespace, unit.from_memory(MiB(card.held(share)))))
    return InspectedCard(card.gpu.index, unit.from_memory(card.gpu.memory), pods)
