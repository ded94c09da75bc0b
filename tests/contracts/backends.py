"""What the contract suite runs on. A backend is a client of an API server, with what only its operator can do.

The suite assumes only that its client is an administrator: every test has a namespace of its own, and unique names for
cluster-wide objects.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import FieldValidation
from carrel.kubernetes.config import Access
from carrel.kubernetes.credentials import CredentialLocations, StoredCredentials
from carrel.kubernetes.http_transport import HttpTransport
from carrel.kubernetes.transport import ApiRequest, ResponseLike, Transport
from kubernetes_in_memory import EmbeddedApi, Settings
from kubernetes_in_memory.auth import ADMIN
from kubernetes_in_memory.http_server import serve

T = TypeVar("T")

TOKEN = "the administrator's token"


@dataclass(frozen=True, slots=True)
class Backend:
    client: Client
    lenient: Client
    """As components in production: unknown fields are dropped with a warning."""
    stranger: Client
    """The same server, with a token that it does not know."""
    compact: Callable[[], Awaitable[None]]
    """Compacts the server's history, so that continue tokens may expire."""
    wire: Transport
    """For calls of other clients, which our own client never makes."""

    @classmethod
    def on(cls, wire: Transport, strangers: Transport, compact: Callable[[], Awaitable[None]]) -> "Backend":
        return cls(Client(wire), Client(wire, FieldValidation.WARN), Client(strangers), compact, wire)


class WithToken:
    """A transport without sockets, with the header that a socket transport would add."""

    def __init__(self, transport: Transport, token: str) -> None:
        self._transport = transport
        self._token = token

    async def send(self, request: ApiRequest) -> ResponseLike:
        headers = {**request.headers, "authorization": f"Bearer {self._token}"}
        return await self._transport.send(replace(request, headers=headers))

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def memory_in_process() -> AsyncIterator[Backend]:
    api = _embedded()
    yield Backend.on(WithToken(api, TOKEN), WithToken(api, "nobody's"), _compaction_of(api))
    await api.aclose()


@asynccontextmanager
async def memory_over_http() -> AsyncIterator[Backend]:
    api = _embedded()
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serve(api))
        wires = [
            HttpTransport(Access(served.url, StoredCredentials(CredentialLocations(token=token))))
            for token in (TOKEN, "nobody's")
        ]
        for wire in wires:
            stack.push_async_callback(wire.aclose)
        yield Backend.on(wires[0], wires[1], _compaction_of(api))


BACKENDS = {"memory-in-process": memory_in_process, "memory-over-http": memory_over_http}


def _embedded() -> EmbeddedApi:
    return EmbeddedApi(Settings(tokens={TOKEN: ADMIN}, bookmark_every_s=0.2))


def _compaction_of(api: EmbeddedApi) -> Callable[[], Awaitable[None]]:
    async def compact() -> None:
        api.forget_history()

    return compact


def unique(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


async def eventually(look: Callable[[], Awaitable[T]], limit_s: float = 90.0) -> T:
    """What `look` returns, once it is true. The limit is for broken servers, not for slow ones."""
    async with asyncio.timeout(limit_s):
        while not (seen := await look()):  # noqa: ASYNC110 (an API server has no event to wait for)
            await asyncio.sleep(0.05)
        return seen
