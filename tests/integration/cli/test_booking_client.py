"""The client of the booking service repeats lost requests without booking twice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from carrel.cli import booking_client
from carrel.cli.booking_client import BookingClient, Login, NotTheService, RequestRefused, ServiceUnreachable

STRANGE: dict[str, dict[str, Any]] = {
    "a redirect": {"status": 302, "headers": {"location": "http://sign-in.example/"}},
    "a page": {"text": "<html>Welcome to the guest network</html>", "content_type": "text/html"},
    "a list": {"text": "[1]"},
    "nested without end": {"text": "[" * 100_000},
    "more than is sensible": {"body": b" " * 3000},
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(booking_client, "PAUSES_S", (0.0, 0.0))


@asynccontextmanager
async def a_service(*answers: str) -> AsyncIterator[tuple[BookingClient, list[web.Request]]]:
    """Answers in turn: `lost` closes the connection without an answer, `busy` is a 503, `made` a 201."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        seen.append(request)
        word = answers[min(len(seen), len(answers)) - 1]
        if word == "lost":
            assert request.transport is not None
            request.transport.close()
        if word == "busy":
            return web.json_response({"title": "Bookings cannot be reached", "code": "store-unavailable"}, status=503)
        if word in STRANGE:
            return web.Response(**STRANGE[word])
        return web.json_response({"id": "b1"}, status=201)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as http:
        yield BookingClient(Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "carrel_x"), http), seen
    await runner.cleanup()


async def test_a_request_without_an_answer_is_repeated_with_the_same_key() -> None:
    async with a_service("lost", "busy", "made") as (client, seen):
        headers = {"idempotency-key": "one"}
        made = await client.call("POST", "/bookings", json={"model": "a6000"}, headers=headers)

    assert made.body == {"id": "b1"}
    assert [request.headers["idempotency-key"] for request in seen] == ["one", "one", "one"]
    assert {request.headers["authorization"] for request in seen} == {"Bearer carrel_x"}


async def test_no_answer_after_all_attempts_is_an_error() -> None:
    async with a_service("lost") as (client, seen):
        with pytest.raises(ServiceUnreachable):
            await client.call("GET", "/me")

    assert len(seen) >= 3, "it was repeated"


@pytest.mark.parametrize("answer", STRANGE)
async def test_whoever_answers_in_its_place_is_no_booking_service(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(booking_client, "MOST_BYTES", 2000 if answer == "more than is sensible" else 10**6)
    async with a_service(answer) as (client, seen):
        with pytest.raises(NotTheService) as strange:
            await client.call("GET", "/me")

    assert len(seen) == 1 and strange.value.complaint("http://x").exit_code == 6


async def test_a_service_that_stays_busy_is_reported_with_its_own_message() -> None:
    async with a_service("busy") as (client, _):
        with pytest.raises(RequestRefused) as refused:
            await client.call("GET", "/me")

    assert refused.value.complaint().exit_code == 6
