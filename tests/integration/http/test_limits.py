"""A server and callers that send too much, too slowly, or too many at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette

from carrel.http.asgi import AsgiApp
from carrel.http.health import health_routes
from carrel.http.limits import DEFAULT_LIMITS, ServerLimits
from carrel.http.open_connections import PROBE_CONNECTIONS
from carrel.http.post_routes import BodyLimit, BodyMemory, JsonReply, PostRoute, post_routes
from carrel.http.serving import Address, serving
from tests.kit.eventually import eventually
from tests.kit.raw_http import answers_without_delay, raw_caller, raw_callers

POST = b"POST /ask HTTP/1.1\r\nhost: x\r\n"
PROBE = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
HOLD = b"hold"


class Asked:
    """An app that answers at once, or holds an answer back until the test says so."""

    def __init__(self, largest: int = 1000, memory: int = 2000) -> None:
        self.released = asyncio.Event()
        self.held = 0
        self.memory = BodyMemory(memory)
        self.limit = BodyLimit(largest, "error", self.memory)

    async def answer(self, body: bytes) -> JsonReply:
        if body.startswith(HOLD):
            self.held += 1
            await self.released.wait()
        return JsonReply(200, b"[]")

    @property
    def app(self) -> AsgiApp:
        routes = post_routes({"/ask": PostRoute(self.answer, self.limit)})
        return Starlette(routes=[*routes, *health_routes(lambda: "", lambda: b"")])


@contextlib.asynccontextmanager
async def a_server(asked: Asked | None = None, limits: ServerLimits = DEFAULT_LIMITS) -> AsyncIterator[str]:
    async with serving((asked or Asked()).app, Address(), limits=limits, finish_s=1) as url:
        yield url


def body_of(content: bytes) -> bytes:
    return POST + b"content-length: %d\r\n\r\n" % len(content) + content


async def is_well(url: str, local: str = "") -> bool:
    caller = await raw_caller(url, local)
    await caller.send(PROBE)
    return "200 OK" in await caller.answer()


# --- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(POST + b"x: " + b"y" * 70_000, id="a field without end"),
        pytest.param(POST + b"x: " + b"y" * 70_000 + b"\r\n\r\n", id="a field that is too long"),
        pytest.param(POST + b"".join(b"x%d: y\r\n" % each for each in range(200)) + b"\r\n", id="too many fields"),
        pytest.param(POST + b"x: yyyyyyyy\r\n" * 90 + b"z: " + b"z" * 65_000 + b"\r\n\r\n", id="too much together"),
        pytest.param(b"GET /" + b"a" * 70_000, id="an address without end"),
    ],
)
async def test_a_header_that_is_too_large_is_answered_with_431_and_the_reason(sent: bytes) -> None:
    async with a_server() as url:
        caller = await raw_caller(url)
        await caller.send(sent)
        answer = await caller.answer()

        assert answer.startswith("HTTP/1.1 431 ") and "the request has more than" in answer
        assert await is_well(url)


async def test_a_header_that_comes_too_slowly_is_answered_with_408() -> None:
    async with a_server(limits=ServerLimits(header_s=0.2)) as url:
        caller = await raw_caller(url)
        await caller.send(POST)
        answer = await caller.answer()

        assert answer.startswith("HTTP/1.1 408 ") and "the header of the request took more than" in answer


async def test_a_second_header_that_comes_too_slowly_is_answered_with_408() -> None:
    async with a_server(limits=ServerLimits(header_s=0.2)) as url:
        caller = await raw_caller(url)
        await caller.send(body_of(b"{}"))
        assert await caller.status() == 200
        await caller.send(POST)
        assert "HTTP/1.1 408 " in await caller.answer()


async def test_a_connection_that_is_idle_is_kept_open() -> None:
    async with a_server(limits=ServerLimits(header_s=0.1, body_s=0.1)) as url:
        used, silent = await raw_caller(url), await raw_caller(url)
        await used.send(body_of(b"{}"))
        assert await used.status() == 200
        slow = await raw_caller(url)
        await slow.send(POST)
        assert "HTTP/1.1 408 " in await slow.answer()  # the time of all was looked at

        for caller in (used, silent):
            await caller.send(body_of(b"{}"))
        assert await silent.status() == 200
        assert (await used._reader.readuntil(b"200 OK")).endswith(b"200 OK")


async def test_a_request_that_was_answered_before_its_body_came_leaves_an_idle_connection() -> None:
    async with a_server(limits=ServerLimits(body_s=0.1)) as url:
        early = await raw_caller(url)
        await early.send(b"POST /elsewhere HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
        await early._reader.readuntil(b"\r\n\r\nNot Found")
        await early.send(b"{}")
        slow = await raw_caller(url)
        await slow.send(POST + b"content-length: 2\r\n\r\n{")
        assert "HTTP/1.1 408 " in await slow.answer()  # the time of all was looked at

        await early.send(body_of(b"{}"))
        assert (await early._reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")


async def test_what_is_not_http_is_answered_with_400() -> None:
    async with a_server() as url:
        caller = await raw_caller(url)
        await caller.send(b"\x16\x03\x01 hello")
        assert (await caller.answer()).startswith("HTTP/1.1 400 ")


# --- bodies ----------------------------------------------------------------------------------------------------------


async def test_a_body_that_comes_too_slowly_is_answered_with_408_and_counts_no_longer() -> None:
    asked = Asked()
    async with a_server(asked, ServerLimits(body_s=0.2)) as url:
        caller = await raw_caller(url)
        await caller.send(POST + b"content-length: 900\r\n\r\n" + b"x" * 800)
        answer = await caller.answer()

        assert answer.startswith("HTTP/1.1 408 ") and "the body of the request took more than" in answer
        await eventually(lambda: asked.memory.used == 0)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(body_of(b"x" * 1001), id="at once"),
        pytest.param(POST + b"content-length: 99999999999\r\n\r\n" + b"x" * 5000, id="announced"),
        pytest.param(
            POST + b"transfer-encoding: chunked\r\n\r\n" + (b"200\r\n" + b"x" * 512 + b"\r\n") * 4000, id="in pieces"
        ),
    ],
)
async def test_a_body_that_is_too_large_is_answered_with_413(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.http.post_routes.DROPPED_S", 0.1)
    asked = Asked()
    async with a_server(asked) as url:
        caller = await raw_caller(url)
        await caller.send(sent)
        answer = await caller.answer()

        assert answer.startswith("HTTP/1.1 413 ") and "the body is larger than 1000 bytes" in answer
        assert asked.memory.used == 0


async def test_bodies_together_have_a_limit_and_more_are_answered_with_503() -> None:
    asked = Asked()
    async with a_server(asked) as url:
        async with raw_callers(url, 2) as first:
            for caller in first:
                await caller.send(body_of(HOLD + b"x" * 900))
            await eventually(lambda: asked.held == 2)
            third = await raw_caller(url)
            await third.send(body_of(b"x" * 900))
            answer = await third.answer()
            assert answer.startswith("HTTP/1.1 503 ") and "retry-after: 1" in answer

            asked.released.set()
            assert [await caller.status() for caller in first] == [200, 200]
        again = await raw_caller(url)
        await again.send(body_of(b"x" * 900))
        assert await again.status() == 200


async def test_a_caller_that_goes_away_in_the_middle_of_its_body_leaves_nothing_behind() -> None:
    asked = Asked()
    async with a_server(asked) as url:
        caller = await raw_caller(url)
        await caller.send(POST + b"content-length: 900\r\n\r\n" + b"x" * 800)
        await eventually(lambda: asked.memory.used == 800)
        caller.close()
        await eventually(lambda: asked.memory.used == 0)
        assert asked.held == 0


# --- connections -----------------------------------------------------------------------------------------------------


async def test_a_flood_of_silent_and_slow_connections_keeps_nobody_out() -> None:
    async with a_server(limits=ServerLimits(connections=8)) as url:
        idle = await raw_caller(url, "127.0.0.2")
        await idle.send(body_of(b"{}"))
        assert await idle.status() == 200
        async with raw_callers(url, 50, "127.0.0.6") as flood:
            for caller in flood:
                await caller.send(POST)
            assert await is_well(url)
            assert await is_well(url, "127.0.0.6"), "also from the same address"
            await idle.send(body_of(b"{}"))
            assert (await idle._reader.readuntil(b"200 OK")).endswith(b"200 OK")


async def test_when_all_are_being_answered_probes_are_too_and_others_hear_503() -> None:
    asked = Asked()
    async with a_server(asked, ServerLimits(connections=4)) as url, raw_callers(url, 4) as busy:
        for caller in busy:
            await caller.send(body_of(HOLD))
        await eventually(lambda: asked.held == 4)

        assert await is_well(url)
        other = await raw_caller(url)
        await other.send(body_of(b"{}"))
        answer = await other.answer()
        assert answer.startswith("HTTP/1.1 503 ") and "retry-after: 1" in answer

        async with raw_callers(url, 3 * PROBE_CONNECTIONS, "127.0.0.6"):
            assert await is_well(url), "whoever waits for nothing but a place keeps no probe out"
        asked.released.set()
        assert [await caller.status() for caller in busy] == [200] * 4


async def test_no_answer_waits_for_an_acknowledgement() -> None:
    async with a_server() as url:
        assert await answers_without_delay(url)
