"""What is read from a socket, byte by byte, and what becomes of a connection on which something odd came."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web

from carrel.kubernetes.cluster import OutcomeUnknown, Unavailable
from carrel.kubernetes.config import Access
from carrel.kubernetes.credentials import CredentialLocations, StoredCredentials
from carrel.kubernetes.http_transport import ConnectionLimits
from carrel.kubernetes.transport import ApiRequest
from tests.unit.kubernetes.served import ASK, WRITES, asked, serving, transport_to

Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def speaking(conversation: Conversation) -> AsyncIterator[str]:
    """A server that answers byte by byte as the test says. It closes each connection at the end."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await conversation(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the transport has closed it
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


class TestHttp:
    @pytest.mark.parametrize(
        ("answer", "body"),
        [
            pytest.param(ANSWER, b"{}", id="a length"),
            pytest.param(b"HTTP/1.1 200 OK\r\n\r\n{}", b"{}", id="a body that ends with the connection"),
            pytest.param(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + ANSWER, b"{}", id="information before it"),
            pytest.param(
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
                b"{}",
                id="chunks",
            ),
            pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="no body"),
        ],
    )
    async def test_an_answer_is_read_however_it_is_written(self, answer: bytes, body: bytes) -> None:
        async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for number in range(len(answer)):
                writer.write(answer[number : number + 1])
                await writer.drain()

        async with speaking(answering) as url, transport_to(Access(url)) as transport:
            assert (await transport.send(ASK)).body == body

    @pytest.mark.parametrize(
        "answer",
        [
            pytest.param(b"SSH-2.0-OpenSSH_9.6\r\n", id="another protocol"),
            pytest.param(
                b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", id="upgrade"
            ),
            pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", id="an endless header"),
            pytest.param(ANSWER[:-1], id="half a body"),
        ],
    )
    async def test_what_is_no_answer_leaves_the_outcome_unknown(self, answer: bytes) -> None:
        async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

        async with speaking(answering) as url, transport_to(Access(url)) as transport:
            with pytest.raises(OutcomeUnknown):
                await transport.send(WRITES[0])

    async def test_a_read_on_a_kept_connection_that_is_closed_is_sent_again(self) -> None:
        connections = 0

        async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
            await reader.readuntil(b"\r\n\r\n")  # the second call: closed without an answer

        async with speaking(once) as url, transport_to(Access(url)) as transport:
            for _ in range(2):
                assert (await transport.send(ASK)).status == 200
        assert connections == 2

    @pytest.mark.parametrize("unasked", [ANSWER, ANSWER[:20]], ids=["an answer", "the beginning of one"])
    async def test_a_connection_on_which_something_comes_unasked_is_not_used_again(self, unasked: bytes) -> None:
        asked = []

        async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(ANSWER + unasked)  # to a question that nobody has asked
            await reader.readuntil(b"\r\n\r\n")

        async with speaking(chatty) as url, transport_to(Access(url)) as transport:
            for _ in range(2):
                assert (await transport.send(ASK)).status == 200
        assert len(asked) == 2

    async def test_a_token_cannot_add_headers(self) -> None:
        access = Access("http://127.0.0.1:1", StoredCredentials(CredentialLocations("t\r\nx-admin: yes")))
        with pytest.raises(Unavailable, match="characters") as refused:
            await asked(access)
        assert "x-admin" not in str(refused.value)

    async def test_a_cancelled_call_leaves_nothing_for_the_next_one(self) -> None:
        arrived = asyncio.Event()

        async def slow(request: web.BaseRequest) -> web.StreamResponse:
            if request.path == "/slow":
                arrived.set()
                await asyncio.Event().wait()
            return web.json_response({"path": request.path})

        limits = ConnectionLimits(connections=1)
        async with serving(slow) as url, transport_to(Access(url), limits) as transport:
            call = asyncio.create_task(transport.send(ApiRequest("GET", "/slow")))
            await arrived.wait()
            call.cancel()
            await asyncio.wait([call])
            assert b"/next" in (await transport.send(ApiRequest("GET", "/next"))).body

    async def test_a_watch_that_is_closed_before_it_is_read_makes_room(self) -> None:
        async def watching(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()
            return response

        async with serving(watching) as url, transport_to(Access(url), ConnectionLimits(connections=1)) as transport:
            for _ in range(3):
                response = await transport.send(replace(ASK, query={"watch": "true"}))
                assert response.stream is not None
                await response.stream.aclose()
