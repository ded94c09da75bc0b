"""One HTTP call as values: what the API is asked, and what it answers.

A client in the same process passes these to `EmbeddedApi.send`; `http_server` makes them from what comes over a socket.
Any object with the attributes of `RequestLike` will do as a request, so that a client need not convert its own.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import msgspec


class RequestLike(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str:
        """Without the query, and percent-decoded: `/api/v1/namespaces/lab/pods`."""

    @property
    def query(self) -> Mapping[str, str]: ...
    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""

    @property
    def body(self) -> bytes: ...


class HttpRequest(msgspec.Struct, frozen=True):
    """A `RequestLike`."""

    method: str
    path: str
    query: Mapping[str, str] = msgspec.field(default_factory=dict)
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""


class HttpResponse(msgspec.Struct, frozen=True):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Names in lower case."""
    stream: AsyncGenerator[bytes, None] | None = None
    """Of a watch: lines of JSON, in chunks of any size. The caller ends the watch with `aclose()`."""


class Api(Protocol):
    """The embedded API, or something in front of it."""

    async def send(self, request: RequestLike, /) -> HttpResponse: ...
