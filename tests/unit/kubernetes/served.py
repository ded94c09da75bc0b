"""A server of a test, and the transport that calls it."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from carrel.kubernetes.config import Access
from carrel.kubernetes.http_transport import ConnectionLimits, HttpTransport
from carrel.kubernetes.transport import ApiRequest

ASK = ApiRequest("GET", "/api/v1/pods")
WRITES = [ApiRequest(method, "/api/v1/pods", body=b"{}") for method in ("POST", "PUT", "PATCH", "DELETE")]
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    server = web.Server(handler)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)  # of handlers that never end
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def transport_to(access: Access, limits: ConnectionLimits | None = None) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(access, limits) if limits else HttpTransport(access)
    async with contextlib.aclosing(transport):
        yield transport


async def asked(access: Access, request: ApiRequest = ASK) -> str:
    async with transport_to(access) as transport:
        return (await transport.send(request)).body.decode()
