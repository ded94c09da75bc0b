"""Callers that do not keep to HTTP: bytes on a socket, as slow or as many as a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

ANSWER_S = 60.0
"""Generous: the machine may be busy."""


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
        async with asyncio.timeout(ANSWER_S):
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
            async with asyncio.timeout(ANSWER_S):
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
