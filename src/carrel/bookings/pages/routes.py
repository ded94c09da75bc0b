"""Puts the pages on an app."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from carrel.bookings.pages.admin_page import AdminPage
from carrel.bookings.pages.booking_page import BookingPage
from carrel.bookings.pages.home_page import HomePage
from carrel.bookings.pages.layout import STATIC, Shell
from carrel.bookings.pages.map_page import MapPage
from carrel.bookings.pages.services import PagesDesk
from carrel.bookings.pages.timeline_page import TimelinePage
from carrel.bookings.pages.usage_page import UsagePage
from carrel.http.problems import PROBLEM_JSON

SEE_OTHER = 303


def install_pages(app: FastAPI, desk: PagesDesk) -> None:
    """Last of all: the pages want to know who looks, and show what others refuse."""
    shell = Shell(desk)
    router = APIRouter(include_in_schema=False)
    for page in (HomePage, TimelinePage, BookingPage, MapPage, UsagePage, AdminPage):
        page(shell).add_to(router)
    app.include_router(router)
    _say_no_in_pages(app, shell)
    app.add_api_route("/favicon.ico", _icon, include_in_schema=False, response_model=None)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")


def _icon() -> Response:
    """What browsers ask for where a page names none."""
    return FileResponse(STATIC / "icon.svg", media_type="image/svg+xml")


def _say_no_in_pages(app: FastAPI, shell: Shell) -> None:
    """A browser that wanted a page is told on a page what went wrong; programs get it as data, as everywhere."""
    for kind, answer in tuple(app.exception_handlers.items()):
        app.add_exception_handler(kind, _paged(answer, shell))


def _paged(answer: Callable[..., Any], shell: Shell) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answered(request: Request, error: Exception) -> Response:
        response: Response = await answer(request, error)
        if "hx-request" in request.headers and response.status_code == SEE_OTHER:
            # A part of a page cannot show where to sign in: the whole page is loaded anew, and is sent there.
            return Response(status_code=401, headers={"hx-refresh": "true"})
        wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
        if not wants_page or response.headers.get("content-type") != PROBLEM_JSON:
            return response
        page = shell.page(
            request, None, "problem.html", status=response.status_code, problem=json.loads(bytes(response.body))
        )
        kept = {
            name: value for name, value in response.headers.items() if name not in ("content-type", "content-length")
        }
        page.headers.update(kept)
        return page

    return answered
