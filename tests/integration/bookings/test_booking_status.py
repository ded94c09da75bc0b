"""Carrel's webhook asks Carrel's booking service over HTTP, by its own route and in MAIA's JSON: both ends are real."""

import contextlib

import pytest

from carrel.bookings.client import STATUS_PATH, BookingAddress, BookingStatus, BookingStatusClient, NoAnswer
from carrel.bookings.records import BookingRecord
from carrel.bookings.rules import Booking
from carrel.dialects.maia import SCHEDULABILITY_PATH
from carrel.http.serving import Address, serving
from carrel.ids import BookingId
from tests.kit.booking import DAY, MAIA_TOKEN, MEMBER, NOW, Opened
from tests.kit.gpus import A6000

OWN, MAIA = STATUS_PATH, SCHEDULABILITY_PATH
NO_HURRY_S = 60.0
"""The answer matters here, not how soon a busy machine gives it."""


@pytest.mark.parametrize(
    ("route", "gpus"),
    [
        pytest.param(OWN, 2, id="by Carrel's own route"),
        pytest.param(MAIA, 1, id="in MAIA's JSON, without the number"),
        pytest.param(MAIA.rstrip("/"), 1, id="in MAIA's JSON, at an address without a slash at the end"),
    ],
)
async def test_the_booking_service_answers_the_webhook(opened: Opened, route: str, gpus: int) -> None:
    ada = await opened.caller(MEMBER)
    made = await ada.book(days=2, gpus=2)
    async with serving(opened.app, Address()) as url:
        address = f"{url}{route}"
        async with contextlib.aclosing(BookingStatusClient(BookingAddress(address, MAIA_TOKEN), NO_HURRY_S)) as client:
            booked, not_booked = await client.status(MEMBER, "lab"), await client.status("nobody@lab.org", "lab")
        for token in ("wrong", ""):
            async with contextlib.aclosing(BookingStatusClient(BookingAddress(address, token), NO_HURRY_S)) as stranger:
                with pytest.raises(NoAnswer, match="answered 403"):
                    await stranger.status(MEMBER, "lab")

    id = made.json["id"] if route == OWN else "maia-6b81f6f49ccd5373aa3a1329"
    assert booked == BookingStatus(NOW + 2 * DAY, A6000, gpus, id)
    assert not_booked == BookingStatus()


async def test_a_booking_for_another_namespace_does_not_count(opened: Opened) -> None:
    ada = await opened.caller(MEMBER)
    made = await ada.book(days=2, namespace="lab")
    token = {"authorization": f"Bearer {MAIA_TOKEN}"}

    here = await opened.nobody.post(OWN, {"user": MEMBER, "namespace": "lab"}, **token)
    elsewhere = await opened.nobody.post(OWN, {"user": MEMBER, "namespace": "other"}, **token)

    assert here.json == {
        "tier": "booked",
        "ends": "2026-11-18T12:00:00Z",
        "model": A6000,
        "gpus": 1,
        "id": made.json["id"],
    }
    assert elsewhere.json == {"tier": "opportunistic", "ends": None, "model": "", "gpus": 0, "id": ""}


@pytest.mark.parametrize(
    ("after_days", "expected"),
    [
        pytest.param(0, "short", id="a planned booking does not count yet"),
        pytest.param(1, "long", id="of several, the one that ends last"),
        pytest.param(5, None, id="none: the last one has ended"),
    ],
)
async def test_the_active_booking_that_ends_last_counts(opened: Opened, after_days: int, expected: str | None) -> None:
    ends = {"long": (MEMBER, 1, 5), "short": (MEMBER, 0, 2), "bobs": ("bob@lab.org", 0, 9)}
    async with opened.service.queries.store.writing() as writing:
        for id, (user, start, end) in ends.items():
            await writing.add(
                BookingRecord(Booking(BookingId(id), user, A6000, NOW + start * DAY, NOW + end * DAY), NOW, user)
            )
    opened.clock.now = NOW + after_days * DAY

    active = await opened.service.queries.active_booking(MEMBER)

    assert (active.id if active else None) == expected
