"""Pods that are made for one booking, which may start later: `carrel.dev/booking`."""

from datetime import timedelta
from typing import Any

import pytest

from tests.kit.gpus import a_node
from tests.kit.reviews import ALICE, GPU, JOB_CONTROLLER, NOON, Json, ReviewedCluster, a_booking, a_pod

BOB = "bob@lab.example"
TOMORROW = NOON + timedelta(days=1)
NEXT_WEEK = NOON + timedelta(days=7)


def planned(**spec: Any) -> Json:
    """Alice's booking of tomorrow."""
    return a_booking(**{"start": TOMORROW, "end": NEXT_WEEK, "name": "b2", **spec})


def for_booking(booking: str, limits: Json = GPU, **changes: Any) -> Json:
    return a_pod(limits, annotations={"carrel.dev/booking": booking}, **changes)


@pytest.mark.parametrize("wanted", ["b2", "next"])
async def test_a_pod_for_a_booking_that_starts_later_is_held_back_and_told_until_when(wanted: str) -> None:
    cluster = ReviewedCluster(bookings=[a_booking(), planned(), planned(start=TOMORROW + timedelta(1), name="b3")])
    reviewed = await cluster.create(for_booking(wanted))

    assert reviewed.annotations == {
        "carrel.dev/booking": "b2",
        "carrel.dev/waits-until": "2026-11-17T12:00:00Z",
        "carrel.dev/tier": "opportunistic",
        "carrel.dev/user": ALICE,
        "terminate-at": "1900-01-01T08:00:00Z",
    }
    assert reviewed.object["spec"]["schedulingGates"] == [{"name": "carrel.dev/booking"}]
    assert reviewed.warnings == [
        "waits for your booking of 1 NVIDIA-RTX-A6000, which starts Tue 17 Nov 12:00 UTC",
    ]
    assert (await cluster.create(reviewed.object)).patch == [], "who asks again gets the same answer"


async def test_gates_of_others_stay_beside_carrels_own() -> None:
    gates = [{"name": "carrel.dev/booking"}, {"name": "a.example/quota"}]
    cluster = ReviewedCluster(bookings=[planned()])
    reviewed = await cluster.create(for_booking("next", schedulingGates=gates))

    assert reviewed.object["spec"]["schedulingGates"] == [{"name": "a.example/quota"}, {"name": "carrel.dev/booking"}]
    assert (await cluster.create(reviewed.object)).patch == []


async def test_a_pod_for_a_booking_that_runs_is_not_held_back() -> None:
    reviewed = await ReviewedCluster(bookings=[a_booking()]).create(for_booking("b1"))

    assert "schedulingGates" not in reviewed.object["spec"] and "carrel.dev/waits-until" not in reviewed.annotations
    assert reviewed.annotations["carrel.dev/tier"] == "booked"


async def test_the_next_booking_may_be_that_of_a_group() -> None:
    cluster = ReviewedCluster(bookings=[planned(user="", group="vision", members=[ALICE])])
    reviewed = await cluster.create(for_booking("next"))

    assert reviewed.annotations["carrel.dev/booking"] == "b2"
    assert "the booking of 1 NVIDIA-RTX-A6000 for vision" in reviewed.warnings[0]


@pytest.mark.parametrize(
    ("booking", "pod", "why"),
    [
        pytest.param(
            planned(), for_booking("b9"), "alice@lab.example has no such booking; `carrel list`", id="unknown"
        ),
        pytest.param(planned(user=BOB), for_booking("b2"), "alice@lab.example has no such booking", id="Bob's"),
        pytest.param(
            planned(user="", group="vision", members=[BOB]),
            for_booking("b2"),
            "alice@lab.example has no such booking",
            id="of a group that she is not in",
        ),
        pytest.param(planned(), for_booking(""), "has no such booking", id="no name"),
        pytest.param(planned(user=BOB), for_booking("next"), "has no booking that starts later", id="Bob's is next"),
        pytest.param(a_booking(), for_booking("next"), "has no booking that starts later", id="hers runs already"),
        pytest.param(a_booking(end=NOON), for_booking("b1"), "ended at Mon 16 Nov 12:00 UTC", id="it has ended"),
        pytest.param(planned(namespace="other"), for_booking("b2"), "is for namespace other", id="another namespace"),
        pytest.param(
            planned(model="NVIDIA-H100"),
            for_booking("b2", nodeSelector={"nvidia.com/gpu.product": "NVIDIA-RTX-A6000"}),
            "your booking of 1 NVIDIA-H100 is not for NVIDIA-RTX-A6000",
            id="another model",
        ),
        pytest.param(
            planned(gpus=2), for_booking("next", {"nvidia.com/gpu": "3"}), "is for fewer GPUs than", id="more GPUs"
        ),
        pytest.param(planned(shareOf=2), for_booking("b2"), "is for a part of a GPU", id="a whole GPU, of a part"),
        pytest.param(
            planned(shareOf=2),
            a_pod(annotations={"carrel.dev/booking": "b2", "carrel.dev/gpu-memory-mib": "8139"}),
            "is for GPUs with less memory than this pod asks for (8,139 MiB on one GPU)",
            id="more memory than the part has",
        ),
    ],
)
async def test_a_booking_that_can_never_cover_the_pod_is_refused_with_the_reason(
    booking: Json, pod: Json, why: str
) -> None:
    reviewed = await ReviewedCluster(bookings=[booking], nodes=[a_node("n1", 3)]).create(pod)

    assert not reviewed.allowed and reviewed.code == 422
    assert why in reviewed.message and "without carrel.dev/booking the pod runs on what is free" in reviewed.message


async def test_nobody_learns_whether_a_booking_of_somebody_else_exists() -> None:
    hidden = await ReviewedCluster(bookings=[planned(user=BOB)]).create(for_booking("b2"))
    unknown = await ReviewedCluster().create(for_booking("b2"))

    assert hidden.message == unknown.message


async def test_a_pod_without_an_owner_or_in_an_exempt_namespace_has_no_booking() -> None:
    nobodys = await ReviewedCluster(bookings=[planned()]).create(for_booking("b2"), JOB_CONTROLLER)
    assert not nobodys.allowed and "Carrel cannot tell whose pod it is" in nobodys.message

    exempt = ReviewedCluster(bookings=[planned()], namespace={"carrel.dev/exempt": "true"})
    reviewed = await exempt.create(for_booking("b2"))
    assert not reviewed.allowed and "namespace lab is exempt from bookings" in reviewed.message


@pytest.mark.parametrize("limits", [GPU, {}], ids=["a GPU pod", "another pod"])
async def test_only_carrel_gives_a_pod_its_gate(limits: Json) -> None:
    cluster = ReviewedCluster(bookings=[a_booking()])
    gates = [{"name": "carrel.dev/booking"}, {"name": "a.example/quota"}]
    reviewed = await cluster.create(a_pod(limits, schedulingGates=gates))
    alone = await cluster.create(a_pod(limits, schedulingGates=gates[:1]))

    assert reviewed.object["spec"]["schedulingGates"] == [{"name": "a.example/quota"}]
    assert "schedulingGates" not in alone.object["spec"]
    assert alone.warnings == ["the scheduling gate carrel.dev/booking was removed: only Carrel gives it to a pod"]
    assert (await cluster.create(alone.object)).patch == []


async def test_a_pod_that_asks_for_no_gpu_is_told_that_it_needs_no_booking() -> None:
    reviewed = await ReviewedCluster(bookings=[planned()]).create(for_booking("next", {}))

    assert reviewed.allowed and reviewed.patch == []
    assert reviewed.warnings == ["carrel.dev/booking has no effect: this pod asks for no GPU"]
