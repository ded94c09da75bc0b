"""Carrel's webhook asks Carrel's booking service, over HTTP, in MAIA's words: both ends are the real ones."""

import contextlib

import pytest

from carrel.bookings.client.interface import NoAnswer
from carrel.bookings.client.maia_client import MaiaClient, Where
from carrel.http.serving import Address, serving
from tests.kit.booking import DAY, MAIA_TOKEN, MEMBER, NOW, Opened
from tests.kit.gpus import A6000


async def test_the_booking_service_answers_the_webhook(opened: Opened) -> None:
    ada = await opened.caller(MEMBER)
    await ada.book(days=2)
    async with serving(opened.app, Address()) as url:
        addresses = f"{url}/maia-api/gpu-schedulability/", f"{url}/maia-api/gpu-stats/"
        async with contextlib.aclosing(MaiaClient(Where(*addresses, MAIA_TOKEN))) as client:
            booked, somebody, free = (
                await client.verdict(MEMBER, "lab"),
                await client.verdict("nobody@lab.org", "lab"),
                await client.free(),
            )
        async with contextlib.aclosing(MaiaClient(Where(*addresses, "wrong"))) as stranger:
            with pytest.raises(NoAnswer, match="answered 403"):
                await stranger.verdict(MEMBER, "lab")

    assert (booked.schedulable, booked.until, booked.model) == (True, NOW + 2 * DAY, A6000)
    assert not somebody.schedulable
    assert free.keys() >= {A6000}
