"""A watch lasts as long as it likes, once it has begun."""

import asyncio
from dataclasses import replace

from aiohttp import web

from carrel.kubernetes.config import Access
from carrel.kubernetes.http_transport import ConnectionLimits
from tests.unit.kubernetes.served import ASK, serving, transport_to


async def test_a_watch_is_read_as_it_arrives_and_has_no_time_limit() -> None:
    more = asyncio.Event()

    async def watching(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await more.wait()
        await response.write(b"two\n")
        return response

    limits = ConnectionLimits(whole_s=4)
    async with serving(watching) as url, transport_to(Access(url), limits) as transport:
        response = await transport.send(replace(ASK, query={"watch": "true"}))
        assert response.stream is not None
        assert await anext(response.stream) == b"one\n"
        await asyncio.sleep(limits.whole_s + 0.5)  # longer than any other call may take
        more.set()
        assert await anext(response.stream) == b"two\n"
        await response.stream.aclose()
