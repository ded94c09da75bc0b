"""The types of ASGI, and answers that a server gives by itself, before an app has seen the request or instead of it."""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import msgspec

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


RETRY_AFTER_S = 1
OVERLOADED = "too many requests are being answered; try again in a moment"


@dataclass(frozen=True, slots=True)
class Refused:
    status: int
    sentence: str
    error_field: str = "error"

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({self.error_field: self.sentence})

    def header(self) -> bytes:
        return b"".join(b"%b: %b\r\n" % field for field in self.fields()) + b"\r\n"

    def headers(self) -> dict[str, str]:
        """Besides those of its body."""
        again = {"retry-after": str(RETRY_AFTER_S)} if self.status == 503 else {}
        return {"connection": "close", **again}

    def fields(self) -> list[tuple[bytes, bytes]]:
        of_body = {"content-type": "application/json", "content-length": str(len(self.body))}
        return [(name.encode(), value.encode()) for name, value in {**of_body, **self.headers()}.items()]


async def answer_refused(refused: Refused, send: Send) -> None:
    await send({"type": "http.response.start", "status": refused.status, "headers": refused.fields()})
    await send({"type": "http.response.body", "body": refused.body})


async def overloaded(scope: Scope, receive: Receive, send: Send) -> None:
    await answer_refused(Refused(503, OVERLOADED), send)
