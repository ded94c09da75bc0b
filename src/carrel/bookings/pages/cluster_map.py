"""The cluster as a picture: nodes, their cards, and on each card who holds how much of it.

    fill      memory that is held, from the bottom up
    pattern   the tier: plain is booked, stripes are opportunistic, dots have no tier
    outline   health: solid is well, dashed takes no new pod; a double line is kept for a booked pod
    bracket   cards of one NVLink island

Pure: what is seen of the ledger in, view models and markup out. The colours repeat what the patterns say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from carrel.bookings.pages import wording
from carrel.ledger.ledger import Card, Ledger
from carrel.ledger.shares import Share, ShareState
from carrel.ledger.tiers import Tier

WIDTH, HEIGHT = 44, 64
"""Of a card, in pixels."""

STATES = {
    ShareState.ASSUMED: "promised",
    ShareState.ASSIGNED: "runs",
    ShareState.RELEASING: "is going",
    ShareState.GONE: "is gone",
}


@dataclass(frozen=True, slots=True)
class PodSeen:
    """What the map says of a pod."""

    tier: Tier | None
    """None: nobody decided. It is neither protected by a booking nor asked to make room."""
    user: str = ""


PodOf = Callable[[str], PodSeen]
"""What is known of the pod with that uid."""


@dataclass(frozen=True, slots=True)
class Holding:
    pod: str
    tier: Tier | None
    user: str
    memory: int
    whole: bool
    state: str

    @property
    def tier_name(self) -> str:
        return self.tier.value if self.tier else "no tier"

    @property
    def amount(self) -> str:
        return f"{'whole card, ' if self.whole else ''}{wording.memory(self.memory)}"


@dataclass(frozen=True, slots=True)
class CardSeen:
    uuid: str
    node: str
    index: int
    model: str
    memory: int
    island: str
    unusable: str
    kept_for: str
    holdings: tuple[Holding, ...]

    @property
    def held(self) -> int:
        return sum(holding.memory for holding in self.holdings)

    @property
    def free(self) -> int:
        return max(self.memory - self.held, 0)

    @property
    def words(self) -> str:
        """All that the picture shows, for those who do not see it."""
        held = ", ".join(f"{each.pod} ({each.tier_name}, {each.amount}, {each.state})" for each in self.holdings)
        parts = [
            f"GPU {self.index} of {self.node}, {wording.model(self.model)}",
            f"{self.free:,} of {self.memory:,} MiB free",
            f"held by {held}" if held else "held by nobody",
        ]
        parts += [f"kept for {self.kept_for}"] if self.kept_for else []
        parts += [f"takes no new pod: {self.unusable}"] if self.unusable else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class NodeSeen:
    name: str
    unusable: str
    cards: tuple[CardSeen, ...]

    @property
    def idle(self) -> int:
        """Cards that nobody holds a part of, and that a new pod may have."""
        return sum(not (card.holdings or card.unusable or card.kept_for or self.unusable) for card in self.cards)

    @property
    def models(self) -> Sequence[str]:
        return sorted({card.model for card in self.cards})

    @property
    def islands(self) -> Sequence[tuple[str, Sequence[CardSeen]]]:
        """Cards side by side in one island; the name is empty where there is no link."""
        return [(island, tuple(cards)) for island, cards in groupby(self.cards, key=lambda card: card.island)]


@dataclass(frozen=True, slots=True)
class Totals:
    cards: int
    idle: int
    held_memory: int
    memory: int

    @property
    def held_percent(self) -> int:
        return round(100 * self.held_memory / self.memory) if self.memory else 0


def see_node(ledger: Ledger, name: str, pod_of: PodOf) -> NodeSeen:
    node = ledger.node(name)
    cards = tuple(_see_card(card, pod_of) for card in ledger.cards(name))
    return NodeSeen(name, node.unusable if node else "it is gone", cards)


def see_card(ledger: Ledger, uuid: str, pod_of: PodOf) -> CardSeen | None:
    card = ledger.card(uuid)
    return _see_card(card, pod_of) if card else None


def _see_card(card: Card, pod_of: PodOf) -> CardSeen:
    def holding(share: Share) -> Holding:
        pod = pod_of(share.holder.uid)
        whole = share.memory is None
        return Holding(str(share.holder), pod.tier, pod.user, card.held(share), whole, STATES[share.state])

    gpu = card.gpu
    return CardSeen(
        uuid=gpu.uuid,
        node=gpu.node,
        index=gpu.index,
        model=gpu.model,
        memory=gpu.memory,
        island=gpu.island,
        unusable=gpu.unusable,
        kept_for=str(card.kept_for) if card.kept_for else "",
        holdings=tuple(holding(share) for _, share in sorted(card.shares.items())),
    )


def totals(ledger: Ledger) -> Totals:
    """Of the whole cluster. Counted from the cards alone, because it is counted at every change."""
    nodes = [ledger.node(name) for name in ledger.nodes]
    cards = [(node, card) for node in nodes if node for card in ledger.cards(node.name)]
    return Totals(
        cards=len(cards),
        idle=sum(not (card.shares or card.kept_for or card.gpu.unusable or node.unusable) for node, card in cards),
        held_memory=sum(card.gpu.memory - max(card.free, 0) for _, card in cards),
        memory=sum(card.gpu.memory for _, card in cards),
    )


def draw(card: CardSeen, *, node_unusable: bool = False) -> Markup:
    """A card as a vessel that fills from the bottom."""
    state = "ill" if card.unusable or node_unusable else "kept" if card.kept_for else "well"
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    parts = [
        f'<svg class="card {state}" {size} aria-hidden="true">'
        f'<rect class="empty" x="1.5" y="1.5" width="{WIDTH - 3}" height="{HEIGHT - 3}" rx="3"/>'
    ]
    room = HEIGHT - 6
    y = float(HEIGHT - 3)
    for holding in card.holdings:
        height = room * holding.memory / max(card.memory, card.held, 1)
        y -= height
        going = " going" if holding.state == STATES[ShareState.RELEASING] else ""
        place = f'x="3" y="{y:.1f}" width="{WIDTH - 6}" height="{max(height - 0.75, 1):.1f}"'
        parts.append(f'<rect class="share {escape(holding.tier_name.replace(" ", "-"))}{going}" {place}/>')
    parts.append(f'<rect class="outline" x="1.5" y="1.5" width="{WIDTH - 3}" height="{HEIGHT - 3}" rx="3"/>')
    if state == "kept":
        parts.append(f'<rect class="inner" x="4.5" y="4.5" width="{WIDTH - 9}" height="{HEIGHT - 9}" rx="2"/>')
    if state == "ill":
        parts.append(f'<path class="cross" d="M{WIDTH / 2 - 6} {HEIGHT / 2 - 6}l12 12m0-12l-12 12"/>')
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 # what people wrote is escaped above
