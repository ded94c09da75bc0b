"""What the modules of the pages have in common: the renderer, the parts of the service, and a table of routes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from carrel.bookings.pages.layout import PageRenderer

Handler = Callable[..., Any]


class Page(ABC):
    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer
        self._service = renderer.service
        self._queries = renderer.service.queries

    @abstractmethod
    def routes(self) -> Mapping[str, Handler]:
        """Return the handlers, by method and path: `GET /map`."""
