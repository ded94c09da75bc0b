"""Serves an ASGI app while a block runs, within limits. asyncio's own servers would begin any number of TLS handshakes,
before anybody is asked.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import uvicorn

from carrel.http.asgi import AsgiApp
from carrel.http.connection import LimitedConnection
from carrel.http.limits import DEFAULT_LIMITS, KEEP_ALIVE_S, ServerLimits
from carrel.http.open_connections import OpenConnections, Room

log = logging.getLogger(__name__)

TlsContext = Callable[[], ssl.SSLContext]
"""For a new connection: certificates change while a server runs."""

CHECK_S = 1.0
"""How often connections are looked at for their time."""
BACKLOG = 512
"""Connections that wait to be accepted."""
ACCEPT_RETRY_S = 0.1
"""After the process could open no more files, or a caller was gone before it was accepted."""


class Server(uvicorn.Server):
    """Leaves signals to the process: `carrel.process` handles them."""

    def __init__(self, config: uvicorn.Config, limits: ServerLimits, tls: TlsContext | None) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self._limits = limits.within_open_files()
        self._tls = tls
        self._open = OpenConnections(self._limits.connections)
        self._opening: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        (listener,) = sockets
        listener.setblocking(False)
        self.servers = []
        self._accepting = asyncio.create_task(self._accept(listener))
        self.started = True
        self.listens.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
        for opening in self._opening:
            opening.cancel()
        await super().shutdown(sockets)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        checking = asyncio.create_task(self._check_times())  # also while the last requests are finished
        try:
            await super().serve(sockets)
        finally:
            checking.cancel()

    # --- connections -------------------------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                caller, address = await loop.sock_accept(listener)
            except OSError as error:
                log.warning("not_accepted why=%r", str(error))
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            connection = LimitedConnection(self.config, self.server_state, self._limits, self._open)
            connection.peer = str(address[0])
            room = self._open.add(connection)
            if room is Room.NONE:
                caller.close()
                continue
            connection.is_for_probes = room is Room.FOR_PROBES
            opening = connection.opening = asyncio.create_task(self._begin(connection, caller))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _begin(self, connection: LimitedConnection, caller: socket.socket) -> None:
        try:
            caller.setblocking(False)
            tls = self._tls() if self._tls is not None else None
            handshake_s = self._limits.handshake_s if tls is not None else None
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, caller, ssl=tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            log.debug("no_connection peer=%s why=%r", connection.peer, str(error))  # anybody can cause any number
            self._open.discard(connection)
            caller.close()
        except BaseException:
            self._open.discard(connection)
            caller.close()
            raise
        finally:
            connection.opening = None

    async def _check_times(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            now = loop.time()
            for connection in self._open.snapshot():
                if isinstance(connection, LimitedConnection) and connection.opening is None:
                    connection.check_time(now)


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
            proxy_headers=False,  # any process on this machine could forge the header; see trustedProxies
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
