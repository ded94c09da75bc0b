"""What the metrics of every component have in common: base units, and no user's name in any label."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class CountedCalls(Protocol):
    """The calls of this process to the API server."""

    @property
    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """Return how many calls there were, by verb, resource and status code."""
        ...

    def durations(self) -> Mapping[str, tuple[Sequence[tuple[str, int]], float]]:
        """Return for each verb how many calls took up to so many seconds (the last: `+Inf`), and the sum of all."""
        ...


class ComponentMetrics:
    """The metrics of one component, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def show_api_calls(self, calls: CountedCalls) -> None:
        self.read_on_scrape(lambda: _api_metrics(calls))

    def show_failures(self, by_step: Mapping[str, int]) -> None:
        self.read_on_scrape(lambda: [_failures(by_step)])

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


def _api_metrics(calls: CountedCalls) -> Iterable[Metric]:
    """Counts and durations are read together: in between nothing else runs."""
    requests = CounterMetricFamily(
        "carrel_api_requests",
        "Calls to the API server. 409 is a conflict: another process was faster, and the step is done again.",
        labels=["verb", "resource", "code"],
    )
    for labels, count in sorted(calls.counts.items()):
        requests.add_metric(labels, count)
    yield requests
    durations = HistogramMetricFamily(
        "carrel_api_request_duration_seconds",
        "Time until the API server answered; of a watch, until its answer began.",
        labels=["verb"],
    )
    for verb, (buckets, total_s) in sorted(calls.durations().items()):
        durations.add_metric([verb], buckets, total_s)
    yield durations


def _failures(by_step: Mapping[str, int]) -> Metric:
    metric = CounterMetricFamily(
        "carrel_object_failures",
        "Steps that failed for one object, which the log names. They are tried again; other objects are served.",
        labels=["step"],
    )
    for step, count in sorted(by_step.items()):
        metric.add_metric([step], count)
    return metric


def labelled_gauge(name: str, meaning: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, meaning, labels=[label])
    for word, value in values.items():
        gauge.add_metric([word], value)
    return gauge
