"""GPU pods end when their booking ends, never before, and with warnings in time."""

from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.kubernetes.cluster import MergePatch, Selection
from carrel.kubernetes.objects.resources import EVENTS, PODS
from carrel.ledger.tiers import AtEnd
from tests.kit.gpus import a_node
from tests.kit.lab import NOON, Lab, a_lab
from tests.kit.tiers import BOOKED, WHOLE, TierController, an_opportunistic_pod, catch_up, pods_of, settle

LAB = [a_node("n1", gpus=1)]


def ends(text: str) -> dict[str, str]:
    """As MAIA's own webhook writes it."""
    return {"terminate-at": text}


async def is_over(lab: Lab, uid: str) -> bool:
    return uid not in {pod.metadata.uid for pod in (await pods_of(lab)).values()}


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-16T12:30:00Z",
        "2026-11-16T13:30:00+01:00",
        "2026-11-16T04:30:00-08:00",
        "2026-11-16t12:30:00.000z",
        "2026-11-16T18:15:00+05:45",
    ],
)
async def test_a_pod_is_ended_at_its_time_and_not_before(text: str) -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        pod = await an_opportunistic_pod(lab, replica, "train", annotations=ends(text))
        controller = TierController(replica)
        lab.clock.now = NOON + timedelta(minutes=30) - timedelta(microseconds=1)
        await settle(lab, controller)
        assert not await is_over(lab, pod["metadata"]["uid"])

        lab.clock.now = NOON + timedelta(minutes=30)
        await settle(lab, controller)

        successor = (await pods_of(lab))["train"]
        assert successor.metadata.uid != pod["metadata"]["uid"]
        assert '"why":"expired"' in successor.metadata.annotations["carrel.dev/handed-over"]
        assert "terminate-at" not in successor.metadata.annotations
        assert await lab.held() == {}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"limits": WHOLE, "annotations": {"terminate-at": "1900-01-01T08:00:00Z"}}, id="MAIA's year 1900"),
        pytest.param({"limits": WHOLE, "annotations": ends("2026-11-16T11:00:00")}, id="an end without an offset"),
        pytest.param({"limits": WHOLE, "annotations": BOOKED}, id="no end"),
        pytest.param({"annotations": ends("2026-11-16T11:00:00Z")}, id="no GPU"),
    ],
)
async def test_pods_that_do_not_expire_are_not_ended(pod: dict[str, Any]) -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        there = await lab.pod("train", **pod)
        await replica.sees(there)

        await settle(lab, TierController(replica))

        assert not await is_over(lab, there["metadata"]["uid"])


@pytest.mark.parametrize(
    "asks",
    [
        {"limits": {"nvidia.com/gpu": "1"}},
        {"limits": {"aliyun.com/gpu-mem": "8138"}},
        {"note": {"gpu-fraction": "0.5"}},
        {"note": {"gpu.scheduling/claim": "gone"}},
        {"note": {"carrel.dev/gpu-count": "1"}},
    ],
    ids=["nvidia", "gpushare", "KAI", "a claim", "carrel"],
)
async def test_pods_of_every_dialect_expire_also_while_they_wait(asks: dict[str, dict[str, str]]) -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        notes = {**ends("2026-11-16T11:59:59Z"), **asks.get("note", {})}
        pod = await lab.pod("train", limits=asks.get("limits", {}), annotations=notes)
        await replica.sees(pod)

        await settle(lab, TierController(replica))

        assert await is_over(lab, pod["metadata"]["uid"])
        again = (await pods_of(lab))["train"]
        assert again.metadata.annotations.keys() == SAID_BY_SUCCESSOR
        assert not again.spec.containers[0].resources.limits


async def test_a_pod_whose_booking_was_just_extended_is_not_ended() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        pod = await an_opportunistic_pod(lab, replica, "train", annotations=ends("2026-11-16T12:00:00Z"))
        controller = TierController(replica)
        await catch_up(lab, replica)
        (over,) = controller.parts.expiry.expired()
        longer = {"metadata": {"annotations": {"terminate-at": "2026-11-20T12:00:00Z"}}}
        await lab.client.patch(PODS, "train", MergePatch(longer), "lab")

        assert await controller.parts.expiry.end(over) == ""

        await settle(lab, controller)
        assert not await is_over(lab, pod["metadata"]["uid"])


# --- the end of a booking ---------------------------------------------------------------------------------------------

SAID_BY_SUCCESSOR = {
    "carrel.dev/handed-over",
    "carrel.dev/notice",
    "carrel.dev/runs-without-gpu",
    "carrel.dev/asked-for",
}
ADA = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}
HALF_PAST = NOON + timedelta(minutes=30)


async def change_booking(lab: Lab, name: str = "booking-ada", **spec: Any) -> None:
    await lab.client.patch(BOOKINGS, name, MergePatch({"spec": spec}))


async def test_a_covered_pod_is_ended_when_its_booking_ends_and_not_before() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(end=HALF_PAST)
        pod = await an_opportunistic_pod(lab, replica, "train", annotations=ADA)
        controller = TierController(replica)
        await settle(lab, controller)
        assert (await lab.annotations("train"))["terminate-at"] == "2026-11-16T12:30:00Z"
        lab.clock.now = HALF_PAST - timedelta(microseconds=1)
        await settle(lab, controller)
        assert not await is_over(lab, pod["metadata"]["uid"])

        lab.clock.now = HALF_PAST
        await settle(lab, controller)

        assert await is_over(lab, pod["metadata"]["uid"])
        assert await lab.held() == {}


async def test_a_booking_that_was_extended_a_moment_ago_does_not_end_its_pod() -> None:
    """The controller's cache does not show the extension yet."""
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(end=HALF_PAST)
        pod = await an_opportunistic_pod(lab, replica, "train", annotations=ADA)
        controller = TierController(replica)
        await settle(lab, controller)
        lab.clock.now = HALF_PAST
        (over,) = controller.parts.expiry.expired()
        await change_booking(lab, end="2026-11-19T12:00:00Z")

        assert await controller.parts.expiry.end(over) == ""

        await settle(lab, controller)
        assert not await is_over(lab, pod["metadata"]["uid"])
        assert (await lab.annotations("train"))["terminate-at"] == "2026-11-19T12:00:00Z"


async def test_if_another_booking_covers_the_pod_its_end_moves_there() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(end=HALF_PAST)
        pod = await an_opportunistic_pod(lab, replica, "train", annotations=ADA)
        controller = TierController(replica)
        await settle(lab, controller)
        await lab.book(end=NOON + timedelta(days=3), name="second")
        await settle(lab, controller)
        assert (await lab.annotations("train"))["terminate-at"] == "2026-11-16T12:30:00Z", "it stays with its booking"

        lab.clock.now = HALF_PAST
        await settle(lab, controller)

        assert not await is_over(lab, pod["metadata"]["uid"])
        assert (await lab.annotations("train"))["terminate-at"] == "2026-11-19T12:00:00Z"


async def test_if_the_setting_says_so_a_pod_stays_beyond_its_booking_without_its_protection() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(end=HALF_PAST)
        pod = await an_opportunistic_pod(lab, replica, "train", annotations=ADA)
        controller = TierController(replica, at_end=AtEnd.KEEP)
        await settle(lab, controller)
        assert (await lab.annotations("train"))["carrel.dev/tier"] == "booked"

        lab.clock.now = HALF_PAST
        await settle(lab, controller)

        assert not await is_over(lab, pod["metadata"]["uid"])
        assert (await lab.annotations("train"))["carrel.dev/tier"] == "opportunistic"
        assert await warnings(lab) == [], "it does not end"


@pytest.mark.parametrize("is_seen", [True, False], ids=["at once", "when its end has passed"])
async def test_after_a_cancellation_a_pod_stays_as_an_opportunistic_one(is_seen: bool) -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(end=HALF_PAST)
        pod = await an_opportunistic_pod(lab, replica, "train", annotations=ADA)
        controller = TierController(replica)
        await settle(lab, controller)
        await lab.client.delete(BOOKINGS, "booking-ada")
        if not is_seen:
            lab.clock.now = HALF_PAST + timedelta(minutes=1)

        await settle(lab, controller)

        assert not await is_over(lab, pod["metadata"]["uid"])
        notes = await lab.annotations("train")
        assert (notes["carrel.dev/tier"], notes["terminate-at"]) == ("opportunistic", "1900-01-01T08:00:00Z")


async def test_a_pod_whose_annotations_are_full_is_no_longer_booked_after_a_cancellation() -> None:
    """`opportunistic` is longer than `booked` and does not fit: then MAIA's mark alone says it."""
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(end=HALF_PAST)
        await an_opportunistic_pod(lab, replica, "train", annotations=ADA)
        controller = TierController(replica)
        await settle(lab, controller)
        used = sum(len(key) + len(value) for key, value in (await lab.annotations("train")).items())
        full = {"filler": "x" * (256 * 1024 - used - len("filler"))}
        await lab.client.patch(PODS, "train", MergePatch({"metadata": {"annotations": full}}), "lab")
        await lab.client.delete(BOOKINGS, "booking-ada")

        await settle(lab, controller)

        notes = await lab.annotations("train")
        assert (notes.get("carrel.dev/tier"), notes["terminate-at"]) == (None, "1900-01-01T08:00:00Z")


async def test_if_the_setting_says_so_a_pod_is_ended_without_a_successor() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train", annotations=ends("2026-11-16T12:00:00Z"))

        await settle(lab, TierController(replica, at_end=AtEnd.END))

        assert await pods_of(lab) == {}
        assert await lab.held() == {}


# --- warnings ---------------------------------------------------------------------------------------------------------


async def warnings(lab: Lab) -> list[str]:
    told = (await lab.client.list(EVENTS, Selection("lab"))).items
    return [event.message for event in told if event.reason in ("BookingEnds", "TerminateAtUnreadable")]


async def test_a_pod_is_warned_once_24_hours_1_hour_and_15_minutes_before() -> None:
    async with a_lab(LAB) as lab:
        async with lab.replica() as replica:
            await an_opportunistic_pod(lab, replica, "train", annotations=ends("2026-11-18T12:00:00Z"))
        told: list[int] = []
        for before in (timedelta(hours=30), timedelta(hours=24), timedelta(hours=2), timedelta(hours=1)):
            lab.clock.now = NOON + timedelta(days=2) - before
            for _ in range(2):  # the second time it is another controller, and Kubernetes has deleted the Events
                async with lab.replica() as replica:
                    await settle(lab, TierController(replica))
            told.append(len(await warnings(lab)))
        lab.clock.now = NOON + timedelta(days=2) - timedelta(minutes=15)
        async with lab.replica() as replica:
            await settle(lab, TierController(replica))

        assert told == [0, 1, 1, 2]
        assert sorted(await warnings(lab)) == [
            f"the booking of this pod ends at Wed 18 Nov 12:00 UTC, in less than {lead};"
            " then the pod is created again without a GPU"
            for lead in ("15m", "1h", "24h")
        ]


async def test_a_warning_comes_only_if_the_booking_is_longer_than_the_time_before_its_end() -> None:
    """Who has just booked a day is not greeted with the end of it; an extension makes it longer."""
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(start=NOON, end=NOON + timedelta(days=1), name="b1")
        await an_opportunistic_pod(lab, replica, "train", annotations=ADA)
        await settle(lab, TierController(replica))
        assert [each for each in await warnings(lab) if "less than" in each] == []

        extended = {"spec": {"end": "2026-11-17T13:00:00Z"}}
        await lab.client.patch(BOOKINGS, "b1", MergePatch(extended))
        lab.clock.now += timedelta(hours=2)
        await settle(lab, TierController(replica))
        assert [each.split(";")[0] for each in await warnings(lab) if "less than" in each] == [
            "the booking of this pod ends at Tue 17 Nov 13:00 UTC, in less than 24h"
        ]

        shortened = {"spec": {"end": "2026-11-16T14:30:00Z"}}
        await lab.client.patch(BOOKINGS, "b1", MergePatch(shortened))
        await settle(lab, TierController(replica))
        assert len([each for each in await warnings(lab) if "in less than 1h" in each]) == 1


async def test_where_the_start_of_a_booking_is_not_known_every_warning_comes() -> None:
    """A booking service elsewhere says only when a booking ends."""
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await lab.book(start=NOON, end=NOON + timedelta(minutes=10), name="b1")
        source = {"metadata": {"labels": {"carrel.dev/source": "enquiry"}}}
        await lab.client.patch(BOOKINGS, "b1", MergePatch(source))
        await an_opportunistic_pod(lab, replica, "train", annotations=ADA)

        await settle(lab, TierController(replica))

        assert ["in less than 15m" in each for each in await warnings(lab)] == [True]


async def test_a_warning_is_not_repeated_after_kubernetes_has_deleted_the_event() -> None:
    async with a_lab(LAB) as lab:
        async with lab.replica() as replica:
            await an_opportunistic_pod(lab, replica, "train", annotations=ends("2026-11-17T11:00:00Z"))
            await settle(lab, TierController(replica))
        (event,) = (await lab.client.list(EVENTS, Selection("lab"))).items
        await lab.client.delete(EVENTS, event.metadata.name, "lab")

        async with lab.replica() as replica:
            await settle(lab, TierController(replica))

        assert await warnings(lab) == []


async def test_a_pod_that_starts_late_gets_only_the_current_warning() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train", annotations=ends("2026-11-16T12:30:00Z"))

        await settle(lab, TierController(replica))

        (told,) = await warnings(lab)
        assert "in less than 1h" in told


async def test_after_an_extension_the_warnings_come_again() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train", annotations=ends("2026-11-16T12:10:00Z"))
        await settle(lab, TierController(replica))
        longer = {"metadata": {"annotations": {"terminate-at": "2026-11-17T12:00:00Z"}}}
        await lab.client.patch(PODS, "train", MergePatch(longer), "lab")

        await settle(lab, TierController(replica))

        assert len(await warnings(lab)) == 2


async def test_an_end_that_cannot_be_read_causes_a_warning() -> None:
    async with a_lab(LAB) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train", annotations=ends("tomorrow"))

        await settle(lab, TierController(replica))

        (told,) = await warnings(lab)
        assert "terminate-at" in told and "'tomorrow'" in told
