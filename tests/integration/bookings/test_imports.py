"""Bookings that are taken over from another system over HTTP: as many as a lab has, all or none."""

from typing import Any

from tests.kit.booking import Caller, Opened, at
from tests.kit.gpus import A6000

IMPORTED, BOOKINGS = "/api/v1/imported-bookings", "/api/v1/bookings"


def an_item(user: str, start: float, end: float) -> dict[str, Any]:
    return {"user": f"{user}@lab.org", "model": A6000, "start": at(start), "end": at(end), "namespace": "vision"}


async def test_2000_bookings_are_taken_over_in_one_request(opened: Opened, eva: Caller) -> None:
    items = [an_item(f"person-{number}", number // 2 - 500, number // 2 - 499) for number in range(2000)]

    first, again = [await eva.post(IMPORTED, {"items": items, "reason": "MAIA is switched off"}) for _ in range(2)]

    assert (first.status, first.json) == (200, {"made": 2000, "there": 0}), first.body
    assert again.json == {"made": 0, "there": 2000}


async def test_more_than_2000_bookings_are_refused_with_the_reason(opened: Opened, eva: Caller) -> None:
    refused = await eva.post(IMPORTED, {"items": [an_item("ada", 1, 2)] * 2001})

    assert refused.status == 400
    assert "at most 2000 items" in refused.body.decode()


async def test_the_bookings_of_one_request_count_for_each_other_and_those_that_are_there_for_all(
    opened: Opened, ada: Caller, eva: Caller
) -> None:
    assert (await ada.book(start=at(2), end=at(4))).status == 201
    items = [an_item("u1", 1, 3), an_item("u2", 3, 5), an_item("u3", 3.5, 6), an_item("u4", -1, 1), an_item("u5", 4, 5)]

    refused = await eva.post(IMPORTED, {"items": items})
    made = await eva.post(IMPORTED, {"items": [items[0], items[1], items[3], items[4]]})

    assert [each["field"] for each in refused.json["problems"]] == ["items.2"]
    assert (made.status, made.json["made"]) == (200, 4)
