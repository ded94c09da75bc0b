"""The transport over sockets: aiohttp, with one pool of connections to one API server.

It distinguishes `Unavailable` (nothing was sent) from `OutcomeUnknown` (sent, but the answer was lost). A kept
connection may turn out to be closed when it is used. Then aiohttp sends a read once more. It would send a PUT or a
DELETE again too, which may have taken effect, and would be answered with 409 or 404, as if it had not. Therefore
a write is never sent twice.
A call that was answered with 401 is repeated once if there are other credentials by now: the server did nothing.
"""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from yarl import URL

from carrel import __version__
from carrel.kubernetes.cluster import ClusterError, OutcomeUnknown, Unavailable
from carrel.kubernetes.config import Access, Trust
from carrel.kubernetes.credentials import Credentials
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from carrel.parsing import Malformed


def tls_context(trust: Trust, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if trust.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif trust.authorities:
        # Only these: the machine's own authorities must not be able to vouch for this server.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=trust.authorities)
        except (ssl.SSLError, ValueError) as error:
            raise Malformed("API server access", "certificate-authority", trust.authorities, "PEM") from error
    if credentials.certificate:
        _load_pair(context, credentials)
    return context


def _load_pair(context: ssl.SSLContext, credentials: Credentials) -> None:
    # The ssl module reads certificates from files only. Nobody else can read the folder, and it is deleted at once.
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_text(f"{credentials.certificate}\n{credentials.key}\n")
        try:
            context.load_cert_chain(pair)
        except (ssl.SSLError, ValueError) as error:
            raise Malformed(
                "API server access", "client certificate", "(not shown)", f"a PEM pair ({error})"
            ) from error


_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)
MOST_HEADER_BYTES = 64 * 1024
"""Of one field in an answer."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections: int = 64
    """Each watch holds one; the API server serves about 32 writers at once before it slows down."""
    connect_s: float = 10.0
    """Also the longest wait for a free connection."""
    whole_s: float = 60.0
    """Of one call; of a watch, until it begins. The API server itself aborts a call after 60 s."""


DEFAULT_CONNECTION_LIMITS = ConnectionLimits()


class HttpTransport:
    """Implements `kubernetes.transport.Transport`."""

    def __init__(self, access: Access, limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS) -> None:
        self._access = access
        self._base = URL(access.server)
        self._folder = self._base.path.rstrip("/")
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
        try:
            async with asyncio.timeout(self._limits.whole_s):
                response = await self._open_session().request(
                    request.method,
                    self._base.with_path(f"{self._folder}{request.path}").with_query(request.query),
                    headers=_headers(request, credentials.token),
                    data=request.body or None,
                    ssl=self._tls_for(credentials),
                    server_hostname=self._access.trust.server_name or None,
                    timeout=aiohttp.ClientTimeout(total=None, connect=self._limits.connect_s),
                    allow_redirects=False,
                )
                if "watch" in request.query and response.status == 200:
                    stream = _chunks(request, response)
                    await anext(stream)  # once it has begun, closing it closes the connection
                    return ApiResponse(200, b"", _joined(response), stream)
                async with response:
                    body = await response.read()
        except _BROKEN as error:
            raise _lost(request, error) from error
        if response.status < 200:
            raise OutcomeUnknown(0, "AnswerLost", f"{request.method} {request.path}: {response.status} is no answer")
        return ApiResponse(response.status, body, _joined(response))

    def _open_session(self) -> aiohttp.ClientSession:
        # Not in the constructor: aiohttp needs the running loop.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limits.connections),
                # Compressing 50,000 pods costs the server more than the cluster's own network does.
                headers={"user-agent": f"carrel/{__version__}", "accept-encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                max_field_size=MOST_HEADER_BYTES,
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


def _headers(request: ApiRequest, token: str) -> dict[str, str]:
    headers = {"accept": "application/json", **{name.lower(): value for name, value in request.headers.items()}}
    if token:
        if not (token.isascii() and token.isprintable()):
            raise Unavailable(0, "NoCredential", "the token has characters that no header may have")
        headers["authorization"] = f"Bearer {token}"
    return headers


def _joined(response: aiohttp.ClientResponse) -> dict[str, str]:
    """The header of an answer. A server may send several Warnings, each in a field of its own."""
    return {name.lower(): ", ".join(response.headers.getall(name)) for name in response.headers}


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
    """The body of a watch as it comes, after an empty beginning."""
    try:
        yield b""
        async for chunk in response.content.iter_any():
            yield chunk
    except _BROKEN as error:
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
