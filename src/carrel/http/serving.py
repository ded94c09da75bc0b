"""Serves an ASGI app while a block runs."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

KEEP_ALIVE_S = 120
"""Longer than Go's clients keep an idle connection (90 s): they must close it first, because a POST on a connection
that the server closes is not sent again."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""


class _Server(uvicorn.Server):
    """Leaves signals to the process: `carrel.process` handles them."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class Tls:
    """Files, as PEM."""

    certificate: str
    key: str


@contextlib.asynccontextmanager
async def serving(
    app: AsgiApp, address: Address, tls: Tls | ssl.SSLContext | None = None, *, finish_s: int | None = None
) -> AsyncIterator[str]:
    """Yields the URL. A certificate that is loaded into a given context later is used for new connections.

    When the block ends, no new call is accepted, and those under way are finished, however long it takes. With
    `finish_s`, at most that long: a client may keep an idle TLS connection open.

    Raises `OSError` if the port is taken; its `filename` is the address.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family, backlog=512)
    except OSError as error:
        error.filename = f"{address.host}:{address.port}"  # a component may listen on several ports
        raise
    with listener:
        config = uvicorn.Config(
            app,
            log_level="warning",
            log_config=None,
            access_log=False,
            lifespan="off",
            interface="asgi3",
            server_header=False,
            proxy_headers=False,  # any process on this machine could forge the header; see --trusted-proxy
            http="httptools",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=finish_s,
            ssl_certfile=tls.certificate if isinstance(tls, Tls) else None,
            ssl_keyfile=tls.key if isinstance(tls, Tls) else None,
        )
        if isinstance(tls, ssl.SSLContext):
            config.load()
            config.ssl = tls
        server = _Server(config)
        running = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            listening = asyncio.ensure_future(server.listens.wait())
            await asyncio.wait({running, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                listening.cancel()
                await running
                raise RuntimeError("the server stopped before it had started")
            place = f"[{address.host}]" if ":" in address.host else address.host
            yield f"{'https' if tls else 'http'}://{place}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running
