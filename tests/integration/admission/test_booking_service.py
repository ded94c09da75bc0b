"""The booking service over HTTP, and all the ways in which it may fail."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from carrel.bookings.client import BookingAddress, BookingStatus, BookingStatusClient, Declined, NoAnswer
from tests.kit.gpus import A6000


@dataclass
class Dashboard:
    """MAIA's dashboard, with the answer that a test sets."""

    said: str | bytes = "{}"
    status: int = 200
    delay: asyncio.Event | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.asked.append(await request.json())
        if self.delay is not None:
            await self.delay.wait()
        headers = {"Location": "/elsewhere"} if 300 <= self.status < 400 else {}
        body = self.said if isinstance(self.said, bytes) else self.said.encode()
        return web.Response(body=body, status=self.status, content_type="text/html", headers=headers)


@asynccontextmanager
async def a_client(
    dashboard: Dashboard, timeout_s: float = 30.0, maia_gpus: Callable[[], int] = lambda: 1
) -> AsyncIterator[BookingStatusClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", dashboard.answer)
    async with TestServer(app) as server:
        where = BookingAddress(str(server.make_url("/maia-api/x/")), "s3cret")
        client = BookingStatusClient(where, timeout_s, maia_gpus=maia_gpus)
        try:
            yield client
        finally:
            if dashboard.delay is not None:
                dashboard.delay.set()
            await client.aclose()


async def test_the_request_has_maias_json() -> None:
    until = "2026-11-20T00:00:00+00:00"
    dashboard = Dashboard(json.dumps({"schedulable": True, "until": until, "gpu": "NVIDIA-RTX-A6000"}))
    async with a_client(dashboard) as client:
        verdict = await client.status("alice@lab.example", "lab")

    assert dashboard.asked == [{"user_email": "alice@lab.example", "namespace": "lab", "token": "s3cret"}]
    id = "maia-d1796c44ecb6a383b11922b9"  # of this person and model, always the same
    assert verdict == BookingStatus(datetime(2026, 11, 20, tzinfo=UTC), "NVIDIA-RTX-A6000", 1, id)


async def test_maias_answer_stands_for_as_many_gpus_as_the_configuration_says_now() -> None:
    dashboard = Dashboard(json.dumps({"schedulable": True, "until": "2026-11-20T00:00:00Z", "gpu": A6000}))
    configured = 8
    async with a_client(dashboard, maia_gpus=lambda: configured) as client:
        before = await client.status("alice", "lab")
        configured = 2
        after = await client.status("alice", "lab")

    assert (before.gpus, after.gpus) == (8, 2)


@pytest.mark.parametrize(
    "dashboard",
    [
        pytest.param(Dashboard("<html>Sign in</html>"), id="a page"),
        pytest.param(Dashboard('{"error": "x"}'), id="something else"),
        pytest.param(Dashboard('{"schedulable": "yes"}'), id="text instead of true"),
        pytest.param(Dashboard('{"schedulable": true, "until": "tomorrow"}'), id="a time that is none"),
        pytest.param(Dashboard("[" * 100_000), id="deep JSON"),
        pytest.param(Dashboard(b"\xff\xfe"), id="no text"),
        pytest.param(Dashboard(b" " * 5_000_000), id="far too much"),
        pytest.param(Dashboard('{"schedulable": true}', status=403), id="403"),
        pytest.param(Dashboard('{"schedulable": true}', status=302), id="a redirect"),
        pytest.param(Dashboard("oops", status=500), id="500"),
    ],
)
async def test_any_other_response_is_no_answer_and_the_error_shows_no_token(dashboard: Dashboard) -> None:
    async with a_client(dashboard) as client:
        with pytest.raises(NoAnswer) as caught:
            await client.status("alice", "lab")
    assert "s3cret" not in str(caught.value)


async def test_a_slow_or_missing_service_gives_no_answer() -> None:
    async with a_client(Dashboard(delay=asyncio.Event()), timeout_s=0.05) as client:
        with pytest.raises(NoAnswer, match="did not answer"):
            await client.status("alice", "lab")
    gone = BookingStatusClient(BookingAddress("http://127.0.0.1:1/"))
    for asking in (
        gone.status("alice", "lab"),
        BookingStatusClient(BookingAddress("not a url")).status("a", "b"),
    ):
        with pytest.raises(NoAnswer):
            await asking
    await gone.aclose()


@pytest.mark.parametrize(
    ("dashboard", "is_declined"),
    [
        (Dashboard("{}", status=400), True),
        (Dashboard('{"schedulable": 1}'), True),
        (Dashboard("oops", status=503), False),
        (Dashboard("<html>"), False),
    ],
    ids=["a bad question", "an odd answer", "it is down", "a page"],
)
async def test_a_request_that_the_service_refuses_differs_from_a_service_that_is_down(
    dashboard: Dashboard, is_declined: bool
) -> None:
    async with a_client(dashboard) as client:
        with pytest.raises(NoAnswer) as caught:
            await client.status("alice", "lab")
    assert isinstance(caught.value, Declined) is is_declined


OWN = "/api/v1/booking-status"
UNTIL = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("prefix", ["", "/gpus"])
@pytest.mark.parametrize("slash", ["", "/"], ids=["", "a slash at the end is left out"])
async def test_carrels_own_service_is_asked_at_its_own_route(prefix: str, slash: str) -> None:
    asked: list[tuple[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json()))
        ends = "2026-11-20T00:00:00Z"
        return web.json_response({"tier": "booked", "ends": ends, "model": A6000, "gpus": 2, "id": "b1"})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    async with TestServer(app) as server:
        client = BookingStatusClient(BookingAddress(str(server.make_url(f"{prefix}{OWN}{slash}")), "s3cret"), 30.0)
        found = await client.status("alice", "lab")
        await client.aclose()

    assert found == BookingStatus(UNTIL, A6000, 2, "b1")
    assert asked == [(f"{prefix}{OWN}", {"user": "alice", "namespace": "lab"})]
