"""A command line whose answers get lost books once, and says when it cannot know."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from carrel.cli import booking_service as client
from carrel.cli.booking_service import Lost, Refused, Service
from carrel.cli.login_file import Login


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSES_S", (0.0, 0.0))


@asynccontextmanager
async def a_service(*answers: str) -> AsyncIterator[tuple[Service, list[web.Request]]]:
    """Answers in turn: `lost` takes the call and closes the connection, `busy` is a 503, `made` a 201."""
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
        yield Service(Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "carrel_x"), http), seen
    await runner.cleanup()


async def test_a_lost_answer_is_asked_for_again_with_the_same_key() -> None:
    async with a_service("lost", "busy", "made") as (service, seen):
        headers = {"idempotency-key": "one"}
        made = await service.call("POST", "/bookings", json={"model": "a6000"}, headers=headers)

    assert made.body == {"id": "b1"}
    assert [request.headers["idempotency-key"] for request in seen] == ["one", "one", "one"]
    assert {request.headers["authorization"] for request in seen} == {"Bearer carrel_x"}


async def test_what_never_comes_is_told_as_lost() -> None:
    async with a_service("lost") as (service, seen):
        with pytest.raises(Lost):
            await service.call("GET", "/me")

    assert len(seen) >= 3, "it was asked again"


async def test_a_service_that_stays_busy_is_told_in_its_own_words() -> None:
    async with a_service("busy") as (service, _):
        with pytest.raises(Refused) as refused:
            await service.call("GET", "/me")

    assert refused.value.complaint().exit_code == 6
