"""The embedded API on a socket, so that kubectl and other clients can use it.

An ASGI app turns HTTP into `HttpRequest` and `HttpResponse` and adds nothing; uvicorn serves it. An open watch ends
when its reader disconnects or the server stops; the API itself keeps its objects.
"""

import asyncio
import contextlib
import socket
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import uvicorn

from kubernetes_in_memory.certificates import Certificate
from kubernetes_in_memory.messages import Api, HttpRequest, HttpResponse
from kubernetes_in_memory.status import ApiError
from kubernetes_in_memory.store import encode

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

FINISH_S = 1
"""Calls are answered in milliseconds and watches are ended, so a client that is still connected then is idle."""
IDLE_S = 120
"""Go's clients close an idle connection after 90 s. If the server closed it first, a POST could be lost."""
LARGEST_BODY = 3 * 1024 * 1024
"""The limit of kube-apiserver."""
TOO_LARGE = ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LARGEST_BODY}")


class AsgiApp:
    def __init__(self, api: Api) -> None:
        self._api = api
        self.closing = asyncio.Event()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _body(receive)
        if body is None:
            answer = HttpResponse(TOO_LARGE.code, encode(TOO_LARGE.status()), {"content-type": "application/json"})
        else:
            answer = await self._api.send(_request(scope, body))
        headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        if answer.stream is None:
            headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if answer.stream is None:
            await send({"type": "http.response.body", "body": answer.body if scope["method"] != "HEAD" else b""})
        else:
            await self._stream(answer.stream, receive, send)

    async def _stream(self, stream: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
        """Sends chunks until the stream ends, the client disconnects, or the server stops."""

        async def pump() -> None:
            # An empty first chunk sends the headers: a client must know at once that the watch is open.
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            async for chunk in stream:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

        async def client_disconnects() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.ensure_future(wait) for wait in (pump(), client_disconnects(), self.closing.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await stream.aclose()
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b""})


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if it is too large."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(chunks)
        size += len(message.get("body", b""))
        if size <= LARGEST_BODY:
            chunks.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(chunks) if size <= LARGEST_BODY else None


def _request(scope: Message, body: bytes) -> HttpRequest:
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return HttpRequest(scope["method"], scope["path"], query, headers, body)


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    certificate: Certificate | None = None
    """With TLS: the certificate that clients have to trust."""


class _UvicornServer(uvicorn.Server):
    capture_signals = staticmethod(contextlib.nullcontext)  # type: ignore[assignment]  # the process handles its signals


@contextlib.asynccontextmanager
async def serve(api: Api, *, host: str = "127.0.0.1", port: int = 0, tls: bool = False) -> AsyncIterator[Served]:
    """Serves while the block runs. Port 0 takes a free one."""
    app = AsgiApp(api)
    certificate = Certificate.make((host, "localhost")) if tls else None
    config = uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, lifespan="off", ws="none", server_header=False
    )
    config.timeout_keep_alive, config.timeout_graceful_shutdown = IDLE_S, FINISH_S
    config.load()
    config.ssl = _tls_context(certificate) if certificate else None
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        # Its connections inherit it. asyncio sets it only where a socket names TCP as its protocol; without it, each
        # answer waits 40 ms for the client's acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = _UvicornServer(config)
        running = asyncio.create_task(server.serve([listener]))
        try:
            while not (server.started or running.done()):  # noqa: ASYNC110 - uvicorn has a flag for it, and no event
                await asyncio.sleep(0.001)
            shown_host = f"[{host}]" if ":" in host else host
            yield Served(f"{'https' if tls else 'http'}://{shown_host}:{listener.getsockname()[1]}", certificate)
        finally:
            app.closing.set()
            server.should_exit = True
            await running


def _tls_context(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        context.load_cert_chain(*certificate.write(Path(folder)))
    return context
