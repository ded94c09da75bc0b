"""Requests to POST paths that are answered with JSON."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable

import pytest
import uvloop
from starlette.applications import Starlette

from carrel.http.callers import CallerRules, known_callers_only
from carrel.http.health import health_routes
from carrel.http.limits import DEFAULT_LIMITS, ServerLimits
from carrel.http.post_routes import BodyLimit, BodyMemory, JsonReply, PostRoute, post_routes
from carrel.http.serving import Address, serving
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.raw_http import RawCaller, raw_caller

SECRET = b"a-secret-of-the-path"
LARGE = 64 * 1024
"""So much of a body uvicorn reads before somebody takes it."""
BREAK = b"break"


class Measured:
    """Answers with the size of the body: at once on `/now`, when it is released on `/later`."""

    def __init__(self) -> None:
        self.memory = BodyMemory(10 * LARGE)
        self.released = asyncio.Event()
        self.later = 0

    def now(self, body: bytes) -> JsonReply:
        if body == BREAK:
            raise RuntimeError("a mistake of ours")
        return JsonReply(200, b'{"now":%d}' % len(body))

    async def when_released(self, body: bytes) -> JsonReply:
        self.later += 1
        await self.released.wait()
        if body == BREAK:
            raise RuntimeError("a mistake of ours")
        return JsonReply(200, b'{"later":%d}' % len(body))

    @contextlib.asynccontextmanager
    async def served(
        self, limits: ServerLimits = DEFAULT_LIMITS, callers: CallerRules | None = None
    ) -> AsyncIterator[str]:
        limit = BodyLimit(4 * LARGE, "error", self.memory)
        posts = {"/now": PostRoute(self.now, limit), "/later": PostRoute(self.when_released, limit)}
        routes = [*post_routes(posts), *health_routes(lambda: "", lambda: b"")]
        app = known_callers_only(Starlette(routes=routes), callers or CallerRules(), "error")
        async with serving(app, Address(), limits=limits, finish_s=1) as url:
            yield url


def request(path: str, body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    fields = b"".join(b"%b\r\n" % field for field in (b"host: x", *headers, b"content-length: %d" % len(body)))
    return b"POST %b HTTP/%b\r\n%b\r\n%b" % (path.encode(), version, fields, body)


async def answers(caller: RawCaller, *expected: bytes) -> None:
    """These bodies come, one after the other."""
    for each in expected:
        await asyncio.wait_for(caller._reader.readuntil(each), LIMIT_S)


async def test_a_body_may_come_in_pieces() -> None:
    measured = Measured()
    async with measured.served() as url:
        caller = await raw_caller(url)
        sent = request("/now", b"x" * 3000)
        for start in range(0, len(sent), 700):
            await caller.send(sent[start : start + 700])
            await asyncio.sleep(0.01)
        await answers(caller, b'{"now":3000}')
        assert measured.memory.used == 0


@pytest.mark.parametrize("path", ["/now", "/later"])
@pytest.mark.parametrize("size", [0, 1, LARGE, LARGE + 1, 3 * LARGE])
async def test_a_body_of_any_size_within_the_limit_is_answered(path: str, size: int) -> None:
    measured = Measured()
    measured.released.set()
    async with measured.served() as url:
        caller = await raw_caller(url)
        for _ in range(2):
            await caller.send(request(path, b"x" * size))
            await answers(caller, b'{"%b":%d}' % (path[1:].encode(), size))
        assert measured.memory.used == 0


async def test_a_body_in_chunks_is_answered() -> None:
    async with Measured().served() as url:
        caller = await raw_caller(url)
        chunks = b"5\r\nhello\r\n" * 3 + b"0\r\n\r\n"
        await caller.send(b"POST /now HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
        await answers(caller, b'{"now":15}')


async def test_a_request_that_does_not_wait_for_the_answer_before_it_closes_the_connection() -> None:
    measured = Measured()
    async with measured.served() as url:
        caller = await raw_caller(url)
        await caller.send(request("/later", b"xx") + request("/now", b"xxx"))
        assert await caller.answer() == ""
        measured.released.set()
        await eventually(lambda: measured.memory.used == 0)
        again = await raw_caller(url)
        await again.send(request("/now", b"x"))
        await answers(again, b'{"now":1}')


async def test_a_caller_that_waits_for_100_continue_hears_it() -> None:
    async with Measured().served() as url:
        caller = await raw_caller(url)
        sent = request("/now", b"xxx", b"expect: 100-continue")
        await caller.send(sent[:-3])
        await answers(caller, b"100 Continue\r\n\r\n")
        await caller.send(b"xxx")
        await answers(caller, b'{"now":3}')


@pytest.mark.parametrize("path", ["/now", "/later"])
@pytest.mark.parametrize(
    ("headers", "version"),
    [pytest.param((b"connection: close",), b"1.1", id="asked"), pytest.param((), b"1.0", id="1.0")],
)
async def test_the_connection_is_closed_after_the_answer_if_the_caller_wants_it(
    path: str, headers: tuple[bytes, ...], version: bytes
) -> None:
    measured = Measured()
    measured.released.set()
    async with measured.served() as url:
        caller = await raw_caller(url)
        await caller.send(request(path, b"xxx", *headers, version=version))
        answer = await caller.answer()
        assert answer.startswith("HTTP/1.1 200 ") and "connection: close" in answer and answer.endswith(":3}")


@pytest.mark.parametrize("path", ["/now", "/later"])
async def test_a_mistake_of_ours_is_answered_with_500_and_the_next_request_as_ever(path: str) -> None:
    measured = Measured()
    measured.released.set()
    async with measured.served() as url:
        caller = await raw_caller(url)
        await caller.send(request(path, BREAK))
        await answers(caller, b"HTTP/1.1 500 ", b"mistake of the server")
        await caller.send(request(path, b"x"))
        await answers(caller, b":1}")
        assert measured.memory.used == 0


async def test_an_answer_for_a_caller_that_has_gone_is_dropped() -> None:
    measured = Measured()
    async with measured.served() as url:
        caller = await raw_caller(url)
        await caller.send(request("/later", b"x" * 100))
        await eventually(lambda: measured.later == 1)
        assert measured.memory.used == 100, "as long as it is being answered"
        caller.close()
        measured.released.set()
        await eventually(lambda: measured.memory.used == 0)
        again = await raw_caller(url)
        await again.send(request("/now", b"x"))
        await answers(again, b'{"now":1}')


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param(f"/{SECRET.decode()}/now", 200, id="with the secret"),
        pytest.param("/now", 403, id="without"),
        pytest.param("/another-secret/now", 403, id="with another one"),
        pytest.param(f"/{SECRET.decode()}/elsewhere", 404, id="a path that is none"),
    ],
)
async def test_only_callers_who_know_the_secret_are_answered(path: str, status: int) -> None:
    async with Measured().served(callers=CallerRules((SECRET,))) as url:
        for _ in range(2):
            caller = await raw_caller(url)
            await caller.send(request(path, b"xxx", b"connection: close"))
            assert (await caller.answer()).startswith(f"HTTP/1.1 {status} ")


async def test_a_request_under_way_is_finished_when_the_server_stops() -> None:
    measured = Measured()
    asked: Awaitable[str]
    async with measured.served() as url:
        caller = await raw_caller(url)
        await caller.send(request("/later", b"xx"))
        await eventually(lambda: measured.later == 1)
        asked = asyncio.create_task(caller.answer())
        asyncio.get_running_loop().call_later(0.2, measured.released.set)
    assert (await asked).endswith('{"later":2}')


@pytest.mark.parametrize("size", [3, LARGE + 1])
def test_garbage_behind_requests_that_are_answered_leaves_no_stack_trace(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """On the event loop of the product, which refuses to write to a connection that is closed."""
    broken: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: broken.append(context))
        measured = Measured()
        async with measured.served() as url:
            caller = await raw_caller(url)
            await caller.send(request("/later", b"x" * size))
            await eventually(lambda: measured.later)
            await caller.send(request("/later", b"") + b"\x00garbage\r\n\r\n")
            assert await caller.answer() == ""
            measured.released.set()
            await eventually(lambda: measured.memory.used == 0)
        gc.collect()  # a task whose error nobody has asked for says so when it goes

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert not broken
    assert not [record for record in caplog.records if record.exc_info]
