"""The connections to one API server: kept open after a call, used again, never more than a limit."""

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass

from carrel.kubernetes.http_connection import HttpConnection

KEPT_S = 15.0
"""An idle connection is closed after so long, well before a server or what is between closes it during a call."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections: int = 64
    """Each watch holds one; the API server serves about 32 writers at once before it slows down."""
    connect_s: float = 10.0
    """Also the longest wait for a free connection."""
    whole_s: float = 60.0
    """Of one call, except watches. The API server itself aborts a call after 60 s."""


DEFAULT_CONNECTION_LIMITS = ConnectionLimits()


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    server_name: str
    """The name that its certificate must have."""


class NoConnection(Exception):
    """None could be opened in time: nothing was sent. Its cause says why."""


class ConnectionPool:
    def __init__(self, endpoint: Endpoint, limits: ConnectionLimits) -> None:
        self._endpoint = endpoint
        self._limits = limits
        self._idle: list[HttpConnection] = []  # the one that was used last at the end
        self._open: set[HttpConnection] = set()
        self._streaming: set[HttpConnection] = set()
        self._free = asyncio.Semaphore(limits.connections)
        self._is_closed = False

    async def take(self, tls: ssl.SSLContext | None, *, new: bool = False) -> HttpConnection:
        """A connection for one call, which `give_back` ends. Raises `NoConnection`."""
        if not new and not self._free.locked() and (kept := self._kept(tls)) is not None:
            await self._free.acquire()
            return kept
        has_turn = False
        try:
            async with asyncio.timeout(self._limits.connect_s):
                await self._free.acquire()
                has_turn = True
                try:
                    return (None if new else self._kept(tls)) or await self._connect(tls)
                except BaseException:
                    self._free.release()
                    raise
        except TimeoutError as error:
            busy = f"all {self._limits.connections} connections are in use"
            why = "nobody answers" if has_turn else busy
            raise NoConnection(f"{why}, after {self._limits.connect_s:g} s") from error
        except (OSError, UnicodeError) as error:  # ssl.SSLError is an OSError
            raise NoConnection(_described(error)) from error

    def give_back(self, connection: HttpConnection) -> None:
        self._free.release()
        if connection.is_kept:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def keep_until_closed(self, connection: HttpConnection) -> None:
        """Instead of `give_back`: its answer is a stream."""
        self._streaming.add(connection)
        if not connection.is_open:
            self._on_closed(connection)

    def close(self) -> None:
        """For ever."""
        self._is_closed = True
        for connection in tuple(self._open):
            connection.close()

    def _kept(self, tls: ssl.SSLContext | None) -> HttpConnection | None:
        """The one that was used last; those that were idle for too long are closed."""
        too_old = time.monotonic() - KEPT_S
        while self._idle and (self._idle[0].idle_since < too_old or not self._idle[0].is_open):
            self._idle.pop(0).close()
        for position in range(len(self._idle) - 1, -1, -1):
            if self._idle[position].tls is tls and self._idle[position].is_open:
                return self._idle.pop(position)
        return None

    async def _connect(self, tls: ssl.SSLContext | None) -> HttpConnection:
        loop, to = asyncio.get_running_loop(), self._endpoint
        found = await loop.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        name = to.server_name if tls is not None else None
        for address in addresses:
            is_last = address is addresses[-1]
            try:
                # One of several addresses may be one that swallows everything, such as IPv6 where it is not routed.
                async with asyncio.timeout(None if is_last else self._limits.connect_s / len(addresses)):
                    _, connection = await loop.create_connection(
                        lambda: HttpConnection(tls, self._on_closed), address, to.port, ssl=tls, server_hostname=name
                    )
            except OSError:
                if is_last:
                    raise
                continue
            if self._is_closed:
                connection.close()
                raise OSError("it was closed")
            self._open.add(connection)
            return connection
        raise OSError(f"{to.host} has no address")

    def _on_closed(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if connection in self._streaming:
            self._streaming.remove(connection)
            self._free.release()
        if connection in self._idle:
            self._idle.remove(connection)


def _described(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
