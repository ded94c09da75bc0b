"""What a pod asks for, whatever the spelling: n cards × an amount of each, and where they should lie."""

from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction

from carrel.ledger.gpus import MiB


@dataclass(frozen=True, slots=True)
class Memory:
    """Some MiB of a card, the same on every card asked for."""

    mib: MiB

    def on(self, card_memory: MiB) -> MiB:
        return self.mib

    def __str__(self) -> str:
        return f"{self.mib:,} MiB"


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a card, 0 < part ≤ 1. How many MiB that is depends on the card; the whole card is the part 1.

    Rounded down, so that two halves of a card with an odd number of MiB fit on it. A part that would come to nothing
    cannot be had: it is more than the card has.
    """

    part: Fraction

    def on(self, card_memory: MiB) -> MiB:
        return MiB(card_memory * self.part.numerator // self.part.denominator or card_memory + 1)

    def __str__(self) -> str:
        return "a whole card" if self.part == 1 else f"{float(self.part):.4g} of a card"


Amount = Memory | Portion

WHOLE = Portion(Fraction(1))
"""A card alone: it leaves no memory for anyone else, and needs a card that nobody holds a part of."""


class Policy(Enum):
    """Which of the cards that would do are taken."""

    PACK = "pack"
    """The fullest card that fits, so that large free pieces stay large."""
    SPREAD = "spread"
    """The emptiest cards, on as many islands as possible."""
    CONTIGUOUS = "contiguous"
    """Neighbouring indices first."""
    PREFER_IDS = "preferIds"
    """The named indices first."""


class TopologyMode(Enum):
    REQUIRED = "Required"
    """All cards in one NVLink island, or the pod waits."""
    PREFERRED = "Preferred"
    """One island if possible."""
    IGNORE = "Ignore"


@dataclass(frozen=True, slots=True)
class Topology:
    mode: TopologyMode = TopologyMode.PREFERRED
    min_bandwidth_gbps: int = 0


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that run together or not at all. The name carries its namespace: `lab/training-job`."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class ContainerNeed:
    """How much of the pod's request one container uses: so many of its cards, that amount of each."""

    container: str
    cards: int
    amount: Amount
    init: bool = False
    """An init container runs before the others and uses cards that they will have: it does not add to them. A sidecar
    runs beside them, so it is none."""


@dataclass(frozen=True, slots=True)
class Request:
    """`cards` different cards of one node, `amount` of each."""

    cards: int
    amount: Amount
    model: str = ""
    """As `nvidia.com/gpu.product` spells it. Empty: any."""
    policy: Policy = Policy.PACK
    prefer_ids: tuple[int, ...] = ()
    topology: Topology = Topology()
    node_labels: frozenset[tuple[str, str]] = frozenset()
    gang: Gang | None = None
    containers: tuple[ContainerNeed, ...] = field(default=(), compare=False)
    """Who in the pod uses it. Does not matter to placement, so it does not make two requests different."""
    by_kubelet: bool = field(default=False, compare=False)
    """The pod asks the kubelet for its cards itself, by `nvidia.com/gpu`: where that chooses, no more is needed."""

    def __post_init__(self) -> None:
        if self.cards < 1:
            raise ValueError(f"a request is for at least one card, not {self.cards}")

    def __str__(self) -> str:
        where = f" of model {self.model}" if self.model else ""
        if self.cards > 1 and self.topology.mode is TopologyMode.REQUIRED:
            where += " in one NVLink island"
        if self.amount == WHOLE:
            return f"{self.cards} whole card{'s' if self.cards > 1 else ''}{where}"
        if self.cards == 1:
            return f"{self.amount} on one card{where}"
        return f"{self.amount} on each of {self.cards} cards{where}"
