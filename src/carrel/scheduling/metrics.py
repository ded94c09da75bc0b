"""The metrics of the extender.

Durations and refusals are counted as they happen; the ledger and the watches are read whenever Prometheus asks.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric

from carrel.http.metrics import ComponentMetrics, labelled_gauge
from carrel.ledger.ledger import Card, Ledger
from carrel.ledger.shares import ShareState

BYTES_PER_MIB = 1024 * 1024
QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 180.0)
"""A bind is a few calls to the API server, or the wait for a gang."""

CARD_STATES = ("free", "shared", "whole", "kept", "unusable")
MEMORY_STATES = ("free", *(state.value for state in ShareState if state is not ShareState.GONE))

WatchSilences = Callable[[], Mapping[str, float]]
"""Seconds since the API server last sent something, by kind."""


class ExtenderMetrics(ComponentMetrics):
    def __init__(self, ledger: Ledger, silences: WatchSilences) -> None:
        super().__init__()
        registry = self.registry
        self.filter_s = Histogram(
            "carrel_filter_duration_seconds", "Time to answer filter.", buckets=QUICK, registry=registry
        )
        self.prioritize_s = Histogram(
            "carrel_prioritize_duration_seconds", "Time to answer prioritize.", buckets=QUICK, registry=registry
        )
        self.bind_s = Histogram(
            "carrel_bind_duration_seconds", "Time to answer bind.", ["outcome"], buckets=SLOW, registry=registry
        )
        self.binds = Gauge("carrel_binds_under_way", "Binds that are being answered.", registry=registry)
        self.refusals = Counter("carrel_refusals", "Calls answered with no.", ["verb", "kind"], registry=registry)
        self.read_on_scrape(_LedgerCounts(ledger, silences).read)


class _LedgerCounts:
    """Counts GPUs and memory by state. Only nodes that changed since the last time are counted again."""

    def __init__(self, ledger: Ledger, silences: WatchSilences) -> None:
        self._ledger = ledger
        self._silences = silences
        self._moment = -1
        self._by_node: dict[str, _Count] = {}
        self._total = _Count()

    def read(self) -> Iterable[Metric]:
        self._count()
        cards = {state: self._total.cards[state] for state in CARD_STATES}
        memory = {state: self._total.memory[state] * BYTES_PER_MIB for state in MEMORY_STATES}
        yield labelled_gauge("carrel_cards", "GPUs in the ledger.", "state", cards)
        yield labelled_gauge("carrel_memory_bytes", "Memory of all GPUs in the ledger.", "state", memory)
        yield labelled_gauge(
            "carrel_watch_silence_seconds", "Time since a watch last received anything.", "kind", self._silences()
        )

    def _count(self) -> None:
        changed = self._ledger.changed_since(self._moment)
        if changed is None:
            self._by_node, self._total, changed = {}, _Count(), self._ledger.nodes
        self._moment = self._ledger.moment
        for node in changed:
            before, now = self._by_node.get(node, _Count()), _count(self._ledger, node)
            self._by_node[node] = now
            for total, add, less in (
                (self._total.cards, now.cards, before.cards),
                (self._total.memory, now.memory, before.memory),
            ):
                total.update(add)
                total.subtract(less)


@dataclass(frozen=True, slots=True)
class _Count:
    cards: Tally[str] = field(default_factory=Tally)
    memory: Tally[str] = field(default_factory=Tally)
    """In MiB."""


def _count(ledger: Ledger, name: str) -> _Count:
    count, node = _Count(), ledger.node(name)
    for card in ledger.cards(name):
        count.cards[_state(card, is_node_usable=node is not None and not node.unusable)] += 1
        count.memory["free"] += max(card.free, 0)
        for share in card.shares.values():
            count.memory[share.state.value] += card.held(share)
    return count


def _state(card: Card, *, is_node_usable: bool) -> str:
    if card.gpu.unusable or not is_node_usable:
        return "unusable"
    if card.kept_for is not None:
        return "kept"
    if not card.shares:
        return "free"
    return "whole" if any(share.memory is None for share in card.shares.values()) else "shared"
