"""A request to one of a few POST paths (`post_routes`), answered by the server's connection itself.

ASGI would need a task, two queues of messages and some dicts for each request, which together take longer than many of
the answers. A request is answered directly if its body comes soon and is small. Everything that is out of the ordinary
(a body that is large, or too large, too many of them, a caller that reads no answers) is left to ASGI, with what
has come of the body: there it is decided what to do about it, in one place.
"""

from collections.abc import Awaitable

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from carrel.http.asgi import AsgiApp
from carrel.http.post_routes import JSON, JsonReply, PostRoute

DIRECT_BYTES = HIGH_WATER_LIMIT
"""Uvicorn reads no more of a larger body until somebody takes it."""
DEFECT = JsonReply(500, b'{"error":"this is a mistake of the server; its log says which"}')


class DirectRequest:
    def __init__(self, cycle: RequestResponseCycle, app: AsgiApp, route: PostRoute) -> None:
        """`app` answers it if it is left to ASGI."""
        self.cycle = cycle
        self.app = app
        self._route = route
        self._counted = 0

    def takes(self, more: int) -> bool:
        """Whether it can still be answered directly with so much more of the body."""
        size, limit = len(self.cycle.body), self._route.limit
        if size + more > DIRECT_BYTES or not limit.has_room_for(size, more):
            return False
        limit.memory.used += more
        self._counted += more
        return True

    def release(self) -> None:
        """It is answered, or will be by ASGI, or never."""
        self._route.limit.memory.used -= self._counted
        self._counted = 0

    def reply(self) -> JsonReply | Awaitable[JsonReply]:
        """The whole body is here."""
        body, self.cycle.body = bytes(self.cycle.body), bytearray()  # an idle connection keeps its last cycle
        return self._route.handler(body)


def written(reply: JsonReply, cycle: RequestResponseCycle) -> bytes:
    """The answer as it is sent."""
    fields = b"".join([b"%b: %b\r\n" % field for field in cycle.default_headers])
    last = b"" if cycle.keep_alive else b"connection: close\r\n"
    header = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b\r\n" % (fields, JSON.encode(), len(reply.body), last)
    return STATUS_LINE[reply.status] + header + reply.body
