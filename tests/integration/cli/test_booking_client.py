"""The client of the booking service repeats lost requests without booking twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import typer
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
        if word == "two":
            return web.json_response({"items": [_item(f"4f2a9c1e{digit}") for digit in "01"]})
        if word in STRANGE:
            return web.Response(**STRANGE[word])
        return web.json_response({"id": "b1"}, status=201)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield BookingClient(Login(f"http://127.0.0.1:{runner.addresses[0][1]}", "carrel_x")), seen
    await runner.cleanup()


def _item(start: str) -> dict[str, Any]:
    return {
        "id": f"{start:0<32}",
        "model": "A100",
        "gpus": 1,
        "share": False,
        "state": "active",
        "user": "ada@lab.example",
    }


async def test_of_several_bookings_whose_ids_begin_so_the_person_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    async with a_service("two") as (client, seen):
        with pytest.raises(typer.Exit) as ended:
            await asyncio.to_thread(client.find_booking, "4f2a9c1e", "cancel")

    assert (ended.value.exit_code, len(seen)) == (2, 1)
    assert capsys.readouterr().err.splitlines() == [
        "✗ Which booking?",
        "  Several ids begin with 4f2a9c1e:",
        "  4f2a9c1e0  A100, 1 GPU, active, ada@lab.example",
        "  4f2a9c1e1  A100, 1 GPU, active, ada@lab.example",
        "  Try:  carrel cancel 4f2a9c1e0",
    ]


async def test_a_service_that_does_not_know_prefixes_cannot_make_us_take_another_booking() -> None:
    async with a_service("two", "made") as (client, seen):
        await asyncio.to_thread(client.find_booking, "4f2b", "cancel")

    assert [request.path for request in seen] == ["/api/v1/bookings", "/api/v1/bookings/4f2b"]


async def test_a_request_without_an_answer_is_repeated_with_the_same_key() -> None:
    async with a_service("lost", "busy", "made") as (client, seen):
        headers = {"idempotency-key": "one"}
        made = await asyncio.to_thread(client.call, "POST", "/bookings", json={"model": "a6000"}, headers=headers)

    assert made.body == {"id": "b1"}
    assert [request.headers["idempotency-key"] for request in seen] == ["one", "one", "one"]
    assert {request.headers["authorization"] for request in seen} == {"Bearer carrel_x"}


async def test_no_answer_after_all_attempts_is_an_error() -> None:
    async with a_service("lost") as (client, seen):
        with pytest.raises(ServiceUnreachable):
            await asyncio.to_thread(client.call, "GET", "/me")

    assert len(seen) >= 3, "it was repeated"


@pytest.mark.parametrize("answer", STRANGE)
async def test_whoever_answers_in_its_place_is_no_booking_service(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(booking_client, "MOST_BYTES", 2000 if answer == "more than is sensible" else 10**6)
    async with a_service(answer) as (client, seen):
        with pytest.raises(NotTheService) as strange:
            await asyncio.to_thread(client.call, "GET", "/me")

    assert len(seen) == 1 and strange.value.complaint("http://x").exit_code == 6


async def test_a_service_that_stays_busy_is_reported_with_its_own_message() -> None:
    async with a_service("busy") as (client, _):
        with pytest.raises(RequestRefused) as refused:
            await asyncio.to_thread(client.call, "GET", "/me")

    assert refused.value.complaint().exit_code == 6
