"""Puts the API, the pages, the sign-in and MAIA's addresses on one app, behind one request guard."""

import time
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders

from carrel import __version__
from carrel.bookings.api import DOCUMENTED, install_api
from carrel.bookings.api.maia import install_maia
from carrel.bookings.health import BookingMetrics, MeasuredApp, install_health
from carrel.bookings.pages import install_pages
from carrel.bookings.service import ServiceParts
from carrel.bookings.sign_in.request_guard import RequestGuard, RequestLimits
from carrel.bookings.sign_in.routes import install_sign_in
from carrel.http.asgi import AsgiApp, Receive, Scope, Send


class UnderBasePath:
    def __init__(self, app: AsgiApp, base_path: str) -> None:
        """`base_path` begins with a slash and does not end with one."""
        self._app = app
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == self._base_path or path.startswith(f"{self._base_path}/")):
            await self._app(scope, receive, send)
            return

        async def send_with_path(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=list(message.get("headers", ())))
                if headers.get("location", "").startswith("/"):
                    headers["location"] = self._base_path + headers["location"]
                message = {**message, "headers": headers.raw}
            await send(message)

        inner = path[len(self._base_path) :] or "/"
        await self._app({**scope, "path": inner, "raw_path": quote(inner).encode()}, receive, send_with_path)


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
