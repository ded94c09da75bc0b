"""One HTTP call to a Kubernetes API server, as values.

The client speaks in these and the embedded API answers in them, so that the same client and the same server run over
sockets (`kube.http`, `memory.http`) or straight into each other in one process, byte for byte the same.
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
    """Set for a watch: newline-separated JSON, cut anywhere. Whoever receives it closes it with `aclose()`."""


class Transport(Protocol):
    """Carries one call. Raises `ports.cluster.Unavailable` if nothing was sent, `Unknown` if the answer was lost."""

    async def send(self, request: ApiRequest) -> ApiResponse: ...

    async def aclose(self) -> None: ...
