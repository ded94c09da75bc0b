"""Puts the pages on an app."""

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from carrel.adapters.pages.admin_page import AdminPage
from carrel.adapters.pages.booking_page import BookingPage
from carrel.adapters.pages.desk import PagesDesk
from carrel.adapters.pages.home import HomePage
from carrel.adapters.pages.map_page import MapPage
from carrel.adapters.pages.shell import STATIC, Shell
from carrel.adapters.pages.timeline_page import TimelinePage
from carrel.adapters.pages.usage_page import UsagePage
from carrel.adapters.problems import Problem, answer_problem


def install_pages(app: FastAPI, desk: PagesDesk) -> None:
    """After `install_identity`: the pages want to know who looks."""
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
    """A browser that wanted a page is told so on a page; programs get the same as data."""

    async def answer(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Problem)
        wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/")
        if not wants_page:
            return await answer_problem(request, problem)
        response = shell.page(request, None, "problem.html", status=problem.status, problem=problem)
        response.headers.update(problem.headers)
        return response

    app.add_exception_handler(Problem, answer)
