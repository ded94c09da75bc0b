"""The client of the booking service repeats lost requests without booking twice."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from carrel.cli import booking_client
from carrel.cli.booking_client import BookingClient, RequestRefused, ServiceUnreachable
from carrel.cli.saved_login import Login


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


async def test_a_service_that_stays_busy_is_reported_with_its_own_message() -> None:
    async with a_service("busy") as (client, _):
        with pytest.raises(RequestRefused) as refused:
            await client.call("GET", "/me")

    assert refused.value.complaint().exit_code == 6
