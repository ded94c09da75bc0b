"""What the metrics of every component have in common: base units, and no user's name in any label."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class ComponentMetrics:
    """The metrics of one component, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._object_failures = Counter(
            "carrel_object_failures",
            "Steps that failed for one object, which the log names. They are tried again; other objects are served.",
            ["step"],
            registry=self.registry,
        )

    def count_object_failure(self, step: str) -> None:
        self._object_failures.labels(step).inc()

    def read_on_scrape(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Adds metrics that are computed whenever Prometheus asks."""
        self.registry.register(_ReadOnScrape(read))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _ReadOnScrape(Collector):
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()


def labelled_gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, meaning, labels=[label])
    for word, value in values.items():
        gauge.add_metric([word], value)
    return gauge
