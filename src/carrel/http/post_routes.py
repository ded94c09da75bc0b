"""POST paths that are answered with JSON. Their bodies are read up to a limit, and up to what all bodies together may
take of the memory. A body that is nested more deeply than anybody needs is refused."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.routing import Route

from carrel.http.asgi import OVERLOADED, Receive, Refused, Scope, Send, answer_refused
from carrel.parsing.nesting import is_nested_too_deeply

DROPPED_BYTES = 16 * 1024 * 1024
DROPPED_S = 2.0
"""So much of a body that is too large is read and dropped, for so long: if the connection were closed before, its
sender might not read the answer."""


@dataclass(slots=True)
class BodyMemory:
    """What the bodies that are being read and answered at this moment may take together."""

    limit: int
    used: int = 0


@dataclass(frozen=True, slots=True)
class BodyLimit:
    bytes: int
    error_field: str
    """Where the answer to a larger body says so."""
    memory: BodyMemory = field(compare=False)
    """Several paths may share it."""

    def too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self.bytes} bytes", self.error_field)

    def too_deep(self) -> Refused:
        return Refused(400, "the body is nested too deeply", self.error_field)


class CallerGone(Exception):
    """Nobody waits for an answer."""


class Body:
    """The body of one request. Whoever reads it releases it, when the request is answered or has failed."""

    def __init__(self, scope: Scope, receive: Receive, limit: BodyLimit) -> None:
        self._scope, self._receive, self._limit = scope, receive, limit
        self._size = 0

    async def read(self) -> bytes | Refused:
        """Raises `CallerGone`."""
        if self._announced() > self._limit.bytes:
            return await self._drop()
        chunks: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise CallerGone
            chunk: bytes = message.get("body", b"")
            if self._size + len(chunk) > self._limit.bytes:
                return await self._drop()
            if (refused := self._count(chunk)) is not None:
                return refused
            chunks.append(chunk)
            if not message.get("more_body"):
                body = b"".join(chunks)
                return self._limit.too_deep() if is_nested_too_deeply(body) else body

    def release(self) -> None:
        self._limit.memory.used -= self._size
        self._size = 0

    def _announced(self) -> int:
        length = next((value for name, value in self._scope["headers"] if name == b"content-length"), b"0")
        return int(length) if length.isdigit() else 0

    def _count(self, chunk: bytes) -> Refused | None:
        memory = self._limit.memory
        if memory.used + len(chunk) > memory.limit:
            return Refused(503, OVERLOADED, self._limit.error_field)
        self._size += len(chunk)
        memory.used += len(chunk)
        return None

    async def _drop(self) -> Refused:
        dropped = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DROPPED_S):
                while dropped < DROPPED_BYTES:
                    message = await self._receive()
                    dropped += len(message.get("body", b""))
                    if not message.get("more_body"):
                        break
        return self._limit.too_large()


log = logging.getLogger(__name__)

JSON = "application/json"


class JsonReply(NamedTuple):
    status: int
    body: bytes


DEFECT = JsonReply(500, b'{"error":"this is a mistake of the server; its log says which"}')


class PostRoute:
    """An ASGI app."""

    def __init__(self, handler: Callable[[bytes], JsonReply | Awaitable[JsonReply]], limit: BodyLimit) -> None:
        self._handler = handler
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Body(scope, receive, self._limit)
        try:
            body = await request.read()
            if isinstance(body, Refused):
                await answer_refused(body, send)
                return
            status, content = await self._reply(body)
        except CallerGone:
            return
        finally:
            request.release()
        headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _reply(self, body: bytes) -> JsonReply:
        try:
            reply = self._handler(body)
            return reply if isinstance(reply, JsonReply) else await reply
        except Exception:
            log.exception("answer_broke")
            return DEFECT


def post_routes(posts: Mapping[str, PostRoute]) -> list[Route]:
    """The routes of a Starlette app, by path."""
    return [Route(path, route, methods=["POST"]) for path, route in posts.items()]
