"""Probes and Prometheus metrics: base units, and no person's name in any label."""

import logging
import time
from collections.abc import Iterable
from datetime import timedelta

from fastapi import FastAPI
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from carrel.bookings.mirror import BookingMirror
from carrel.bookings.records import StoreUnavailable
from carrel.bookings.service import ServiceParts
from carrel.bookings.usage.recorder import UsageRecorder
from carrel.http.asgi import AsgiApp, Receive, Scope, Send
from carrel.http.health import health_routes
from carrel.http.metrics import ComponentMetrics, labelled_gauge
from carrel.kubernetes.api_calls import ApiCalls

log = logging.getLogger(__name__)

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""A caller may invent others: each would be a new time series."""


class BookingMetrics(ComponentMetrics):
    def __init__(
        self,
        mirror: BookingMirror | None = None,
        migration: str = "",
        api_calls: ApiCalls | None = None,
        recorder: UsageRecorder | None = None,
    ) -> None:
        """`migration`: of the tables, as they were at the start; empty: not known."""
        super().__init__()
        self.show_api_calls(api_calls or ApiCalls())
        self.calls = Counter(
            "carrel_booking_calls", "HTTP requests by method and status.", ["method", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "carrel_booking_call_duration_seconds", "Duration of HTTP requests.", registry=self.registry
        )
        self.gpus = Gauge("carrel_bookable_gpus", "Healthy GPUs.", ["model"], registry=self.registry)
        self.free = Gauge("carrel_unbooked_gpus", "GPUs that are not booked now.", ["model"], registry=self.registry)
        self.overbooked = Gauge(
            "carrel_overbooked_gpus", "GPUs booked beyond those that there are.", ["model"], registry=self.registry
        )
        self.set_aside = Gauge(
            "carrel_set_aside_gpus",
            "GPUs that cannot be booked, because pods use them that no booking can displace.",
            ["model"],
            registry=self.registry,
        )
        self.mirror = mirror
        self.migration = migration
        self.recorder = recorder
        self.read_on_scrape(self._of_mirror)
        self.read_on_scrape(self._of_usage)

    def _of_usage(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "carrel_usage_age_seconds",
            "Since the end of the time whose usage is written, by whichever replica; 0 without a cluster.",
            value=self.recorder.age_s if self.recorder else 0.0,
        )
        yield GaugeMetricFamily(
            "carrel_usage_waiting",
            "Slices of time whose usage this replica has counted and nobody has written.",
            value=self.recorder.waiting if self.recorder else 0,
        )
        gaps = CounterMetricFamily("carrel_usage_gaps", "Times in which nobody counted usage, found by this replica.")
        gaps.add_metric([], self.recorder.gaps if self.recorder else 0)
        yield gaps

    def _of_mirror(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "carrel_booking_mirror_age_seconds",
            "Since all Booking objects were last compared with the database; 0 without a cluster.",
            value=self.mirror.age_s if self.mirror else 0.0,
        )
        yield GaugeMetricFamily(
            "carrel_booking_mirror_differences",
            "Booking objects that differed from the database when they were last compared; they are corrected.",
            value=self.mirror.differences if self.mirror else 0,
        )
        yield labelled_gauge(
            "carrel_database_migration",
            "1 for the version of the tables, as the number of the last migration.",
            "revision",
            {self.migration: 1} if self.migration else {},
        )
        failures = CounterMetricFamily(
            "carrel_booking_mirror_failures", "Booking objects that could not be written, and failed comparisons."
        )
        failures.add_metric([], self.mirror.failures if self.mirror else 0)
        yield failures


class MeasuredApp:
    """Counts and times the requests to an app."""

    def __init__(self, app: AsgiApp, metrics: BookingMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status = time.perf_counter(), 500

        async def noting(message: dict[str, object]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(str(message["status"]))
            await send(message)

        try:
            await self._app(scope, receive, noting)  # type: ignore[arg-type] # a dict is a mutable mapping
        finally:
            method = scope.get("method", "")
            self._metrics.calls.labels(method if method in METHODS else "other", str(status)).inc()
            self._metrics.seconds.observe(time.perf_counter() - began)


def install_health(app: FastAPI, service: ServiceParts, metrics: BookingMetrics) -> None:
    if service.cluster_view is not None:
        metrics.show_failures(service.cluster_view.isolation.failures)

    async def why_not_ready() -> str:
        if not service.queries.inventory.is_known:
            return "the cluster has not been read yet"
        try:
            await service.queries.get("none")
        except StoreUnavailable as error:
            log.error("store_unavailable: %s", error)  # the answer must not say where it is, or which user we are
            return "the database does not answer"
        return ""

    async def text() -> bytes:
        today = service.queries.today()
        for each in await service.queries.availability(today - timedelta(days=1), 0):
            metrics.gpus.labels(each.stock.model).set(each.stock.gpus)
            metrics.free.labels(each.stock.model).set(max(0, each.now.unbooked))
            metrics.overbooked.labels(each.stock.model).set(each.overbooked)
            metrics.set_aside.labels(each.stock.model).set(each.stock.set_aside)
        return metrics.text()

    app.router.routes.extend(health_routes(why_not_ready, text))
