"""Answers a few POST paths with JSON, and leaves everything else to another app.

These paths are answered without Starlette, whose routes and wrappers would take longer than many of the answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from carrel.http.bodies import read_body
from carrel.http.serving import AsgiApp, Receive, Scope, Send

JSON = "application/json"


class JsonReply(NamedTuple):
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class BodyLimit:
    bytes: int
    error_field: str
    """Where the answer to a larger body says so."""


class PostRoute:
    def __init__(self, handler: Callable[[bytes], JsonReply | Awaitable[JsonReply]], limit: BodyLimit) -> None:
        self._handler = handler
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, self._limit.bytes)
        if body is None:
            why = f"the body is larger than {self._limit.bytes} bytes"
            status, said = 413, msgspec.json.encode({self._limit.error_field: why})
        else:
            reply = self._handler(body)
            status, said = reply if isinstance(reply, JsonReply) else await reply
        headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})


def with_post_routes(posts: Mapping[str, PostRoute], others: AsgiApp) -> AsgiApp:
    """`others` answers every other path and method. It should know the same paths, for `405 Method Not Allowed`."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        route = posts.get(scope["path"]) if is_post else None
        await (route or others)(scope, receive, send)

    return app
