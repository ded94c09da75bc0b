"""Adds the pages to an app, and shows errors as pages."""

import json
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from carrel.bookings.pages.account_page import AccountPage
from carrel.bookings.pages.admin_page import AdminPage
from carrel.bookings.pages.booking_page import BookingPage
from carrel.bookings.pages.button_page import install_buttons
from carrel.bookings.pages.configuration_page import ConfigurationPage
from carrel.bookings.pages.home_page import HomePage
from carrel.bookings.pages.layout import STATIC, Handler, Page, PageRenderer
from carrel.bookings.pages.log_page import LogPage
from carrel.bookings.pages.maintenance_page import MaintenancePage
from carrel.bookings.pages.map_page import MapPage
from carrel.bookings.pages.timeline_page import TimelinePage
from carrel.bookings.pages.usage_page import UsagePage
from carrel.bookings.people import Person
from carrel.bookings.service import OnlyWithBookings, ServiceParts
from carrel.http.problems import PROBLEM_JSON

SEE_OTHER = 303
FOR_BOOKING = ("/timeline", "/bookings", "/feed", "/admin/maintenance", "/admin/groups")
"""Pages, and what is below them, that are there only where people book with this service."""


def install_pages(app: FastAPI, service: ServiceParts) -> None:
    """Call it last: the pages need the sign-in, and wrap the error handlers that exist by then."""
    renderer = PageRenderer(service)
    router = APIRouter(include_in_schema=False)
    pages: tuple[type[Page], ...] = (
        *(HomePage, TimelinePage, BookingPage, MapPage, UsagePage),
        *(AdminPage, MaintenancePage, LogPage, ConfigurationPage, AccountPage),
    )
    for kind in pages:
        page = kind(renderer)
        for route, handler in page.routes().items():
            method, _, path = route.partition(" ")
            only = [OnlyWithBookings] if path.startswith(FOR_BOOKING) else []
            router.add_api_route(
                path, _for_person(page, handler), methods=[method], response_model=None, dependencies=only
            )
    app.router.routes.extend(router.routes)
    install_buttons(app, renderer)
    _show_errors_as_pages(app, renderer)
    app.add_api_route("/favicon.ico", _icon, include_in_schema=False, response_model=None)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")


def _for_person(page: Page, handler: Handler) -> Handler:
    """The handler, of the page as its person sees it. FastAPI reads its parameters."""

    @wraps(handler)
    async def handle(request: Request, person: Person, **path: Any) -> Any:
        return await getattr(page.for_person(person), handler.__name__)(request, person, **path)

    return handle


def _icon() -> Response:
    """Browsers request this path where a page names no icon."""
    return FileResponse(STATIC / "icon.svg", media_type="image/svg+xml")


def _show_errors_as_pages(app: FastAPI, renderer: PageRenderer) -> None:
    """A browser that requested a page gets the error as a page. Programs get it as JSON."""
    for error, handler in tuple(app.exception_handlers.items()):
        app.add_exception_handler(error, _as_page(handler, renderer))


def _as_page(
    handler: Callable[..., Any], renderer: PageRenderer
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        response: Response = await handler(request, error)
        if "hx-request" in request.headers and response.status_code == SEE_OTHER:
            # A part of a page cannot show the sign-in page: the browser reloads the whole page and is redirected.
            return Response(status_code=401, headers={"hx-refresh": "true"})
        wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
        if not wants_page or response.headers.get("content-type") != PROBLEM_JSON:
            return response
        page = renderer.page(
            request, None, "problem.html", status=response.status_code, problem=json.loads(bytes(response.body))
        )
        kept = {
            name: value for name, value in response.headers.items() if name not in ("content-type", "content-length")
        }
        page.headers.update(kept)
        return page

    return handle
