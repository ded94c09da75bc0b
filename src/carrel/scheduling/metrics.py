"""The metrics of the extender.

Durations and refusals are counted as they happen; the watches are read whenever Prometheus asks. How many GPUs are in
use, the controller says.
"""

from collections.abc import Callable, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric

from carrel.http.metrics import ComponentMetrics, labelled_gauge

QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 180.0)
"""A bind is a few calls to the API server, or the wait for a gang."""

WatchSilences = Callable[[], Mapping[str, float]]
"""Seconds since the API server last sent something, by kind."""


class ExtenderMetrics(ComponentMetrics):
    def __init__(self, silences: WatchSilences) -> None:
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
        for verb in ("filter", "prioritize", "bind"):
            self.refusals.labels(verb, "defect")  # Prometheus sees the first one only if it has seen none before
        self.read_on_scrape(lambda: [_silence(silences())])


def _silence(by_kind: Mapping[str, float]) -> Metric:
    return labelled_gauge("carrel_watch_silence_seconds", "Time since a watch last received anything.", "kind", by_kind)
