"""What Prometheus is told about admission, without a user's name in any label."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class Watched:
    """What is looked at when somebody asks."""

    booking_failures: Callable[[], int]
    booking_age_s: Callable[[], float]
    certificate_expires_at: Callable[[], float]
    """Seconds since 1970; 0 while there is none."""


class Metrics:
    def __init__(self, watched: Watched) -> None:
        registry = self._registry = CollectorRegistry()
        self._reviews = Counter("carrel_reviews", "Reviews answered.", ["verb", "outcome"], registry=registry)
        self._duration = Histogram(
            "carrel_review_duration_seconds", "Time to answer a review.", ["verb"], buckets=BUCKETS, registry=registry
        )
        registry.register(_Look(watched))

    def saw(self, verb: str, outcome: str, seconds: float) -> None:
        self._reviews.labels(verb, outcome).inc()
        self._duration.labels(verb).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Look(Collector):
    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterable[Metric]:
        failures = CounterMetricFamily("carrel_booking_service_failures", "Enquiries without an answer.")
        failures.add_metric([], self._watched.booking_failures())
        yield failures
        yield GaugeMetricFamily(
            "carrel_booking_answer_age_seconds",
            "Age of the oldest answer used since the booking service last spoke.",
            value=self._watched.booking_age_s(),
        )
        yield GaugeMetricFamily(
            "carrel_certificate_expiry_timestamp_seconds",
            "When the certificate that is served expires.",
            value=self._watched.certificate_expires_at(),
        )
