"""Puts the API, the pages, the sign-in and MAIA's addresses on one app, behind one request guard."""

import time

from fastapi import FastAPI

from carrel import __version__
from carrel.bookings.api import DOCUMENTED, install_api
from carrel.bookings.api.maia import install_maia
from carrel.bookings.base_path import UnderBasePath
from carrel.bookings.health import BookingMetrics, MeasuredApp, install_health
from carrel.bookings.pages import install_pages
from carrel.bookings.service import ServiceParts
from carrel.bookings.sign_in.request_guard import RequestGuard, RequestLimits
from carrel.bookings.sign_in.routes import install_sign_in
from carrel.http.asgi import AsgiApp

ABOUT = (
    "Books the GPUs of a lab. Times are RFC 3339 with an offset, days have 24 hours, the end of an interval is"
    " exclusive. Every refusal is `application/problem+json` and names everything that is wrong at once."
)
NORMAL_LIMITS = RequestLimits()


def booking_app(
    service: ServiceParts, limits: RequestLimits = NORMAL_LIMITS, metrics: BookingMetrics | None = None
) -> AsgiApp:
    app, metrics = fastapi_app(service), metrics or BookingMetrics()
    install_health(app, service, metrics)
    options = service.authenticator.options
    guarded = RequestGuard(
        MeasuredApp(app, metrics),
        limits,
        time.monotonic,
        is_https=options.is_https,
        own_source=options.own_source,
    )
    return UnderBasePath(guarded, options.base_path) if options.base_path else guarded


def fastapi_app(service: ServiceParts) -> FastAPI:
    base_path = service.authenticator.options.base_path
    # FastAPI's documentation pages load scripts from other sites, so only the document itself is served.
    app = FastAPI(
        title="Carrel bookings",
        version=__version__,
        description=ABOUT,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": base_path}] if base_path else None,
        responses=DOCUMENTED,
    )
    app.state.service = service
    install_sign_in(app, service.authenticator)
    install_api(app)
    install_maia(app)
    install_pages(app, service)
    return app
