"""Live maps: a few per person, never so many that pages wait, and none for a person who has signed out."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from carrel.bookings.pages import map_page
from carrel.bookings.people import Grant, Role
from carrel.bookings.sign_in.secrets import hashed
from carrel.http.limits import ServerLimits
from carrel.http.serving import Address, serving
from tests.integration.pages.test_coverage_on_pages import Seen, seen
from tests.integration.pages.visitor import Visitor, a_visitor
from tests.kit.booking import ADMIN, MEMBER, NOW, OTHER
from tests.kit.eventually import LIMIT_S

__all__ = ["seen"]

CONNECTIONS = 40


class Browsers:
    """Connections to the service over real HTTP, each of its own."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http

    async def stream(self, visitor: Visitor) -> aiohttp.ClientResponse:
        """An open live map. Its first event, which brings the whole map, has arrived."""
        answer = await self._http.get(f"{self._url}/map/stream", headers={"cookie": f"carrel={visitor.secret}"})
        if answer.status == 200:
            await answer.content.readuntil(b"\n\n")
        return answer

    async def get(self, path: str, visitor: Visitor) -> int:
        headers = {"cookie": f"carrel={visitor.secret}", "connection": "close"}
        async with self._http.get(f"{self._url}{path}", headers=headers) as answer:
            await answer.read()
            return answer.status


@pytest.fixture
async def browsers(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browsers]:
    monkeypatch.setattr(map_page, "POLL_S", 0.01)
    limits = ServerLimits(connections=CONNECTIONS)
    async with (
        serving(seen.opened.app, Address(), limits=limits, finish_s=1) as url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        yield Browsers(url, http)
        seen.opened.service.stopping.set()


async def rest_of(answer: aiohttp.ClientResponse) -> str:
    """What came until the stream ended."""
    async with asyncio.timeout(LIMIT_S):
        return (await answer.content.read()).decode()


async def test_one_person_with_many_live_maps_keeps_nobody_out(seen: Seen, browsers: Browsers) -> None:
    bob = await a_visitor(seen.opened, OTHER)

    asked = [await browsers.stream(seen.ada) for _ in range(2 * CONNECTIONS)]

    # Refused while too many of those that gave way have not ended yet: how many depends on the machine.
    assert {answer.status for answer in asked} <= {200, 429}
    opened = [answer for answer in asked if answer.status == 200]
    assert len(opened) > map_page.PER_PERSON
    assert (await browsers.stream(bob)).status == 200
    assert await browsers.get("/timeline", bob) == 200
    assert await browsers.get("/timeline", seen.ada) == 200
    for answer in opened[: -map_page.PER_PERSON]:
        assert "event: displaced\n" in await rest_of(answer), "so that the browser does not connect again"


async def test_the_newest_live_maps_of_a_person_go_on(seen: Seen, browsers: Browsers) -> None:
    opened = [await browsers.stream(seen.ada) for _ in range(map_page.PER_PERSON + 1)]
    assert "event: displaced\n" in await rest_of(opened[0])

    await seen.lab.pod("train", limits={"nvidia.com/gpu": "1"})
    await seen.runs("other")

    for answer in opened[1:]:
        async with asyncio.timeout(LIMIT_S):
            assert await answer.content.readuntil(b"event: totals")


async def test_a_live_map_ends_soon_after_its_person_has_signed_out(seen: Seen, browsers: Browsers) -> None:
    answer = await browsers.stream(seen.ada)
    other = await browsers.stream(await a_visitor(seen.opened, OTHER))

    await seen.opened.people.end_session(hashed(seen.ada.secret))

    assert "event: displaced" not in await rest_of(answer)
    assert (await browsers.stream(seen.ada)).status in (401, 303)
    assert not other.content.at_eof()


async def test_a_live_map_ends_soon_after_a_role_was_granted_and_begins_again(seen: Seen, browsers: Browsers) -> None:
    answer = await browsers.stream(seen.ada)

    await seen.opened.people.grant(Grant(MEMBER, Role.LAB_ADMIN, ADMIN, "", NOW))

    await rest_of(answer)
    assert (await browsers.stream(seen.ada)).status == 200
