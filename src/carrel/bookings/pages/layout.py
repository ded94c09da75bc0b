"""The frame around every page: templates, who looks, and in which theme."""

from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from carrel import __version__
from carrel.bookings.pages import wording
from carrel.bookings.pages.services import PagesDesk
from carrel.bookings.people import Person
from carrel.bookings.sign_in.identity import Identity
from carrel.parsing.malformed import Malformed
from carrel.parsing.time import instant

HERE = Path(__file__).parent
STATIC = HERE / "static"
THEMES = ("light", "dark")
PLACES = (("/", "Home"), ("/timeline", "Timeline"), ("/map", "Map"), ("/usage", "Usage"), ("/admin", "Admin"))
"""Admin is shown to admins only."""


class Shell:
    def __init__(self, desk: PagesDesk) -> None:
        self.desk = desk
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=select_autoescape(),
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=StrictUndefined,
        )
        self._templates.filters |= {
            "memory": wording.memory,
            "model": wording.model,
            "span": wording.span,
            "count": wording.count,
            "amount": wording.amount,
            "who": wording.who,
            "when": self.when,
            "field": self.field,
            "detail": self.detail,
        }
        self._templates.globals |= {"version": __version__}

    def when(self, instant: datetime) -> Markup:
        return wording.time_tag(instant, self.desk.zone)

    def field(self, instant: datetime) -> str:
        """As a form's field for a local time wants it."""
        return instant.astimezone(self.desk.zone).strftime("%Y-%m-%dT%H:%M")

    def detail(self, value: object) -> object:
        """What the log keeps as words for machines, for people."""
        try:
            return self.when(instant(str(value), "log", "details"))
        except Malformed:
            return value

    def fragment(self, template: str, **context: Any) -> str:
        return self._templates.get_template(template).render(**context)

    def page(
        self, request: Request, person: Person | None, template: str, *, status: int = 200, **context: Any
    ) -> HTMLResponse:
        identity: Identity = request.app.state.identity
        theme = request.cookies.get("carrel_theme", "")
        return HTMLResponse(
            self.fragment(
                template,
                person=person,
                places=[place for place in PLACES if place[0] != "/admin" or (person and person.is_lab_admin)],
                here="/" + request.url.path.split("/")[1],
                theme=theme if theme in THEMES else "",
                csrf=identity.csrf_token(request),
                now=self.desk.now(),
                zone=self.desk.zone,
                **context,
            ),
            status,
        )
