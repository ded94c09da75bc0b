"""What the pages and the API say about coverage, on a small cluster."""

import csv
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from carrel import __version__
from carrel.bookings.app import booking_app
from carrel.bookings.inventory import ClusterInventory
from carrel.dialects.booking_objects import BOOKINGS
from carrel.ids import BookingId
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import NAMESPACES
from carrel.ledger.tiers import Tier
from tests.integration.pages.visitor import Visitor, a_visitor, text_of
from tests.kit.booking import ADMIN, DAY, MEMBER, OTHER, Opened, at, made
from tests.kit.eventually import eventually
from tests.kit.gpus import A6000, a_node
from tests.kit.lab import Clock, Lab, Replica, a_lab
from tests.kit.usage import usage_counted

WHOLE = {"nvidia.com/gpu": "1"}


@dataclass
class Seen:
    lab: Lab
    replica: Replica
    opened: Opened
    ada: Visitor

    async def runs(self, name: str, user: str = MEMBER, tier: str = "opportunistic") -> None:
        """A pod that holds one GPU. `tier` is what was written on it."""
        pod = await self.pod(name, user, tier)
        assert await self.replica.bind(pod, "n1") is None

    async def pod(
        self, name: str, user: str = MEMBER, tier: str = "opportunistic", booking: str = ""
    ) -> dict[str, Any]:
        """A pod that waits; with a booking, until that starts."""
        told = {"carrel.dev/user": user, "carrel.dev/tier": tier}
        made_for = {"carrel.dev/booking": booking} if booking else {}
        made_pod = await self.lab.pod(name, limits=WHOLE, annotations={**told, **made_for}, gates=tuple(made_for))
        await self.replica.sees(made_pod)
        return made_pod

    async def book(self, gpus: int = 1, user: str = MEMBER, **spec: Any) -> str:
        """In the database, and as the object that mirrors it. The id."""
        caller = await self.opened.caller(user)
        group = {"group": spec["group"]} if "group" in spec else {}
        booking = await made(caller, days=5, gpus=gpus, **group)
        clock = self.opened.clock
        times = {"start": clock.now, "end": clock.now + 5 * DAY}
        await self.lab.book(user, gpus, name=booking["id"], model=A6000, **{**times, **spec})
        await eventually(lambda: self.replica.covered_pods.booking(booking["id"]), "the booking in the cache")
        return str(booking["id"])

    async def shows(self, path: str) -> str:
        """The words of the page."""
        answer = await self.ada.get(path)
        assert answer.status == 200
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text_of(answer))).replace("&#39;", "'")


@pytest.fixture
async def seen(opened: Opened) -> AsyncIterator[Seen]:
    async with a_cluster(opened) as found:
        yield found


@asynccontextmanager
async def a_cluster(opened: Opened, gpus: int = 2) -> AsyncIterator[Seen]:
    async with a_lab([a_node("n1", gpus)]) as lab, lab.replica(is_shown=True) as replica:
        opened.clock.now = lab.clock.now
        opened.service = replace(opened.service, cluster_view=replica.view, usage=opened.usage)
        opened.app = booking_app(opened.service)
        yield Seen(lab, replica, opened, await a_visitor(opened, MEMBER))


# --- home ------------------------------------------------------------------------------------------------------------


async def test_home_shows_what_a_booking_covers_and_which_pods_are_beyond_it(seen: Seen) -> None:
    await seen.book()
    await seen.runs("first")
    await seen.runs("second")

    home = await seen.shows("/")

    until = "Sat 21 Nov 13:00"
    assert "1 of 1 held: lab/first." in home
    assert "1 of 1 booked GPU held" in home
    assert "Beyond your booking: lab/second ." in home
    assert f"covered by your booking of 1 RTX A6000 until {until}" in home
    assert "your booking of 1 RTX A6000 is in use by lab/first; this pod runs on what is free" in home


async def test_home_follows_a_booking_that_is_cancelled(seen: Seen) -> None:
    booking = await seen.book()
    await seen.runs("first")
    assert "covered by your booking" in await seen.shows("/")

    await seen.lab.client.delete(BOOKINGS, booking)
    await eventually(lambda: seen.replica.covered_pods.booking(BookingId(booking)) is None, "the booking is gone")

    home = await seen.shows("/")
    assert "no booking; may lose its GPU to a booked pod" in home
    assert "covered by your booking" not in home


async def test_home_says_who_holds_what_a_pod_waits_for_and_until_when(seen: Seen) -> None:
    await seen.book(user=OTHER)
    await seen.runs("theirs", OTHER)
    await seen.runs("free", "cleo@lab.org")
    await seen.pod("mine")

    home = await seen.shows("/")

    assert "no booking; waits for a free GPU" in home
    assert f"GPU 0 of n1 (RTX A6000): lab/theirs of {OTHER}, booked until Sat 21 Nov 13:00" in home
    assert "GPU 1 of n1 (RTX A6000): lab/free of cleo@lab.org, opportunistic: may be asked back" in home


async def test_home_says_until_when_a_pod_waits_for_a_booking_that_starts_later(seen: Seen) -> None:
    start = seen.opened.clock.now + DAY
    booking = await seen.book(start=start)
    await seen.pod("later", booking=booking)

    assert "waits for your booking of 1 RTX A6000, which starts Tue 17 Nov 13:00" in await seen.shows("/")


async def test_home_shows_the_booking_of_a_group(seen: Seen) -> None:
    await seen.lab.book(OTHER, 2, model=A6000, members=[MEMBER], group="vision", name="of-the-group")
    await eventually(lambda: seen.replica.covered_pods.booking(BookingId("of-the-group")), "the booking in the cache")
    await seen.runs("first")

    home = await seen.shows("/")

    assert "2 × RTX A6000 for vision until" in home
    assert "covered by the booking of 2 RTX A6000 for vision until" in home


async def test_a_pod_in_an_exempt_namespace_keeps_its_gpu(seen: Seen) -> None:
    await seen.runs("first")
    pod = seen.replica.pods.store.get("first", "lab")
    assert pod is not None
    exempt = {"metadata": {"annotations": {"carrel.dev/exempt": "true"}}}
    await seen.lab.client.patch(NAMESPACES, "lab", MergePatch(exempt))
    await eventually(lambda: seen.replica.watches.is_exempt(pod.metadata.namespace), "the namespace is exempt")

    home = await seen.shows("/")
    assert "no tier" in home
    assert "keeps its GPU: its namespace is exempt" in home


# --- timeline --------------------------------------------------------------------------------------------------------


async def test_a_running_bookings_bar_and_row_name_the_pods_that_it_covers(seen: Seen) -> None:
    await seen.book(2)
    assert "You · 2 · 0 of 2 held" in await seen.shows("/timeline")

    await seen.runs("first")

    assert "You · 2 · 1 of 2 held: lab/first: 2 GPUs of RTX A6000, 5 d" in await seen.shows("/timeline")
    table = await seen.shows("/timeline/table")
    assert "November 2026 RTX A6000" in table
    assert "1 of 2 held: lab/first" in table


async def test_the_bar_of_a_group_booking_names_the_group(seen: Seen) -> None:
    await seen.opened.manage("vision", OTHER, members=(MEMBER,))
    await seen.book(2, OTHER, members=[MEMBER], group="vision")

    timeline = await seen.shows("/timeline")

    assert "vision · 2 · 0 of 2 held" in timeline
    assert f"vision · 2 · 0 of 2 held: booked by {OTHER}, 2 GPUs of RTX A6000" in timeline


# --- map -------------------------------------------------------------------------------------------------------------


async def test_the_map_shows_each_pods_tier_as_it_is_now_and_by_which_booking(seen: Seen) -> None:
    await seen.book()
    await seen.runs("first")
    await seen.runs("second", tier="booked")
    assert seen.replica.covered_pods.tier(seen.replica.pods.store.get("second", "lab")) is Tier.OPPORTUNISTIC  # type: ignore[arg-type] # it is there

    answer = text_of(await seen.ada.get("/map"))
    words = await seen.shows("/map")

    assert answer.count('class="share booked"') - 1 == 1  # one in the legend
    assert answer.count('class="share opportunistic"') - 1 == 1
    assert "covered by a booking of 1 RTX A6000 until Sat 21 Nov 13:00" in words
    assert "beyond its person's booking; may lose its GPU to a booked pod" in words


async def test_the_map_changes_when_a_booking_ends_although_nobody_takes_or_returns_a_gpu(seen: Seen) -> None:
    await seen.book()
    coverage = seen.opened.service.cluster_view.state.covered_pods  # type: ignore[union-attr] # it is there
    before = coverage.version
    assert coverage.version == before

    seen.opened.clock.now += 6 * DAY
    seen.lab.clock.now += 6 * DAY

    assert coverage.version != before


async def test_the_map_changes_when_a_namespace_becomes_exempt_although_nobody_takes_or_returns_a_gpu(
    seen: Seen,
) -> None:
    before = seen.replica.covered_pods.version

    exempt = MergePatch({"metadata": {"annotations": {"carrel.dev/exempt": "true"}}})
    await seen.lab.client.patch(NAMESPACES, "lab", exempt)

    await eventually(lambda: seen.replica.covered_pods.version != before, "another version")


# --- usage and the API -----------------------------------------------------------------------------------------------


async def test_usage_splits_what_pods_held_by_coverage(seen: Seen) -> None:
    await seen.book()
    await seen.runs("first")
    await seen.runs("second")
    async with usage_counted(seen.opened) as passes:
        await passes(timedelta(hours=1))

    page = await seen.shows("/usage")
    (row,) = csv.DictReader(io.StringIO(text_of(await seen.ada.get("/usage.csv"))))
    api = (await (await seen.opened.caller(MEMBER)).get("/api/v1/usage")).json
    others = (await (await seen.opened.caller(OTHER)).get("/api/v1/usage")).json

    assert f"{MEMBER} RTX A6000 1.0 2.0 0.0 0.0 2.0 1.0 1.0" in page
    assert (row["booked_hours"], row["held_hours"], row["unknown_hours"]) == ("1.0", "2.0", "2.0")
    assert (row["covered_hours"], row["opportunistic_hours"]) == ("1.0", "1.0")
    (use,) = api["items"]
    assert (use["gpu_hours"], use["held_gpu_hours"], use["unknown_gpu_hours"]) == (1.0, 2.0, 2.0)
    assert (use["covered_gpu_hours"], use["opportunistic_gpu_hours"]) == (1.0, 1.0)
    assert (api["held_since"], api["held_until"]) == ("2026-11-16T12:00:00Z", "2026-11-16T13:00:00Z")
    assert others["items"] == []


async def test_a_booking_tells_how_many_of_its_gpus_are_used_and_by_which_pods(seen: Seen) -> None:
    booking = await seen.book(2)
    await seen.runs("first")
    caller = await seen.opened.caller(ADMIN)

    one = await caller.get(f"/api/v1/bookings/{booking}", if_none_match='"1"')
    listed = await caller.get("/api/v1/bookings")

    assert (one.json["used"], one.json["pods"]) == (1, ["lab/first"])
    assert (listed.json["items"][0]["used"], listed.json["items"][0]["pods"]) == (1, ["lab/first"])


async def test_without_a_cluster_nothing_is_said_about_use(opened: Opened) -> None:
    booking = await made(await opened.caller(MEMBER), start=at(1), days=5)

    assert (booking["used"], booking["pods"]) == (None, [])


async def test_the_map_names_carrels_version_below(seen: Seen) -> None:
    assert f"Carrel {__version__} ·" in await seen.shows("/map")


async def test_what_a_person_may_start_tells_how_much_of_a_booking_is_used(seen: Seen) -> None:
    booking = await seen.book(2)
    caller = await seen.opened.caller(MEMBER)
    await seen.runs("first")
    before = (await caller.get("/api/v1/startable")).json
    await seen.runs("second")
    after = (await caller.get("/api/v1/startable")).json

    assert [(each["id"], each["gpus"], each["used"]) for each in before["bookings"]] == [(booking, 2, 1)]
    assert (before["notices"], after["bookings"][0]["used"]) == ([], 2)
    assert after["notices"] == [
        "your booking of 2 RTX A6000 is in use by lab/first, lab/second; what you start now runs on what is free"
    ]


async def test_when_a_gpu_is_free_again_is_the_end_of_the_booking_that_covers_its_pods(seen: Seen) -> None:
    inventory = ClusterInventory(seen.replica)
    assert (inventory.unheld(), inventory.next_unheld()) == ({A6000: 2}, {})

    await seen.book()
    await seen.runs("booked")
    assert (inventory.unheld(), inventory.next_unheld()) == ({A6000: 1}, {})

    await seen.runs("unbooked", OTHER)
    assert inventory.unheld() == {A6000: 0}
    assert inventory.next_unheld() == {A6000: seen.opened.clock.now + 5 * DAY}, "of the other nobody knows it"


async def test_people_who_may_not_read_the_cluster_see_their_own_pods(seen: Seen) -> None:
    await seen.book(user=OTHER)
    await seen.runs("theirs", OTHER)
    await seen.runs("first")
    await seen.pod("second")

    told = (await (await seen.opened.caller(MEMBER)).get("/api/v1/pods")).json["items"]

    assert [each["pod"] for each in told] == ["lab/first", "lab/second"]
    assert (told[0]["waits"], told[0]["why"]) == (False, "lab/first does not wait: it has GPU 1 of n1")
    assert (told[1]["waits"], told[1]["booking"]) == (True, "no booking; waits for a free GPU")
    assert "lab/theirs of bob@lab.org, booked until Sat 21 Nov 13:00 CET" in told[1]["held_by"][0]


async def test_without_a_cluster_no_pods_are_known(opened: Opened) -> None:
    answer = await (await opened.caller(MEMBER)).get("/api/v1/pods")
    assert (answer.status, answer.json["code"]) == (404, "no-cluster")


async def test_gpus_of_pods_that_no_booking_can_displace_cannot_be_booked(opened: Opened) -> None:
    async with a_cluster(opened, gpus=3) as seen:
        clock = Clock(opened.clock.now)
        inventory = ClusterInventory(seen.replica, clock.seconds)
        queries = replace(seen.opened.service.queries, inventory=inventory)
        ada = replace(await seen.opened.caller(MEMBER), app=booking_app(replace(seen.opened.service, queries=queries)))
        old = await seen.lab.pod("old", limits=WHOLE)
        await seen.replica.sees(old)
        assert await seen.replica.bind(old, "n1") is None
        await seen.runs("train")

        [told] = (await ada.get("/api/v1/models")).json["items"]
        assert (told["gpus"], told["free_now"], told["set_aside"]) == (2, 2, 1)
        assert told["why_set_aside"] == "1 of 3 is used by pods that no booking can displace"
        assert (await ada.book(days=2, gpus=3)).codes == ["capacity"]
        exempt = MergePatch({"metadata": {"annotations": {"carrel.dev/exempt": "true"}}})
        await seen.lab.client.patch(NAMESPACES, "lab", exempt)
        await eventually(lambda: seen.replica.watches.is_exempt("lab"), "the exemption")
        clock.now += timedelta(seconds=5)
        assert inventory.stock()[A6000].gpus == 1
        seen.replica.ledger.forget(old["metadata"]["uid"])
        assert inventory.stock()[A6000].gpus == 2
