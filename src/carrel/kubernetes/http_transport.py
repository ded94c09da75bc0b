"""The transport over sockets: one pool of connections to one API server.

It distinguishes `Unavailable` (nothing was sent) from `OutcomeUnknown` (sent, but the answer was lost). A kept
connection may turn out to be closed when it is used. Then a read is sent again on a new one. A write is never sent
twice: it may have taken effect, and would be answered with 409 or 404, as if it had not.
A call that was answered with 401 is repeated once if there are other credentials by now: the server did nothing.
"""

import re
import ssl
from functools import lru_cache, partial
from urllib.parse import quote

from yarl import URL

from carrel import __version__
from carrel.kubernetes.cluster import ClusterError, OutcomeUnknown, Unavailable
from carrel.kubernetes.config import Access
from carrel.kubernetes.connection_pool import (
    DEFAULT_CONNECTION_LIMITS,
    ConnectionLimits,
    ConnectionPool,
    Endpoint,
    NoConnection,
)
from carrel.kubernetes.credentials import Credentials
from carrel.kubernetes.http_connection import Answer, ConnectionBroken, HttpConnection
from carrel.kubernetes.tls import tls_context
from carrel.kubernetes.transport import ApiRequest, ApiResponse

__all__ = ["ConnectionLimits", "HttpTransport"]

_IN_PATHS = "/:@!$&'()*+,;="
"""What need not be escaped there, besides letters, digits and `_.-~`."""
_PLAIN_PATH = re.compile(r"[a-zA-Z0-9/._-]*")
"""Nothing has to be escaped, as nearly always."""


class HttpTransport:
    """Implements `kubernetes.transport.Transport`."""

    def __init__(self, access: Access, limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS) -> None:
        self._access = access
        base = URL(access.server)
        host, self._is_plain = base.host or "", base.scheme == "http"
        self._folder = quote(base.path.rstrip("/"), _IN_PATHS)
        self._host = base.raw_authority.rpartition("@")[2]
        server_name = access.trust.server_name or host
        self._pool = ConnectionPool(Endpoint(host, base.port or 443, server_name), limits)
        self._limits = limits
        self._last_credentials: Credentials | None = None
        self._tls_credentials: Credentials | None = None
        self._tls: ssl.SSLContext | None = None
        self._header_of: tuple[str, str] | None = None  # a token, and the header with it

    async def send(self, request: ApiRequest) -> ApiResponse:
        credential_source = self._access.credential_source
        credentials = await credential_source.credentials()
        response = await self._send_once(request, credentials)
        if response.status == 401 and (other := await credential_source.credentials_after(credentials)) is not None:
            response = await self._send_once(request, other)
        return response

    async def aclose(self) -> None:
        self._pool.close()

    async def _send_once(self, request: ApiRequest, credentials: Credentials) -> ApiResponse:
        written, tls = self._written(request, credentials.token), self._tls_for(credentials)
        assert self._is_plain or tls is not None, "a token never leaves this machine in plain text"
        is_new = False
        while True:
            try:
                connection = await self._pool.take(tls, new=is_new)
            except NoConnection as error:
                message = f"{request.method} {request.path}: {error}"
                raise Unavailable(0, "NoConnection", message) from error.__cause__
            try:
                return await self._call(connection, request, written)
            except (ConnectionBroken, TimeoutError) as error:
                is_stale = isinstance(error, ConnectionBroken) and connection.calls > 1 and not connection.is_begun
                if request.method != "GET" or not is_stale or is_new:
                    raise _lost(request, error) from error
                is_new = True

    async def _call(self, connection: HttpConnection, request: ApiRequest, written: bytes) -> ApiResponse:
        stream_error = partial(_broken, request) if "watch" in request.query else None
        answer: Answer | None = None
        try:
            answer = await connection.call(written, self._limits.whole_s, stream_error)
        finally:
            if answer is None or answer.stream is None:
                self._pool.give_back(connection)
            else:
                self._pool.keep_until_closed(connection)
        return ApiResponse(answer.status, answer.body, answer.headers, answer.stream, connection.name)

    def _written(self, request: ApiRequest, token: str) -> bytes:
        lines = [f"{request.method} {self._folder}{_target(request)} HTTP/1.1", self._common(token)]
        headers = {name.lower(): value for name, value in request.headers.items()}
        headers.setdefault("accept", "application/json")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if request.body or request.method != "GET":
            lines.append(f"content-length: {len(request.body)}")
        return "\r\n".join((*lines, "", "")).encode("latin-1") + request.body

    def _common(self, token: str) -> str:
        """The part of the header that is the same in all calls with this token."""
        if self._header_of is None or self._header_of[0] != token:
            if not (token.isascii() and token.isprintable()):
                raise Unavailable(0, "NoCredential", "the token has characters that no header may have")
            lines = [
                f"host: {self._host}",
                f"user-agent: carrel/{__version__}",
                # Compressing 50,000 pods costs the server more than the cluster's own network does.
                "accept-encoding: identity",
                *([f"authorization: Bearer {token}"] if token else []),
            ]
            self._header_of = token, "\r\n".join(lines)
        return self._header_of[1]

    def _tls_for(self, credentials: Credentials) -> ssl.SSLContext | None:
        """One context for each client certificate: the pool keeps connections by context."""
        if self._is_plain or credentials is self._last_credentials:
            return self._tls
        certificate = Credentials(certificate=credentials.certificate, key=credentials.key)
        if self._tls is None or self._tls_credentials != certificate:
            self._tls = tls_context(self._access.trust, certificate)
            self._tls_credentials = certificate
        # Last: credentials that cannot be used must be refused at the next call too.
        self._last_credentials = credentials
        return self._tls


def _target(request: ApiRequest) -> str:
    path = request.path if _PLAIN_PATH.fullmatch(request.path) else quote(request.path, _IN_PATHS)
    if not request.query:
        return path
    words = [f"{_quoted(key)}={_quoted(value)}" for key, value in request.query.items()]
    return f"{path}?{'&'.join(words)}"


@lru_cache(maxsize=256)
def _quoted(word: str) -> str:
    """Of a query. Most calls have the same few."""
    return quote(word, "")


def _broken(request: ApiRequest, error: Exception) -> ClusterError:
    return Unavailable(0, "StreamBroken", f"{request.method} {request.path}: {_described(error)}")


def _lost(request: ApiRequest, error: Exception) -> ClusterError:
    return OutcomeUnknown(0, "AnswerLost", f"{request.method} {request.path}: {_described(error)}")


def _described(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
