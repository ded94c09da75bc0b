"""Callers that do not keep to HTTP: bytes on a socket, as slow or as many as a test wants."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.kit.eventually import LIMIT_S


class RawCaller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        """Whether the other side still listens does not matter."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def answer(self) -> str:
        """All that comes until the connection is closed; empty: it was closed without an answer."""
        received = b""
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    chunk = await self._reader.read(65536)
                except ConnectionError:
                    break
                if not chunk:
                    break
                received += chunk
        return received.decode()

    async def status(self) -> int:
        """Of the first answer; 0: the connection was closed without one."""
        try:
            async with asyncio.timeout(LIMIT_S):
                line = await self._reader.readline()
        except ConnectionError:
            return 0
        return int(line.split()[1]) if line else 0

    def close(self) -> None:
        self._writer.close()


async def raw_caller(url: str, local: str = "") -> RawCaller:
    """`local`: the address that it calls from; any of 127.0.0.0/8 is this machine."""
    where = urlsplit(url)
    bound = (local, 0) if local else None
    return RawCaller(*await asyncio.open_connection(where.hostname, where.port, local_addr=bound))


@contextlib.asynccontextmanager
async def raw_callers(url: str, count: int, local: str = "") -> AsyncIterator[list[RawCaller]]:
    callers = [await raw_caller(url, local) for _ in range(count)]
    try:
        yield callers
    finally:
        for each in callers:
            each.close()


async def answers_without_delay(url: str) -> bool:
    """Whether a server in this process sends each piece of an answer at once (TCP_NODELAY). Otherwise the second piece
    may wait 40 ms, until the caller's machine has acknowledged the first."""
    caller = await raw_caller(url)
    await caller.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await caller.status()
    files = [int(file.name) for file in Path("/proc/self/fd").iterdir()]  # noqa: ASYNC240 # not a disk
    said = {delay for file in files if (delay := _nodelay(file, urlsplit(url).port))}
    caller.close()
    return said == {"on"}


def _nodelay(file: int, port: int | None) -> str:
    """Empty: it is no connection that a server on this port has accepted."""
    try:
        with socket.socket(fileno=file) as found:
            try:
                if found.family != socket.AF_INET or found.getsockname()[1] != port or not found.getpeername():
                    return ""
                return "on" if found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) else "off"
            finally:
                found.detach()  # it stays open: it is the server's
    except OSError:
        return ""
