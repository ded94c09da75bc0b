"""Whatever Carrel writes on pods, in Events and in warnings has times in the lab's zone, with its name."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects.options import WhenFull
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.resources import EVENTS
from carrel.parsing.time import local
from tests.kit.gpus import a_node
from tests.kit.lab import NOON, Lab, a_lab
from tests.kit.reviews import ALICE, GPU, ReviewedCluster, RunningPod, a_booking, a_pod
from tests.kit.tiers import (
    OF_A_HUB,
    TierController,
    an_opportunistic_pod,
    an_unschedulable_booked_pod,
    catch_up,
    pods_of,
    settle,
)

STOCKHOLM = ZoneInfo("Europe/Stockholm")
IN_UTC = re.compile(r"UTC|\d{4}-\d\d-\d\dT|\d\dZ\b")


async def messages(lab: Lab) -> list[str]:
    return [each.message for each in (await lab.client.list(EVENTS, Selection("lab"))).items]


@pytest.mark.parametrize(
    ("instant", "written"),
    [
        pytest.param("2026-10-24T22:00", "Sun 25 Oct 00:00 CEST", id="the day of 25 hours begins"),
        pytest.param("2026-10-25T00:30", "Sun 25 Oct 02:30 CEST", id="half past two for the first time"),
        pytest.param("2026-10-25T01:30", "Sun 25 Oct 02:30 CET", id="half past two once more: only the name tells"),
        pytest.param("2026-10-25T23:00", "Mon 26 Oct 00:00 CET", id="it ends"),
        pytest.param("2026-03-29T00:59", "Sun 29 Mar 01:59 CET", id="the last minute of winter"),
        pytest.param("2026-03-29T01:00", "Sun 29 Mar 03:00 CEST", id="there is no half past two"),
    ],
)
def test_a_time_has_the_name_of_its_zone_so_that_an_hour_that_is_there_twice_is_told_apart(
    instant: str, written: str
) -> None:
    assert local(datetime.fromisoformat(instant).replace(tzinfo=UTC), STOCKHOLM) == written


async def test_a_person_is_told_the_end_of_a_booking_and_the_loss_of_a_gpu_in_local_time() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica(zone=STOCKHOLM) as replica:
        await an_opportunistic_pod(lab, replica, "late", annotations={"terminate-at": "2026-11-16T12:20:00Z"})
        await an_opportunistic_pod(lab, replica, "notebook", labels=OF_A_HUB)
        await an_unschedulable_booked_pod(lab, "urgent")
        await settle(lab, TierController(replica))
        notices = [pod.metadata.annotations.get("carrel.dev/notice", "") for pod in (await pods_of(lab)).values()]
        lab.clock.now = NOON + timedelta(minutes=30)
        await catch_up(lab, replica)
        await settle(lab, TierController(replica))
        after = [note for pod in (await pods_of(lab)).values() for note in pod.metadata.annotations.values()]
        told = await messages(lab)

    assert any("this pod lost its GPU at Mon 16 Nov 13:00 CET" in each for each in notices), notices
    assert any("the booking of this pod ends at Mon 16 Nov 13:20 CET" in each for each in told), told
    assert any("CET" in each for each in after if "runs without a GPU" in each), after
    assert [each for each in (*told, *notices) if IN_UTC.search(each)] == []


async def test_warnings_of_the_webhook_are_in_local_time() -> None:
    full = ReviewedCluster(
        options=AdmissionOptions(when_full=WhenFull.CPU),
        nodes=[a_node("n1", 1)],
        running=[RunningPod("booked", "bob@lab.example")],
        bookings=[a_booking("bob@lab.example", end=NOON + timedelta(hours=2))],
        zone=STOCKHOLM,
    )
    on_cpu = await full.create(a_pod(GPU))
    later = replace(full, bookings=[a_booking(ALICE, start=NOON + timedelta(hours=1), end=NOON + timedelta(hours=3))])
    held = await later.create(a_pod(GPU, annotations={"carrel.dev/booking": "next"}))

    assert "on Mon 16 Nov 13:00 CET" in on_cpu.warnings[-1], on_cpu.warnings
    assert "which starts Mon 16 Nov 14:00 CET" in held.warnings[0], held.warnings
    assert [each for each in (*on_cpu.warnings, *held.warnings) if IN_UTC.search(each)] == []
