"""What the modules of the pages have in common: the renderer, the parts of the service, and a table of routes."""

from collections.abc import Callable, Mapping
from typing import Any

from carrel.bookings.pages.layout import PageRenderer

Handler = Callable[..., Any]


class Page:
    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer
        self._service = renderer.service
        self._queries = renderer.service.queries

    def routes(self) -> Mapping[str, Handler]:
        """The handlers, by method and path: `GET /map`."""
        raise NotImplementedError
