"""What Prometheus is told, in base units and without a user's name in any label.

Durations and refusals are counted as they happen; the ledger and the watches are looked at when somebody asks.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from carrel.core.ledger import Ledger
from carrel.core.shares import ShareState

BYTES_PER_MIB = 1024 * 1024
QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 180.0)
"""A bind is a few calls to the API server, or the wait for a gang."""

Silences = Callable[[], Mapping[str, float]]
"""Seconds without a word from the API server, by kind."""


class Metrics:
    def __init__(self, ledger: Ledger, silences: Silences) -> None:
        registry = self._registry = CollectorRegistry()
        self.filter_s = Histogram(
            "carrel_filter_duration_seconds", "Time to answer filter.", buckets=QUICK, registry=registry
        )
        self.prioritize_s = Histogram(
            "carrel_prioritize_duration_seconds", "Time to answer prioritize.", buckets=QUICK, registry=registry
        )
        self.bind_s = Histogram(
            "carrel_bind_duration_seconds", "Time to answer bind.", ["outcome"], buckets=SLOW, registry=registry
        )
        self.refusals = Counter("carrel_refusals", "Questions answered with no.", ["verb", "kind"], registry=registry)
        registry.register(_Look(ledger, silences))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Look(Collector):
    """The ledger and the watches as they are when somebody asks."""

    def __init__(self, ledger: Ledger, silences: Silences) -> None:
        self._ledger = ledger
        self._silences = silences

    def collect(self) -> Iterable[Metric]:
        cards: Tally[str] = Tally(free=0, shared=0, whole=0, kept=0, unusable=0)
        memory: Tally[str] = Tally(
            {"free": 0, **{state.value: 0 for state in ShareState if state is not ShareState.GONE}}
        )
        for node in self._ledger.nodes:
            is_node_unusable = bool(getattr(self._ledger.node(node), "unusable", ""))
            for card in self._ledger.cards(node):
                if is_node_unusable or card.gpu.unusable:
                    cards["unusable"] += 1
                elif card.kept_for is not None:
                    cards["kept"] += 1
                elif not card.shares:
                    cards["free"] += 1
                else:
                    cards["whole" if any(share.memory is None for share in card.shares.values()) else "shared"] += 1
                memory["free"] += max(card.free, 0)
                for share in card.shares.values():
                    memory[share.state.value] += card.held(share)
        yield _gauge("carrel_cards", "Cards in the ledger.", "state", cards)
        in_bytes = {state: mib * BYTES_PER_MIB for state, mib in memory.items()}
        yield _gauge("carrel_memory_bytes", "Memory of all cards in the ledger.", "state", in_bytes)
        yield _gauge("carrel_watch_silence_seconds", "Since a watch last heard anything.", "kind", self._silences())


def _gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, meaning, labels=[label])
    for word, value in values.items():
        gauge.add_metric([word], value)
    return gauge
