"""What the pages say about notebooks: why one runs without a GPU, and which hubs and users an admin should look at."""

import re

from carrel.bookings.people import Role
from carrel.dialects.notice import WithoutGpu, write_without_gpu
from tests.integration.pages.test_coverage_on_pages import Seen, seen
from tests.integration.pages.visitor import a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER
from tests.kit.gpus import A6000

__all__ = ["seen"]

UNLISTED = "system:serviceaccount:jhub2:hub"
WHY = "this pod runs without a GPU: none was free"


async def a_notebook_on_cpu(seen: Seen) -> None:
    notes = {"carrel.dev/user": MEMBER, **write_without_gpu(WithoutGpu(WHY, 1, A6000))}
    await seen.replica.sees(await seen.lab.pod("notebook", annotations=notes))


async def test_home_says_why_a_notebook_runs_without_a_gpu_and_that_one_is_free_now(seen: Seen) -> None:
    await a_notebook_on_cpu(seen)

    assert f"{WHY}. Now: one is free now; stop this pod and start it again to get it." in await seen.shows("/")


async def test_home_says_when_the_first_booking_of_such_a_gpu_ends(seen: Seen) -> None:
    await seen.book(gpus=2)
    await seen.runs("train-1")
    await seen.runs("train-2")
    await a_notebook_on_cpu(seen)

    assert f"{WHY}. Now: the first booking of one ends Sat 21 Nov" in await seen.shows("/")


async def test_home_says_that_nobody_knows_when_pods_without_a_booking_end(seen: Seen) -> None:
    await seen.runs("train-1", user="eve@lab.example")
    await seen.runs("train-2", user="eve@lab.example")
    await a_notebook_on_cpu(seen)

    unknown = "it is not known when one will be free: pods without a booking hold them"
    assert f"{WHY}. Now: {unknown}." in await seen.shows("/")


async def test_what_is_written_on_a_pod_for_its_person_is_told_where_they_start_the_next_one(seen: Seen) -> None:
    for name, user in (("mine", MEMBER), ("other", "bob@lab.org")):
        notes = {"carrel.dev/user": user, "carrel.dev/notice": "save your work now"}
        await seen.replica.sees(await seen.lab.pod(name, annotations=notes))

    answer = await (await seen.opened.caller(MEMBER)).get("/api/v1/startable")

    assert answer.json["notices"] == ["lab/mine: save your work now"]


async def test_admins_see_unlisted_hubs_and_unmatched_users_with_the_option_to_set(seen: Seen) -> None:
    hub = {"hub.jupyter.org/username": "bob", "carrel.dev/tier": "opportunistic"}
    for name, notes in (
        ("a", {"carrel.dev/unlisted-spawner": UNLISTED}),
        ("b", {"carrel.dev/unlisted-spawner": UNLISTED}),
        ("c", {"carrel.dev/user": "bob"}),
        ("d", {"carrel.dev/user": MEMBER}),
    ):
        await seen.replica.sees(await seen.lab.pod(name, annotations={**hub, **notes}))
    admin = await a_visitor(seen.opened, ADMIN, Role.LAB_ADMIN)

    page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text_of(await admin.get("/admin"))))
    assert f"{UNLISTED} 2 hubs.accounts: [{UNLISTED}]" in page
    assert "Hub user without an address GPU pods bob 1" in page
    assert "hubs.usernameDomain" in page and "hubs.users" in page


async def test_without_findings_the_admin_page_does_not_speak_of_hubs(seen: Seen) -> None:
    admin = await a_visitor(seen.opened, ADMIN, Role.LAB_ADMIN)

    assert "hubs.accounts" not in text_of(await admin.get("/admin"))
