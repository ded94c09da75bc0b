"""Serves an ASGI app while a block runs."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import uvicorn

from carrel.http.asgi import AsgiApp
from carrel.http.limits import DEFAULT_LIMITS, KEEP_ALIVE_S, ServerLimits
from carrel.http.server import BACKLOG, Server, TlsContext


@dataclass(frozen=True, slots=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""


@contextlib.asynccontextmanager
async def serving(
    app: AsgiApp,
    address: Address,
    tls: TlsContext | None = None,
    *,
    limits: ServerLimits = DEFAULT_LIMITS,
    finish_s: int | None = None,
) -> AsyncIterator[str]:
    """Yields the URL. `tls` is asked for every new connection.

    When the block ends, no new call is accepted, and those under way are finished, however long it takes. With
    `finish_s`, at most that long: a client may keep an idle TLS connection open.

    Raises `OSError` if the port is taken; its `filename` is the address.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        error.filename = f"{address.host}:{address.port}"  # a component may listen on several ports
        raise
    with listener:
        # Its connections inherit it. asyncio sets it only where a socket names TCP as its protocol; without it, each
        # answer waits 40 ms for the client's acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app,
            log_level="error",  # whoever sends garbage must not fill the log
            log_config=None,
            access_log=False,  # an address may contain a secret
            lifespan="off",
            interface="asgi3",
            server_header=False,
            proxy_headers=False,  # any process on this machine could forge the header; see --trusted-proxy
            http="httptools",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=finish_s,
        )
        server = Server(config, limits, tls)
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
