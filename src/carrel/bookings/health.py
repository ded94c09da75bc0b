"""Probes and Prometheus metrics: base units, and no person's name in any label."""

import logging
import time
from datetime import timedelta

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import PlainTextResponse, Response

from carrel.bookings.records import StoreUnavailable
from carrel.bookings.service import CurrentService
from carrel.http.serving import AsgiApp, Receive, Scope, Send

log = logging.getLogger(__name__)


class BookingMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "carrel_booking_calls", "HTTP requests by method and status.", ["method", "status"], registry=self.registry
        )
        self.seconds = Histogram("carrel_booking_call_seconds", "Duration of HTTP requests.", registry=self.registry)
        self.cards = Gauge("carrel_bookable_cards", "Healthy GPUs.", ["model"], registry=self.registry)
        self.free = Gauge("carrel_unbooked_cards", "GPUs that are not booked now.", ["model"], registry=self.registry)
        self.overbooked = Gauge(
            "carrel_overbooked_cards", "GPUs booked beyond those that there are.", ["model"], registry=self.registry
        )


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
            self._metrics.calls.labels(scope.get("method", "?"), str(status)).inc()
            self._metrics.seconds.observe(time.perf_counter() - began)


def install_health(app: FastAPI, metrics: BookingMetrics) -> None:
    router = APIRouter(include_in_schema=False)  # one for each app: the metrics are of this one

    @router.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok")

    @router.get("/readyz")
    async def readyz(service: CurrentService) -> Response:
        if not service.context.inventory.is_known:
            return PlainTextResponse("the cluster has not been read yet", status_code=503)
        try:
            await service.queries.get("none")
        except StoreUnavailable as error:
            log.error("store_unavailable: %s", error)  # the caller is not told its address and our user name
            return PlainTextResponse("the database does not answer", status_code=503)
        return PlainTextResponse("ok")

    @router.get("/metrics")
    async def numbers(service: CurrentService) -> Response:
        today = service.context.now().astimezone(service.context.zone).date()
        for each in await service.queries.availability(today - timedelta(days=1), 0):
            metrics.cards.labels(each.stock.model).set(each.stock.cards)
            metrics.free.labels(each.stock.model).set(max(0, each.free_now))
            metrics.overbooked.labels(each.stock.model).set(each.overbooked)
        return PlainTextResponse(generate_latest(metrics.registry), media_type="text/plain; version=0.0.4")

    app.include_router(router)
