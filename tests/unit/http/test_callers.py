"""Who may call: by a secret in the path or in the address, or by a certificate."""

import asyncio
import base64
import logging
from typing import Any

import pytest

from carrel.http.asgi import AsgiApp, Receive, Scope, Send
from carrel.http.callers import CallerRules, known_callers_only

SECRET, OLDER = b"first-secret-0123456789", b"older-secret-0123456789"
BY_SECRET = CallerRules((SECRET, OLDER))
BY_CERTIFICATE = CallerRules(needs_certificate=True)
SHOWN = {"tls": {"client_cert_name": "commonName=kube-scheduler"}}


def password(secret: bytes) -> bytes:
    return b"Basic " + base64.b64encode(b"carrel:" + secret)


class Asked:
    """One call, and which path the app saw; empty: it saw none."""

    def __init__(self, rules: CallerRules, path: str, method: str = "POST", **more: Any) -> None:
        self.seen, self.status, self.body = "", 0, b""
        authorization = more.pop("authorization", b"")
        headers = [(b"authorization", authorization)] if authorization else []
        scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": ("10.6.6.6", 1), **more}
        asyncio.run(self._ask(known_callers_only(self._app, rules, "Error"), scope))

    async def _ask(self, app: AsgiApp, scope: Scope) -> None:
        await app(scope, self._receive, self._send)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen = scope["path"]

    async def _receive(self) -> dict[str, Any]:
        raise AssertionError("the body of a caller that is not known is not read")

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [
        pytest.param(f"/{SECRET.decode()}/carrel/filter", {}, "/carrel/filter", id="in the path"),
        pytest.param(f"/{OLDER.decode()}/carrel/filter", {}, "/carrel/filter", id="an older one"),
        pytest.param("/carrel/filter", {"authorization": password(SECRET)}, "/carrel/filter", id="in the address"),
        pytest.param("/carrel/filter", {}, "", id="none"),
        pytest.param(f"/{SECRET.decode()[:-1]}/carrel/filter", {}, "", id="a part of it"),
        pytest.param(f"/carrel/{SECRET.decode()}/filter", {}, "", id="at another place"),
        pytest.param(f"/{SECRET.decode()}", {}, "", id="nothing but it"),
        pytest.param("//carrel/filter", {}, "", id="an empty one"),
        pytest.param("/é/carrel/filter", {}, "", id="no ASCII"),
        pytest.param("/carrel/filter", {"authorization": password(b"x")}, "", id="another password"),
        pytest.param("/carrel/filter", {"authorization": b"Basic !"}, "", id="no base64"),
        pytest.param("/carrel/filter", {"authorization": b"Bearer " + SECRET}, "", id="another scheme"),
        pytest.param("/healthz", {"method": "GET"}, "/healthz", id="a probe"),
        pytest.param("/healthz", {"method": "POST"}, "", id="what only looks like a probe"),
        pytest.param("/metrics/../carrel/filter", {"method": "GET"}, "", id="a way around"),
    ],
)
def test_whoever_knows_the_secret_may_call(path: str, more: dict[str, Any], expected: str) -> None:
    asked = Asked(BY_SECRET, path, **more)
    assert asked.seen == expected
    assert asked.status == (0 if expected else 403)


def test_whoever_shows_a_certificate_may_call() -> None:
    assert Asked(BY_CERTIFICATE, "/mutate", extensions=SHOWN).seen == "/mutate"
    assert Asked(BY_CERTIFICATE, "/mutate", extensions={"tls": {"client_cert_name": None}}).status == 403
    assert Asked(BY_CERTIFICATE, "/mutate").status == 403
    assert Asked(BY_CERTIFICATE, "/readyz", "GET").seen == "/readyz"


def test_with_both_settings_both_are_needed() -> None:
    both = CallerRules((SECRET,), needs_certificate=True)
    path = f"/{SECRET.decode()}/mutate"
    assert Asked(both, path, extensions=SHOWN).seen == "/mutate"
    assert Asked(both, path).status == Asked(both, "/mutate", extensions=SHOWN).status == 403


def test_a_secret_is_in_no_answer_and_in_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        nearly = f"/{SECRET.decode()}x/carrel/filter"
        asked = Asked(BY_SECRET, nearly, authorization=password(SECRET + b"x"))

    assert b"CARREL_PATH_SECRET" in asked.body and SECRET not in asked.body
    assert "unknown_caller address=10.6.6.6" in caplog.text and SECRET.decode() not in caplog.text
