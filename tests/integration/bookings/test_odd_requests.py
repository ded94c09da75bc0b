"""Bytes that no browser sends, to the booking service on a socket: each gets one answer or none, and nothing behind a
request that is refused is read as another one."""

from collections.abc import AsyncIterator

import pytest

from carrel.http.serving import Address, serving
from tests.kit.booking import MEMBER, Opened
from tests.kit.raw_http import raw_caller

BOOKINGS = "/api/v1/bookings"
BEHIND = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
"""Smuggled in, if a body ends earlier for the service than for a proxy before it."""


@pytest.fixture
async def url(opened: Opened) -> AsyncIterator[str]:
    async with serving(opened.app, Address(), finish_s=1) as url:
        yield url


async def answered(url: str, sent: bytes) -> str:
    """All that comes back before the service closes the connection."""
    caller = await raw_caller(url)
    await caller.send(sent)
    return await caller.answer()


def post(*fields: str, body: bytes = b"") -> bytes:
    return "\r\n".join([f"POST {BOOKINGS} HTTP/1.1", "host: x", *fields, "", ""]).encode("latin-1") + body


def get(target: str, *fields: str, version: str = "1.1", method: str = "GET") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "host: x", "connection: close", *fields, "", ""]
    return "\r\n".join(lines).encode("latin-1")


TWO_READINGS = {
    "a length beside chunks": post("content-length: 4", "transfer-encoding: chunked", body=b"0\r\n\r\n" + BEHIND),
    "two lengths": post("content-length: 0", "content-length: 36", body=BEHIND),
    "an encoding that only ends like chunks": post("transfer-encoding: xchunked", body=b"0\r\n\r\n" + BEHIND),
    "chunks, then another encoding": post("transfer-encoding: chunked, identity", body=b"0\r\n\r\n" + BEHIND),
    "a blank before the colon": post("content-length : 0", body=BEHIND),
    "a length with a sign": post("content-length: +0", body=BEHIND),
    "a length in another base": post("content-length: 0x0", body=BEHIND),
    "a field that goes on in the next line": post("x: y\r\n content-length: 36", "content-length: 0\x00", body=BEHIND),
    "a NUL in a field": post("x: \x00", "content-length: 0", body=BEHIND),
    "a chunk of 2^68 bytes": post("transfer-encoding: chunked", body=b"100000000000000000\r\n" + BEHIND),
    "a negative chunk": post("transfer-encoding: chunked", body=b"-1\r\n" + BEHIND),
    "HTTP/0.9": b"GET /\r\n" + BEHIND,
    "a release of HTTP that does not exist": get("/", version="9.9") + BEHIND,
}


@pytest.mark.parametrize("sent", TWO_READINGS.values(), ids=TWO_READINGS)
async def test_what_two_programs_could_read_differently_is_refused_with_all_behind_it(url: str, sent: bytes) -> None:
    answer = await answered(url, sent)

    assert answer.startswith("HTTP/1.1 400 "), answer
    assert answer.count("HTTP/1.1 ") == 1, "what came behind it was answered"


NOT_SERVED = {
    "a way up": (get("/static/../pyproject.toml"), 404),
    "a way up, escaped": (get("/static/%2e%2e/%2e%2e/pyproject.toml"), 404),
    "a way up, with an escaped slash": (get("/static/..%2f..%2fpyproject.toml"), 404),
    "a way up, with backslashes": (get("/static/..\\..\\pyproject.toml"), 404),
    "a file of the machine": (get("//etc/passwd"), 404),
    "a NUL": (get("/static/%00"), 404),
    "settings": (get("/.env"), 404),
    "the database": (get("/carrel.db"), 404),
    "a page of the framework": (get("/docs"), 404),
    "a path of 60 KB": (get("/" + "a" * 60_000), 404),
    "TRACE, which would repeat a cookie": (get("/api/v1/me", method="TRACE"), 405),
    "a tunnel": (get("lab.org:443", method="CONNECT"), 400),
    "an address that is none": (get("http://[::1"), 400),
    "an upgrade to a websocket": (get("/api/v1/me", "upgrade: websocket", "connection: upgrade"), 401),
    "an upgrade to HTTP/2": (get("/api/v1/me", "upgrade: h2c", "connection: upgrade, http2-settings"), 401),
    "5,000 cookies": (get("/api/v1/me", "cookie: " + "a=b; " * 5_000), 401),
    "a cookie of 60 KB": (get("/api/v1/me", "cookie: carrel=" + "a" * 60_000), 401),
}


@pytest.mark.parametrize(("sent", "status"), NOT_SERVED.values(), ids=NOT_SERVED)
async def test_what_is_not_there_is_not_served(url: str, sent: bytes, status: int) -> None:
    answer = await answered(url, sent)

    assert int(answer.split()[1]) == status, answer
    assert "requires-python" not in answer and "root:" not in answer


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(get("http://evil.example/"), id="an absolute address"),
        pytest.param(get("/", "host: evil.example").replace(b"host: x\r\n", b""), id="another host"),
        pytest.param(get("/", "host: evil.example"), id="two hosts"),
        pytest.param(get("/", "x-forwarded-host: evil.example", "forwarded: host=evil.example"), id="by a proxy"),
    ],
)
async def test_a_host_that_the_caller_names_is_in_no_answer(url: str, sent: bytes) -> None:
    assert "evil.example" not in await answered(url, sent)


async def test_another_site_is_not_allowed_to_read_an_answer(url: str, opened: Opened) -> None:
    token = (await opened.caller(MEMBER)).token
    asked = "origin: https://evil.example", "access-control-request-method: POST", f"authorization: Bearer {token}"
    for method in ("OPTIONS", "GET"):
        answer = await answered(url, get("/api/v1/me", *asked, method=method))
        assert "access-control-" not in answer.lower()


async def test_a_body_in_chunks_by_an_old_http_ends_the_connection(url: str) -> None:
    body = b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = await answered(url, b"POST /api/v1/bookings HTTP/1.0\r\nhost: x\r\n" + body + BEHIND)
    assert answer.count("HTTP/1.") <= 1, "what came behind it was answered"
