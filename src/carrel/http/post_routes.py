"""POST paths that are answered with JSON, each with a limit for the bodies that it reads."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from starlette.routing import Route

from carrel.http.asgi import Receive, Scope, Send
from carrel.http.bodies import Body, BodyLimit, CallerGone
from carrel.http.refusals import Refused, answer_refused

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
