"""GPU pods end when their booking does: never before, and warned in time."""

from datetime import timedelta
from typing import Any

import pytest

from carrel.bookings.client.interface import NoAnswer
from carrel.bookings.client.status import BookingStatus
from carrel.kubernetes.cluster import MergePatch, Selection
from carrel.kubernetes.objects.resources import EVENTS, PODS
from tests.kit.gpus import A6000, a_node
from tests.kit.lab import NOON, Lab, a_lab
from tests.kit.tiers import BOOKED, WHOLE, Terminator, an_opportunist, catch_up, pods_of, settle

LAB = [a_node("n1", cards=1)]


def ends(text: str) -> dict[str, str]:
    return {**BOOKED, "terminate-at": text}


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
async def test_a_pod_is_ended_when_its_time_has_come_and_not_a_moment_before(text: str) -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        pod = await an_opportunist(lab, carrel, "train", annotations=ends(text))
        terminator = Terminator(carrel)
        lab.clock.now = NOON + timedelta(minutes=30) - timedelta(microseconds=1)
        await settle(lab, terminator)
        assert not await is_over(lab, pod["metadata"]["uid"])

        lab.clock.now = NOON + timedelta(minutes=30)
        await settle(lab, terminator)

        successor = (await pods_of(lab))["train"]
        assert successor.metadata.uid != pod["metadata"]["uid"]
        assert '"why":"expired"' in successor.metadata.annotations["carrel.dev/handed-over"]
        assert "terminate-at" not in successor.metadata.annotations
        assert await lab.held() == {}


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"limits": WHOLE, "annotations": {"terminate-at": "1900-01-01T08:00:00Z"}}, id="MAIA's mark"),
        pytest.param({"limits": WHOLE, "annotations": ends("2026-11-16T11:00:00")}, id="an end without an offset"),
        pytest.param({"limits": WHOLE, "annotations": BOOKED}, id="no end at all"),
        pytest.param({"annotations": ends("2026-11-16T11:00:00Z")}, id="no GPU"),
    ],
)
async def test_no_other_pod_is_ended(pod: dict[str, Any]) -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        there = await lab.pod("train", **pod)
        await carrel.sees(there)

        await settle(lab, Terminator(carrel))

        assert not await is_over(lab, there["metadata"]["uid"])


@pytest.mark.parametrize(
    "asks",
    [
        {"limits": {"nvidia.com/gpu": "1"}},
        {"limits": {"aliyun.com/gpu-mem": "8138"}},
        {"note": {"gpu-fraction": "0.5"}},
        {"note": {"gpu.scheduling/claim": "gone"}},
        {"note": {"carrel.dev/gpu-cards": "1"}},
    ],
    ids=["nvidia", "gpushare", "KAI", "a claim", "carrel"],
)
async def test_whatever_the_dialect_and_also_while_it_waits(asks: dict[str, dict[str, str]]) -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        notes = {**ends("2026-11-16T11:59:59Z"), **asks.get("note", {})}
        pod = await lab.pod("train", limits=asks.get("limits", {}), annotations=notes)
        await carrel.sees(pod)

        await settle(lab, Terminator(carrel))

        assert await is_over(lab, pod["metadata"]["uid"])
        again = (await pods_of(lab))["train"]
        assert again.metadata.annotations.keys() == {"carrel.dev/handed-over"}
        assert not again.spec.containers[0].resources.limits


async def test_a_booking_that_was_extended_a_moment_ago_goes_on() -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        pod = await an_opportunist(lab, carrel, "train", annotations=ends("2026-11-16T12:00:00Z"))
        terminator = Terminator(carrel)
        await catch_up(lab, carrel)
        (over,) = terminator.expiry.over()
        longer = {"metadata": {"annotations": {"terminate-at": "2026-11-20T12:00:00Z"}}}
        await lab.client.patch(PODS, "train", MergePatch(longer), "lab")

        assert await terminator.expiry.end(over) == ""

        await settle(lab, terminator)
        assert not await is_over(lab, pod["metadata"]["uid"])


class BookingClerk:
    """Says of everybody the same, or nothing at all."""

    def __init__(self, verdict: BookingStatus | None) -> None:
        self._verdict = verdict
        self.asked: list[tuple[str, str]] = []

    async def status(self, user: str, namespace: str) -> BookingStatus:
        self.asked.append((user, namespace))
        if self._verdict is None:
            raise NoAnswer("the booking service is down")
        return self._verdict

    async def free(self) -> dict[str, int]:
        return {}


LATER = NOON + timedelta(days=3)


@pytest.mark.parametrize(
    ("verdict", "goes_on"),
    [
        pytest.param(BookingStatus(LATER), True, id="it was extended"),
        pytest.param(BookingStatus(LATER, "NVIDIA-RTX-A6000"), True, id="it was extended, for the same model"),
        pytest.param(BookingStatus(LATER, "NVIDIA-A100-SXM4-80GB"), False, id="another model is booked"),
        pytest.param(BookingStatus(NOON), False, id="it ends as the pod was told"),
        pytest.param(BookingStatus(), False, id="no booking is active"),
        pytest.param(None, False, id="the booking service is silent"),
    ],
)
async def test_the_booking_service_is_asked_before_a_pod_is_ended(verdict: BookingStatus | None, goes_on: bool) -> None:
    notes = {**ends("2026-11-16T12:00:00Z"), "carrel.dev/user": "ada@lab.org", "carrel.dev/gpu-model": A6000}
    clerk = BookingClerk(verdict)
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        pod = await an_opportunist(lab, carrel, "train", annotations=notes)

        await settle(lab, Terminator(carrel, bookings=clerk))

        assert await is_over(lab, pod["metadata"]["uid"]) != goes_on
        assert ("ada@lab.org", "lab") in clerk.asked
        if goes_on:
            assert (await lab.annotations("train"))["terminate-at"] == "2026-11-19T12:00:00Z"
            assert await warnings(lab) == []


async def test_where_the_house_says_so_a_pod_is_only_ended() -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        await an_opportunist(lab, carrel, "train", annotations=ends("2026-11-16T12:00:00Z"))

        await settle(lab, Terminator(carrel, go_on=False))

        assert await pods_of(lab) == {}
        assert await lab.held() == {}


# --- warnings ---------------------------------------------------------------------------------------------------------


async def warnings(lab: Lab) -> list[str]:
    told = (await lab.client.list(EVENTS, Selection("lab"))).items
    return [event.message for event in told if event.reason in ("BookingEnds", "TerminateAtUnreadable")]


async def test_a_pod_is_warned_a_day_an_hour_and_a_quarter_before_once_each() -> None:
    async with a_lab(LAB) as lab:
        async with lab.replica() as carrel:
            await an_opportunist(lab, carrel, "train", annotations=ends("2026-11-18T12:00:00Z"))
        told: list[int] = []
        for before in (timedelta(hours=30), timedelta(hours=24), timedelta(hours=2), timedelta(hours=1)):
            lab.clock.now = NOON + timedelta(days=2) - before
            for _ in range(2):  # the second time it is another controller, and Kubernetes has forgotten the Events
                async with lab.replica() as carrel:
                    await settle(lab, Terminator(carrel))
            told.append(len(await warnings(lab)))
        lab.clock.now = NOON + timedelta(days=2) - timedelta(minutes=15)
        async with lab.replica() as carrel:
            await settle(lab, Terminator(carrel))

        assert told == [0, 1, 1, 2]
        assert sorted(await warnings(lab)) == [
            f"its booking ends at 2026-11-18T12:00:00Z, in less than {lead}; then it is created again without a GPU"
            for lead in ("15m", "1h", "24h")
        ]


async def test_a_warning_is_not_repeated_when_kubernetes_has_forgotten_the_event() -> None:
    async with a_lab(LAB) as lab:
        async with lab.replica() as carrel:
            await an_opportunist(lab, carrel, "train", annotations=ends("2026-11-17T11:00:00Z"))
            await settle(lab, Terminator(carrel))
        (event,) = (await lab.client.list(EVENTS, Selection("lab"))).items
        await lab.client.delete(EVENTS, event.metadata.name, "lab")

        async with lab.replica() as carrel:
            await settle(lab, Terminator(carrel))

        assert await warnings(lab) == []


async def test_a_pod_that_begins_late_is_told_only_what_is_true_then() -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        await an_opportunist(lab, carrel, "train", annotations=ends("2026-11-16T12:30:00Z"))

        await settle(lab, Terminator(carrel))

        (told,) = await warnings(lab)
        assert "in less than 1h" in told


async def test_an_extended_booking_is_warned_of_anew() -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        await an_opportunist(lab, carrel, "train", annotations=ends("2026-11-16T12:10:00Z"))
        await settle(lab, Terminator(carrel))
        longer = {"metadata": {"annotations": {"terminate-at": "2026-11-17T12:00:00Z"}}}
        await lab.client.patch(PODS, "train", MergePatch(longer), "lab")

        await settle(lab, Terminator(carrel))

        assert len(await warnings(lab)) == 2


async def test_an_end_that_cannot_be_read_is_complained_about() -> None:
    async with a_lab(LAB) as lab, lab.replica() as carrel:
        await an_opportunist(lab, carrel, "train", annotations=ends("tomorrow"))

        await settle(lab, Terminator(carrel))

        (told,) = await warnings(lab)
        assert "terminate-at" in told and "'tomorrow'" in told
