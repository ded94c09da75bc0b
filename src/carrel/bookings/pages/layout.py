"""The frame around every page: templates, navigation, the signed-in person and the theme; what pages have in common."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from datetime import datetime, tzinfo
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Self

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context, select_autoescape
from jinja2.ext import Extension
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from carrel import __version__
from carrel.bookings import wording
from carrel.bookings.calendar import FreeNow
from carrel.bookings.people import Person
from carrel.bookings.queries import BookingQueries
from carrel.bookings.service import ServiceParts
from carrel.cluster.coverage.coverage_words import CoverageWords
from carrel.ledger.gpus import memory_text
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import at, instant, moment

HERE = Path(__file__).parent
STATIC = HERE / "static"
THEMES = ("light", "dark")
NAVIGATION = (("/", "Home"), ("/timeline", "Timeline"), ("/map", "Map"), ("/usage", "Usage"), ("/admin", "Admin"))
"""Only admins see the link to the admin page."""


class LinksUnderBasePath(Extension):
    """Templates are written as if the service had its host for itself: each of their links gets the base path here, so
    that none can be forgotten."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return re.sub(r'\b(href|action|src|hx-get|sse-connect)="/', r'\1="{{ base_path }}/', source)


@pass_context
def _when(context: Context, instant: datetime) -> Markup:
    return time_tag(instant, context["zone"])


@pass_context
def _field(context: Context, instant: datetime) -> str:
    return field_text(instant, context["zone"])


@pass_context
def _free_words(context: Context, now: FreeNow) -> str:
    return now.words(lambda instant: at(instant, context["zone"]))


@pass_context
def _detail(context: Context, value: object) -> object:
    """A value of the audit log, for people: instants become local times."""
    try:
        return time_tag(instant(str(value), "log", "details"), context["zone"])
    except Malformed:
        return value


class PageRenderer:
    """Writes pages with times in the zone of its service: the lab's, or that of the person who sees them."""

    def __init__(self, service: ServiceParts) -> None:
        self.service = service
        self._templates = _templates(service.authenticator.options.base_path)

    def for_person(self, person: Person) -> "PageRenderer":
        renderer = copy(self)
        renderer.service = self.service.for_person(person)
        return renderer

    @property
    def zone(self) -> tzinfo:
        return self.service.queries.zone

    @property
    def coverage_words(self) -> CoverageWords:
        return CoverageWords(self.zone, wording.model, at)

    def field(self, instant: datetime) -> str:
        return field_text(instant, self.zone)

    def fragment(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(zone=self.zone, **values)

    def page(
        self, request: Request, person: Person | None, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        theme = request.cookies.get("carrel_theme", "")
        return HTMLResponse(
            self.fragment(
                template,
                person=person,
                navigation=[link for link in NAVIGATION if link[0] != "/admin" or (person and person.is_lab_admin)],
                here="/" + request.url.path.split("/")[1],
                theme=theme if theme in THEMES else "",
                csrf=self.service.authenticator.csrf_token(request),
                now=self.service.queries.now(),
                **values,
            ),
            status,
        )


@cache
def _templates(base_path: str) -> Environment:
    """Made once in a process: to compile a template takes longer than to fill it in. Tests make hundreds of apps."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        extensions=[LinksUnderBasePath],
    )
    made.filters |= {
        "memory": memory_text,
        "model": wording.model,
        "span": wording.span,
        "count": wording.count,
        "amount": wording.amount,
        "short_name": wording.short_name,
        "sample": wording.sample,
        "when": _when,
        "free_words": _free_words,
        "field": _field,
        "closed": wording.closed,
        "in_words": wording.in_words,
        "detail": _detail,
    }
    made.globals |= {"version": __version__, "base_path": base_path}
    return made


def field_text(instant: datetime, zone: tzinfo) -> str:
    """The value of a `datetime-local` input."""
    return instant.astimezone(zone).strftime("%Y-%m-%dT%H:%M")


@lru_cache(maxsize=10_000)
def time_tag(instant: datetime, zone: tzinfo) -> Markup:
    """The short form, with the exact time for machines and in the tooltip. Cached: a table may have thousands."""
    exact = f'datetime="{instant.isoformat(timespec="seconds")}" title="{moment(instant, zone)}"'
    return Markup(f"<time {exact}>{at(instant, zone)}</time>")  # noqa: S704 # made of numbers and constant words


Handler = Callable[..., Any]


class Page(ABC):
    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer

    @property
    def _service(self) -> ServiceParts:
        return self._renderer.service

    @property
    def _queries(self) -> BookingQueries:
        return self._renderer.service.queries

    def for_person(self, person: Person) -> Self:
        """Return the page with times in the zone that the person chose."""
        if person.zone is None:
            return self
        page = copy(self)
        page._renderer = self._renderer.for_person(person)  # a page like this one
        return page

    @abstractmethod
    def routes(self) -> Mapping[str, Handler]:
        """Return the handlers, by method and path: `GET /map`."""
