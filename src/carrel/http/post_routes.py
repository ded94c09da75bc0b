"""Answers a few POST paths with JSON, and leaves everything else to another app.

These paths are answered without Starlette, whose routes and wrappers would take longer than many of the answers. Our
server answers most requests without ASGI too (`direct_request`): it asks the app for the route of a request.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

from carrel.http.asgi import AsgiApp, Receive, Scope, Send
from carrel.http.bodies import Body, BodyLimit, CallerGone
from carrel.http.refusals import Refused, answer_refused

JSON = "application/json"


class JsonReply(NamedTuple):
    status: int
    body: bytes


class PostRoute:
    def __init__(self, handler: Callable[[bytes], JsonReply | Awaitable[JsonReply]], limit: BodyLimit) -> None:
        self.handler = handler
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Body(scope, receive, self.limit)
        try:
            body = await request.read()
            if isinstance(body, Refused):
                await answer_refused(body, send)
                return
            reply = self.handler(body)
            status, said = reply if isinstance(reply, JsonReply) else await reply
        except CallerGone:
            return
        finally:
            request.release()
        headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})


class HasPostRoutes(Protocol):
    """An ASGI app that leaves some requests to a route."""

    def route_of(self, scope: Scope, path: str) -> PostRoute | None:
        """None: the app answers the request itself, by ASGI."""


def routes_of(app: AsgiApp) -> HasPostRoutes | None:
    """The app, if it leaves requests to routes. For each request it is asked whether it does."""
    return app if hasattr(app, "route_of") else None  # `isinstance` of a protocol takes ten times as long


class PostRoutes:
    def __init__(self, posts: Mapping[str, PostRoute], others: AsgiApp) -> None:
        self._posts = posts
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.route_of(scope, scope["path"]) if scope["type"] == "http" else None
        await (route or self._others)(scope, receive, send)

    def route_of(self, scope: Scope, path: str) -> PostRoute | None:
        return self._posts.get(path) if scope["method"] == "POST" else None


def with_post_routes(posts: Mapping[str, PostRoute], others: AsgiApp) -> AsgiApp:
    """`others` answers every other path and method. It should know the same paths, for `405 Method Not Allowed`."""
    return PostRoutes(posts, others)
