"""Who may call: whoever knows a secret, whoever has a certificate, or both; probes always.

The secret is the first segment of the path, `/SECRET/carrel/filter`, or the password of the address,
`https://carrel:SECRET@host/carrel`, which Go's clients send as `Authorization: Basic` and never print. It appears in no
answer and in no line of the log.
"""

import base64
import binascii
import hmac
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from carrel.http.asgi import AsgiApp, Receive, Refused, Scope, Send, answer_refused
from carrel.http.health import is_probe

log = logging.getLogger(__name__)

REPORT_EVERY_S = 60.0
"""A scheduler without the secret calls often; one line in the log is enough."""


@dataclass(frozen=True, slots=True)
class CallerRules:
    secrets: Sequence[bytes] = ()
    """Each of them is accepted: while a secret is changed, there are two. Empty: no secret is needed."""
    needs_certificate: bool = False
    """Signed by the server's client CA."""


class KnownCallersOnly:
    """`app` sees the path without the secret."""

    def __init__(self, app: AsgiApp, rules: CallerRules, error_field: str) -> None:
        self._app = app
        self._rules = rules
        self._error_field = error_field
        self._reported = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_probe(scope["method"].encode(), scope["path"].encode()):
            await self._app(scope, receive, send)
            return
        path = self._path_of(scope)
        if not isinstance(path, Refused):
            if path != scope["path"]:
                scope["path"], scope["raw_path"] = path, path.encode()
            await self._app(scope, receive, send)
            return
        self._report(scope, path.sentence)
        await answer_refused(path, send)

    def _path_of(self, scope: Scope) -> str | Refused:
        """The path without the secret, if its caller may call."""
        if self._rules.needs_certificate and not _client_certificate(scope):
            why = "a client certificate of the authority in --client-ca is needed"
            return Refused(403, why, self._error_field)
        if not self._rules.secrets:
            return str(scope["path"])
        left = _without_secret(self._rules.secrets, scope)
        if left is not None:
            return left
        why = "the secret of CARREL_PATH_SECRET is needed, in the path or as the password of the address"
        return Refused(403, why, self._error_field)

    def _report(self, scope: Scope, why: str) -> None:
        if time.monotonic() - self._reported >= REPORT_EVERY_S:
            self._reported = time.monotonic()
            client = scope.get("client")
            log.warning("unknown_caller address=%s why=%r", client[0] if client else "", why)


def known_callers_only(app: AsgiApp, rules: CallerRules, error_field: str) -> AsgiApp:
    is_open = not rules.secrets and not rules.needs_certificate
    return app if is_open else KnownCallersOnly(app, rules, error_field)


def _client_certificate(scope: Scope) -> str:
    return scope.get("extensions", {}).get("tls", {}).get("client_cert_name") or ""


def _without_secret(secrets: Sequence[bytes], scope: Scope) -> str | None:
    """The path without the secret, if it is there; None: the caller does not know it."""
    path: str = scope["path"]
    segment, slash, rest = path[1:].partition("/")
    if slash and _is_one_of(secrets, segment.encode()):
        return f"/{rest}"
    return path if _is_one_of(secrets, _password(scope)) else None


def _is_one_of(secrets: Sequence[bytes], given: bytes) -> bool:
    """In a time that tells nothing about the secrets."""
    is_one = False
    for secret in secrets:
        is_one |= hmac.compare_digest(secret, given)
    return is_one


def _password(scope: Scope) -> bytes:
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, word = given.partition(b" ")
    if scheme.lower() != b"basic":
        return b""
    try:
        return base64.b64decode(word.strip(), validate=True).partition(b":")[2]
    except binascii.Error:
        return b""
