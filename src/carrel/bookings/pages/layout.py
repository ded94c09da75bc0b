"""The frame around every page: templates, navigation, the signed-in person and the theme; what pages have in common."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from jinja2.ext import Extension
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from carrel import __version__
from carrel.bookings import wording
from carrel.bookings.people import Person
from carrel.bookings.service import ServiceParts
from carrel.cluster.coverage.coverage_words import CoverageWords
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant
from carrel.parsing.time_words import at, moment

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


class PageRenderer:
    def __init__(self, service: ServiceParts) -> None:
        self.service = service
        self._zone = service.queries.zone
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=select_autoescape(),
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
            extensions=[LinksUnderBasePath],
        )
        self._templates.filters |= {
            "memory": wording.memory,
            "model": wording.model,
            "span": wording.span,
            "count": wording.count,
            "amount": wording.amount,
            "short_name": wording.short_name,
            "when": self.when,
            "free_words": lambda now: now.words(lambda instant: at(instant, self._zone)),
            "field": self.field,
            "detail": self.detail,
        }
        self._templates.globals |= {"version": __version__, "base_path": service.authenticator.options.base_path}
        self.coverage_words = CoverageWords(lambda instant: at(instant, self._zone), wording.model)

    def when(self, instant: datetime) -> Markup:
        return time_tag(instant, self._zone)

    def field(self, instant: datetime) -> str:
        """The value of a `datetime-local` input."""
        return instant.astimezone(self._zone).strftime("%Y-%m-%dT%H:%M")

    def detail(self, value: object) -> object:
        """A value of the audit log, for people: instants become local times."""
        try:
            return self.when(instant(str(value), "log", "details"))
        except Malformed:
            return value

    def fragment(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)

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
                zone=self._zone,
                **values,
            ),
            status,
        )


@lru_cache(maxsize=10_000)
def time_tag(instant: datetime, zone: tzinfo) -> Markup:
    """The short form, with the exact time for machines and in the tooltip. Cached: a table may have thousands."""
    exact = f'datetime="{instant.isoformat(timespec="seconds")}" title="{moment(instant, zone)}"'
    return Markup(f"<time {exact}>{at(instant, zone)}</time>")  # noqa: S704 # made of numbers and constant words


Handler = Callable[..., Any]


class Page(ABC):
    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer
        self._service = renderer.service
        self._queries = renderer.service.queries

    @abstractmethod
    def routes(self) -> Mapping[str, Handler]:
        """Return the handlers, by method and path: `GET /map`."""
