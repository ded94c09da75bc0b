"""One HTTP call to a Kubernetes API server, as values.

The client makes requests; a `Transport` carries them: `http_transport` over sockets, or in tests and in the demo an API
server in the same process. Such a server need not know these classes: it answers with anything `ResponseLike`.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ApiRequest:
    method: str
    path: str
    """Decoded, without the query: `/api/v1/namespaces/lab/pods`."""
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Keys in lower case."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Keys in lower case."""
    stream: AsyncGenerator[bytes, None] | None = None
    """Set for a watch: newline-separated JSON, in chunks of any size. The receiver closes it with `aclose()`."""


class ResponseLike(Protocol):
    """What the client reads of an `ApiResponse`."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def stream(self) -> AsyncGenerator[bytes, None] | None: ...


class Transport(Protocol):
    """Carries one call. Raises `cluster.Unavailable` if nothing was sent, `OutcomeUnknown` if the answer was lost."""

    async def send(self, request: ApiRequest) -> ResponseLike: ...

    async def aclose(self) -> None: ...
