"""Answers a few POST paths with JSON, and leaves everything else to another app.

These paths are answered without Starlette, whose routes and wrappers would take longer than many of the answers.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from carrel.http.asgi import AsgiApp, Receive, Scope, Send
from carrel.http.bodies import Body, BodyLimit, CallerGone
from carrel.http.refusals import Refused, answer_refused

JSON = "application/json"


class JsonReply(NamedTuple):
    status: int
    body: bytes


class PostRoute:
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
            reply = self._handler(body)
            status, said = reply if isinstance(reply, JsonReply) else await reply
        except CallerGone:
            return
        finally:
            request.release()
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
