"""The embedded API on a loopback socket, so that kubectl and other clients can use it.

A pure ASGI wrapper: it turns HTTP into `ApiRequest` and `ApiResponse` and adds nothing. Open watches end when the
reader goes away or the server stops; the API itself lives on.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from carrel.http.serving import Address, Receive, Send, Tls, serving
from carrel.kubernetes.calls import ApiRequest, ApiResponse, Transport
from kubernetes_in_memory.certificates import Certificate
from kubernetes_in_memory.status import ApiError
from kubernetes_in_memory.store import encode

FINISH_S = 1
"""Calls are answered in milliseconds, and watches are ended: whoever is still connected then says nothing."""
LARGEST_BODY = 3 * 1024 * 1024
"""What kube-apiserver takes."""
TOO_LARGE = ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LARGEST_BODY}")


class Asgi:
    def __init__(self, api: Transport) -> None:
        self._api = api
        self.closing = asyncio.Event()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = await _body(receive)
        if body is None:
            answer = ApiResponse(TOO_LARGE.code, encode(TOO_LARGE.status()), {"content-type": "application/json"})
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
        """Sends chunks until the stream ends, the reader leaves, or the server stops."""

        async def pump() -> None:
            # An empty first chunk sends the headers: a reader must know at once that the watch stands.
            await send({"type": "http.response.body", "body": b"", "more_body": True})
            async for chunk in stream:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

        async def reader_leaves() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        tasks = [asyncio.ensure_future(wait) for wait in (pump(), reader_leaves(), self.closing.wait())]
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


def _request(scope: MutableMapping[str, Any], body: bytes) -> ApiRequest:
    query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return ApiRequest(scope["method"], scope["path"], query, headers, body)


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    certificate: Certificate | None = None
    """With TLS: what clients have to trust."""


@contextlib.asynccontextmanager
async def serve(api: Transport, *, host: str = "127.0.0.1", port: int = 0, tls: bool = False) -> AsyncIterator[Served]:
    """Serves while the block runs. Port 0 takes a free one."""
    app = Asgi(api)
    certificate = Certificate.make((host, "localhost")) if tls else None
    with contextlib.ExitStack() as stack:
        files = None
        if certificate is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            files = Tls(*map(str, certificate.write(folder)))
        async with serving(app, Address(host, port), files, finish_s=FINISH_S) as url:
            try:
                yield Served(url, certificate)
            finally:
                app.closing.set()
