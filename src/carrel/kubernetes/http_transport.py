"""The transport over sockets: one pool of connections to one API server.

It distinguishes `Unavailable` (nothing was sent) from `OutcomeUnknown` (sent, but the answer was lost). aiohttp would
send a PUT or DELETE a second time, without notice, when a kept connection turns out to be closed; then a write that
took effect would be answered with 409 or 404, as if it had not. Therefore writes are never sent twice.
A call that was answered with 401 is repeated once if there are other credentials by now: the server did nothing.
"""

import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from carrel import __version__
from carrel.kubernetes.cluster import ClusterError, OutcomeUnknown, Unavailable
from carrel.kubernetes.config import Access
from carrel.kubernetes.credentials import Credentials
from carrel.kubernetes.tls import tls_context
from carrel.kubernetes.transport import ApiRequest, ApiResponse

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections: int = 64
    """Each watch holds one; the API server serves about 32 writers at once before it slows down."""
    connect_s: float = 10.0
    """Also the longest wait for a free connection."""
    whole_s: float = 60.0
    """Of one call, except watches. The API server itself aborts a call after 60 s."""


DEFAULT_CONNECTION_LIMITS = ConnectionLimits()


class _Response(aiohttp.ClientResponse):
    """Remembers on which connection it came: a short answer has given it back to the pool when it is read."""

    connection_name = ""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        if connection.transport is not None:
            # Our own end, which no other connection has meanwhile.
            self.connection_name = str(connection.transport.get_extra_info("sockname"))
        return await super().start(connection)


class HttpTransport:
    """Implements `kubernetes.transport.Transport`."""

    def __init__(self, access: Access, limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS) -> None:
        self._access = access
        self._base = URL(access.server)
        self._whole = aiohttp.ClientTimeout(total=limits.whole_s, connect=limits.connect_s)
        self._endless = aiohttp.ClientTimeout(total=None, connect=limits.connect_s)
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._tls_credentials: Credentials | None = None
        self._tls: ssl.SSLContext | None = None

    async def send(self, request: ApiRequest) -> ApiResponse:
        credential_source = self._access.credential_source
        credentials = await credential_source.credentials()
        response = await self._send_once(request, credentials)
        if response.status == 401 and (other := await credential_source.credentials_after(credentials)) is not None:
            response = await self._send_once(request, other)
        return response

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _send_once(self, request: ApiRequest, credentials: Credentials) -> ApiResponse:
        headers = {"accept": "application/json", **request.headers}
        if credentials.token:
            headers["authorization"] = f"Bearer {credentials.token}"
        is_watch = "watch" in request.query
        try:
            response = await self._open_session().request(
                request.method,
                self._base.with_path(f"{self._base.path.rstrip('/')}{request.path}").with_query(request.query),
                headers=headers,
                data=request.body or None,
                ssl=self._tls_for(credentials),
                server_hostname=self._access.trust.server_name or None,
                timeout=self._endless if is_watch else self._whole,
                allow_redirects=False,
            )
            # A server may send several Warnings, each in a header of its own.
            names, connection = dict.fromkeys(response.headers), getattr(response, "connection_name", "")
            answer_headers = {name.lower(): ", ".join(response.headers.getall(name)) for name in names}
            if is_watch and response.status == 200:
                return ApiResponse(200, b"", answer_headers, _chunks(request, response), connection)
            async with response:
                return ApiResponse(response.status, await response.read(), answer_headers, connection=connection)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _lost(request, error) from error

    def _open_session(self) -> aiohttp.ClientSession:
        # Not in the constructor: aiohttp needs the running loop.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limits.connections),
                # Compressing 50,000 pods costs the server more than the cluster's own network does.
                headers={"user-agent": f"carrel/{__version__}", "accept-encoding": "identity"},
                response_class=_Response,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_send_writes_once,),
            )
        return self._session

    def _tls_for(self, credentials: Credentials) -> ssl.SSLContext | bool:
        """One context for each client certificate: the pool keeps connections by context."""
        if self._base.scheme == "http":
            return True
        certificate = Credentials(certificate=credentials.certificate, key=credentials.key)
        if self._tls is None or self._tls_credentials != certificate:
            self._tls = tls_context(self._access.trust, certificate)
            self._tls_credentials = certificate
        return self._tls


async def _send_writes_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method == "GET" or isinstance(error, _NOT_SENT):
            raise
        # Not an aiohttp error any more, so aiohttp does not send it again.
        raise OutcomeUnknown(0, "AnswerLost", f"{request.method} {request.url.path}: {_described(error)}") from error


async def _chunks(request: ApiRequest, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable(0, "StreamBroken", f"{request.method} {request.path}: {_described(error)}") from error
    finally:
        # Closed, not returned to the pool: the server would continue to write into it.
        response.close()


def _lost(request: ApiRequest, error: Exception) -> ClusterError:
    message = f"{request.method} {request.path}: {_described(error)}"
    if isinstance(error, _NOT_SENT):
        return Unavailable(0, "NoConnection", message)
    return OutcomeUnknown(0, "AnswerLost", message)


def _described(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
