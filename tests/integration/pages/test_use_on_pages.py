"""What pages and the API say about what GPUs are used for, and to whom."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from carrel.bookings.people import Role
from tests.integration.pages.test_coverage_on_pages import Seen, a_cluster
from tests.integration.pages.visitor import a_visitor, text_of
from tests.kit.booking import ADMIN, MEMBER, OTHER, Opened
from tests.kit.eventually import eventually
from tests.kit.gpu_use import BUSY, QUIET, ReportingAgent

MINUTE = timedelta(minutes=1)
FIGURES = re.compile(r"\d+ % (of the|since)|last sample")


@dataclass
class Used:
    """A node of three GPUs: MEMBER's pod is idle on the first, OTHER's works on the second, nobody has the third."""

    seen: Seen
    booking: str

    async def page(self, path: str, email: str = MEMBER, role: Role = Role.MEMBER) -> str:
        """The words and the labels of the page."""
        visitor = await a_visitor(self.seen.opened, email, role)
        answer = await visitor.get(path)
        assert answer.status == 200
        return text_of(answer)

    async def words(self, path: str, email: str = MEMBER, role: Role = Role.MEMBER) -> str:
        markup = await self.page(path, email, role)
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup)).replace("&#39;", "'")

    async def gpus(self, email: str = MEMBER) -> list[dict[str, Any]]:
        caller = await self.seen.opened.caller(email)
        answer = await caller.get("/api/v1/gpus")
        assert answer.status == 200
        items: list[dict[str, Any]] = answer.json["items"]
        return items


@pytest.fixture
async def used(opened: Opened) -> AsyncIterator[Used]:
    async with a_cluster(opened, gpus=3) as seen:
        booking = await seen.book()
        await seen.runs("mine")
        await seen.runs("theirs", OTHER)
        agent = ReportingAgent(seen.lab, "n1", 3, [seen.replica.view.gpu_usages])
        for pod in ("mine", "theirs"):
            await eventually(lambda pod=pod: seen.replica.pods.store.get(pod, "lab").spec.node_name, "bound")  # type: ignore[misc, union-attr] # it is there
        await agent.sample_for(20 * MINUTE, gpu_0=BUSY, gpu_1=BUSY)
        await agent.sample_for(40 * MINUTE, gpu_0=QUIET, gpu_1=BUSY)
        yield Used(seen, booking)


async def test_home_says_what_ones_pods_do_with_their_gpus(used: Used) -> None:
    home = await used.words("/")
    assert re.search(r"lab/mine \w+ booked GPU 0 of n1 idle since 13:20, (2\d|3[0-4]) % of the last hour", home)
    assert "1 of 1 booked GPU held" in home


async def test_the_map_has_a_mark_and_words_for_what_held_gpus_do(used: Used) -> None:
    page, words = await used.page("/map"), await used.words("/map")

    assert [page.count(f'class="use {state}"') for state in ("idle", "active", "unknown")] == [2, 2, 1], (
        "with the legend"
    )
    assert 'aria-label="GPU 0 of n1, RTX A6000; 0 MiB of 15.9 GiB free; held by lab/mine' in page
    assert "Booked GPUs 1,001 of 3 Held GPUs 2" in words and "Active GPUs 1 1 idle Free GPUs 1 of 3" in words
    labels = re.findall(r'aria-label="GPU (\d) of n1[^"]*; ([^;"]*)"', page)
    assert [label[0] for label in labels] == ["0", "1", "2"]
    assert labels[0][1].startswith("idle since 13:20, ")
    assert labels[1][1] == "active", "what others do is no figure"
    assert labels[2][1] == "not held"


@pytest.mark.parametrize(
    ("gpu", "email", "role", "has_figures"),
    [
        pytest.param(0, MEMBER, Role.MEMBER, True, id="one's own"),
        pytest.param(1, MEMBER, Role.MEMBER, False, id="somebody else's"),
        pytest.param(0, OTHER, Role.MEMBER, False, id="and the other way round"),
        pytest.param(0, ADMIN, Role.LAB_ADMIN, True, id="an admin sees all"),
    ],
)
async def test_who_sees_figures_on_the_panel_of_a_gpu(
    used: Used, gpu: int, email: str, role: Role, has_figures: bool
) -> None:
    panel = await used.words(f"/map/gpus/GPU-n1-{gpu}", email, role)
    assert ("Idle since 13:20" if gpu == 0 else "Active") in panel
    assert bool(FIGURES.search(panel)) is has_figures


async def test_the_page_of_a_booking_says_what_is_booked_held_and_active(used: Used) -> None:
    own = await used.words(f"/bookings/{used.booking}")
    assert "Booked 1 Held 1 Active 0 1 idle" in own
    assert re.search(r"lab/mine : idle since 13:20, \d+ % of the last hour", own)
    others = await used.words(f"/bookings/{used.booking}", OTHER)
    assert "lab/mine : idle since 13:20" in others and not FIGURES.search(others)


async def test_who_waits_is_told_whose_gpus_are_idle(used: Used) -> None:
    await used.seen.runs("more", "cleo@lab.org")
    await used.seen.pod("waits")
    home = await used.words("/")
    assert f"lab/theirs of {OTHER}, opportunistic: may be asked back, active" in home
    assert "lab/more of cleo@lab.org, opportunistic: may be asked back, not active yet" in home


async def test_the_api_has_the_map_with_the_same_rights(used: Used) -> None:
    own, theirs, nobodys = await used.gpus()

    assert own["holders"][0]["pod"] == "lab/mine" and own["holders"][0]["tier"] == "booked"
    assert own["activity"]["state"] == own["holders"][0]["activity"]["state"] == "idle"
    assert own["activity"]["idle_since"] == "2026-11-16T12:20:00Z"
    assert (own["activity"]["utilisation_percent"], own["activity"]["power_watts"]) == (0, 55)
    assert 0.2 < own["activity"]["active_part"] < 0.4
    hidden = {name: value for name, value in theirs["activity"].items() if value is not None}
    assert hidden == {"state": "active"}
    assert theirs["holders"][0]["person"] == OTHER
    assert nobodys["activity"] is None and nobodys["holders"] == []

    by_other = (await used.gpus(OTHER))[1]
    assert by_other["activity"]["utilisation_percent"] == 90


async def test_the_api_says_of_ones_pods_what_they_do(used: Used) -> None:
    caller = await used.seen.opened.caller(MEMBER)
    (pod,) = (await caller.get("/api/v1/pods")).json["items"]
    assert pod["use"].startswith("idle since 13:20, ")
    assert pod["activity"]["state"] == "idle"


async def test_nodes_of_the_map_are_found_by_name(used: Used) -> None:
    caller = await used.seen.opened.caller(MEMBER)
    answer = await caller.get("/api/v1/gpus?node=nowhere")
    assert answer.json == {"items": [], "more_nodes": 0}


async def test_without_a_cluster_there_is_no_map(opened: Opened) -> None:
    caller = await opened.caller(MEMBER)
    assert (await caller.get("/api/v1/gpus")).json["code"] == "no-cluster"
