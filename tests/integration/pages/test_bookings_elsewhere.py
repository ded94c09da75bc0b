"""A service beside which bookings are made elsewhere: it shows who holds GPUs, and takes no bookings."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from fastapi.routing import APIRoute

from carrel.bookings.app import booking_app, fastapi_app
from carrel.bookings.inventory import ClusterInventory
from carrel.bookings.people import Role
from tests.integration.pages.test_coverage_on_pages import Seen, a_cluster
from tests.integration.pages.visitor import a_visitor, text_of
from tests.kit.booking import ADMIN, DAY, MEMBER, Opened
from tests.kit.eventually import eventually
from tests.kit.gpus import A6000
from tests.kit.usage import usage_counted

MAIA = "https://maia.example"
ABOUT_BOOKINGS = re.compile("booking|timeline|maintenance|feed|availability|next-free|models|groups|schedulability")


@pytest.fixture
async def seen(opened: Opened) -> AsyncIterator[Seen]:
    """The same cluster, whose people book in MAIA's dashboard."""
    async with a_cluster(opened) as found:
        queries = replace(opened.service.queries, inventory=ClusterInventory(found.replica))
        opened.service = replace(opened.service, queries=queries, elsewhere=MAIA)
        opened.app = booking_app(opened.service)
        found.ada = await a_visitor(opened, MEMBER)
        yield found


async def test_every_route_about_bookings_says_where_they_are_made_and_all_others_answer(seen: Seen) -> None:
    app = fastapi_app(seen.opened.service)
    caller = await seen.opened.caller(ADMIN)
    wrong = []
    for route in app.router.routes:
        if not isinstance(route, APIRoute):
            continue
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        for method in () if path == "/map/stream" else route.methods or ():
            answer = await caller.call(method, path, {} if method != "GET" else None)
            is_told = answer.status == 404 and b"booked-elsewhere" in answer.body and MAIA.encode() in answer.body
            if is_told != bool(ABOUT_BOOKINGS.search(route.path)):
                wrong.append(f"{method} {route.path}: {answer.status} {answer.body[:80]!r}")
    assert not wrong, "\n".join(wrong)


async def test_home_says_where_people_book_and_shows_what_their_pods_hold(seen: Seen) -> None:
    until = seen.opened.clock.now + 5 * DAY
    await seen.lab.book(MEMBER, 1, name="maia-1", model=A6000, end=until)
    await eventually(lambda: seen.replica.covered_pods.running(), "the booking in the cache")
    await seen.runs("first")

    home = await seen.shows("/")

    assert "1 of 1 held: lab/first." in home
    assert "covered by your booking of 1 RTX A6000 until Sat 21 Nov 13:00" in home
    assert "1 of 2 are held by no pod" in home
    markup = text_of(await seen.ada.get("/"))
    assert "/timeline" not in markup and "/feed" not in markup and "be booked now" not in home


async def test_usage_shows_what_was_held_and_says_that_what_was_booked_is_not_known(seen: Seen) -> None:
    await seen.runs("first")
    async with usage_counted(seen.opened) as passes:
        await passes(timedelta(hours=1))

    page = await seen.shows("/usage")

    assert f"{MEMBER} RTX A6000 – 1.0 0.0 0.0 1.0 0.0 1.0" in page
    assert f"Bookings are made at {MAIA} , so booked hours are not known here" in page
    assert "Booked 0" not in page
    (use,) = (await (await seen.opened.caller(MEMBER)).get("/api/v1/usage")).json["items"]
    assert (use["gpu_hours"], use["held_gpu_hours"]) == (None, 1.0)


async def test_home_of_a_person_without_a_booking_leads_there(seen: Seen) -> None:
    assert f'Bookings are made at <a href="{MAIA}">{MAIA}</a>' in text_of(await seen.ada.get("/"))


async def test_the_timeline_is_a_page_that_leads_there(seen: Seen) -> None:
    answer = await seen.ada.get("/timeline")
    assert answer.status == 404
    assert f'<a class="button" href="{MAIA}">' in text_of(answer)


async def test_a_hub_sends_people_there(seen: Seen) -> None:
    answer = await (await seen.opened.caller(MEMBER)).get("/api/v1/startable")
    assert answer.json["book_url"] == MAIA


async def test_the_admin_page_has_no_groups_and_no_maintenance(seen: Seen) -> None:
    page = text_of(await (await a_visitor(seen.opened, ADMIN, Role.PLATFORM_ADMIN)).get("/admin"))
    assert "People and roles" in page and MAIA in page
    assert "/admin/groups" not in page and "/admin/maintenance" not in page
