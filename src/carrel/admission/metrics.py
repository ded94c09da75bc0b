"""The metrics of the webhook."""

from collections.abc import Iterable

from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from carrel.admission.served_certificate import ServedCertificate
from carrel.bookings.client import BookingCache
from carrel.http.metrics import ComponentMetrics

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)


class WebhookMetrics(ComponentMetrics):
    def __init__(self, certificate: ServedCertificate | None = None, bookings: BookingCache | None = None) -> None:
        """`certificate`: what is served; `bookings`: what another booking service answered. None: there is none."""
        super().__init__()
        self._certificate = certificate
        self._bookings = bookings
        self._reviews = Counter("carrel_reviews", "Reviews answered.", ["verb", "outcome"], registry=self.registry)
        self.without_person = Counter(
            "carrel_pods_without_person",
            "Pods admitted with a GPU of which nobody knows whose they are: no booking covers them.",
            registry=self.registry,
        )
        self.of_unlisted_spawners = Counter(
            "carrel_pods_of_unlisted_spawners",
            "GPU pods for users of a hub that is not in hubs.accounts: Carrel does not believe whose they are.",
            registry=self.registry,
        )
        self.of_unmatched_users = Counter(
            "carrel_pods_of_unmatched_hub_users",
            "GPU pods of users of a hub of whom no address is known: set hubs.usernameDomain or hubs.users.",
            registry=self.registry,
        )
        self._duration = Histogram(
            "carrel_review_duration_seconds",
            "Time to answer a review.",
            ["verb"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._reviews.labels("mutate", "defect")  # Prometheus sees the first one only if it has seen none before
        self.read_on_scrape(self._measured)

    def count_review(self, verb: str, outcome: str, seconds: float) -> None:
        self._reviews.labels(verb, outcome).inc()
        self._duration.labels(verb).observe(seconds)

    def _measured(self) -> Iterable[Metric]:
        failures = CounterMetricFamily(
            "carrel_booking_service_failures", "Calls that the booking service did not answer."
        )
        failures.add_metric([], self._bookings.failures if self._bookings else 0)
        yield failures
        yield GaugeMetricFamily(
            "carrel_booking_answer_age_seconds",
            "Age of the oldest answer used since the booking service last answered.",
            value=self._bookings.oldest_s if self._bookings else 0.0,
        )
        yield GaugeMetricFamily(
            "carrel_certificate_expiry_timestamp_seconds",
            "When the served certificate expires.",
            value=self._certificate.expires_at if self._certificate else 0.0,
        )
