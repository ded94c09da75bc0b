"""Which tier admission gives a pod, by Carrel's bookings or by another booking service's, and what comes with it."""

from dataclasses import replace

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects.options import WhenFull
from tests.kit.gpus import a_node
from tests.kit.reviews import (
    ALICE,
    DEVICES,
    EVENING,
    GPU,
    JOB_CONTROLLER,
    MODEL,
    NOON,
    BookedPeople,
    Json,
    ReviewedCluster,
    RunningPod,
    a_booking,
    a_pod,
    booked,
    full,
)

# --- tiers -----------------------------------------------------------------------------------------------------------


async def test_a_pod_that_a_booking_covers_is_booked_until_its_end() -> None:
    reviewed = await booked().create(a_pod(GPU))

    assert reviewed.annotations == {
        "carrel.dev/tier": "booked",
        "carrel.dev/user": ALICE,
        "terminate-at": "2026-11-16T20:00:00Z",
    }
    assert reviewed.object["spec"]["priorityClassName"] == "carrel-gpu"
    assert reviewed.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert reviewed.env() == DEVICES and reviewed.warnings == []


async def test_a_pod_without_a_booking_is_opportunistic_and_may_be_revoked_at_any_time() -> None:
    reviewed = await ReviewedCluster().create(a_pod(GPU))

    assert reviewed.annotations == {
        "carrel.dev/tier": "opportunistic",
        "carrel.dev/user": ALICE,
        "terminate-at": "1900-01-01T08:00:00Z",
    }
    assert reviewed.object["spec"]["priorityClassName"] == "carrel-gpu"
    assert reviewed.container()["resources"]["limits"] == GPU and reviewed.warnings == []


async def test_the_priority_number_of_another_class_is_removed() -> None:
    reviewed = await booked().create(a_pod(GPU, priorityClassName="mine", preemptionPolicy="PreemptLowerPriority"))

    assert "priority" not in reviewed.object["spec"] and "preemptionPolicy" not in reviewed.object["spec"]


async def test_a_priority_class_that_does_not_exist_is_not_set() -> None:
    reviewed = await replace(booked(), classes=()).create(a_pod(GPU))

    assert "priorityClassName" not in reviewed.object["spec"]


@pytest.mark.parametrize(
    ("limits", "named", "expected"),
    [
        pytest.param(GPU, {}, "nvidia", id="a GPU pod that names none"),
        pytest.param(GPU, {"runtimeClassName": "kata"}, "kata", id="a GPU pod whose author has chosen"),
        pytest.param({}, {}, None, id="a pod without a GPU"),
    ],
)
async def test_gpu_pods_get_the_runtime_class_by_which_they_see_their_gpu(
    limits: dict[str, str], named: dict[str, str], expected: str | None
) -> None:
    reviewed = await replace(booked(), runtime_class="nvidia").create(a_pod(limits, **named))

    assert reviewed.object["spec"].get("runtimeClassName") == expected


async def test_a_pod_that_goes_on_without_a_gpu_has_no_runtime_class_of_gpus() -> None:
    cluster = replace(full(), runtime_class="nvidia", options=AdmissionOptions(when_full=WhenFull.CPU))
    reviewed = await cluster.create(a_pod(GPU, runtimeClassName="nvidia-cdi"))

    assert "runtimeClassName" not in reviewed.object["spec"]


@pytest.mark.parametrize(
    ("cluster", "pod"),
    [
        pytest.param(booked(), a_pod(), id="without a GPU"),
        pytest.param(ReviewedCluster(namespace={"carrel.dev/exempt": "true"}), a_pod(GPU), id="in an exempt namespace"),
    ],
)
async def test_a_pod_without_a_tier_loses_the_priority_of_a_tier(cluster: ReviewedCluster, pod: Json) -> None:
    ours = {"priorityClassName": "carrel-gpu", "priority": 1000, "preemptionPolicy": "Never"}
    asked = {**pod, "spec": {**pod["spec"], **ours}}
    reviewed = await cluster.create(asked)

    assert reviewed.allowed and not reviewed.object["spec"].keys() & {
        "priorityClassName",
        "priority",
        "preemptionPolicy",
    }
    mine = await cluster.create({**pod, "spec": {**pod["spec"], "priorityClassName": "mine"}})
    assert mine.object["spec"]["priorityClassName"] == "mine"


async def test_nobody_gains_priority_by_a_number_of_their_own() -> None:
    spec = {"priorityClassName": "carrel-gpu", "priority": 1000}
    reviewed = await booked().create(a_pod(GPU, **spec))
    missing = await replace(booked(), classes=()).create(a_pod(GPU, **spec))

    assert reviewed.object["spec"]["priorityClassName"] == "carrel-gpu"
    assert "priorityClassName" not in missing.object["spec"] and "priority" not in missing.object["spec"]


async def test_a_booking_that_has_just_ended_does_not_count() -> None:
    cluster = ReviewedCluster(bookings=[a_booking(end=NOON)])

    assert (await cluster.create(a_pod(GPU))).annotations["carrel.dev/tier"] == "opportunistic"


async def test_the_model_of_the_booking_is_not_written_on_the_pod() -> None:
    mine = await booked().create(a_pod(GPU, annotations={"carrel.dev/gpu-model": MODEL}))

    assert mine.annotations["carrel.dev/tier"] == "booked" and mine.annotations["carrel.dev/gpu-model"] == MODEL
    assert "carrel.dev/gpu-model" not in (await booked().create(a_pod(GPU))).annotations


@pytest.mark.parametrize(
    ("cluster", "pod", "words"),
    [
        pytest.param(
            booked(running=[RunningPod("train-7", ALICE)]),
            a_pod(GPU),
            "is in use by lab/train-7",
            id="a pod that runs uses it",
        ),
        pytest.param(
            booked(running=[RunningPod("early", ALICE, gpus=())]),
            a_pod(GPU),
            "is in use by lab/early",
            id="an older pod waits for it",
        ),
        pytest.param(
            ReviewedCluster(
                bookings=[a_booking(gpus=6)],
                nodes=[a_node("n1", 7)],
                running=[RunningPod(f"p{i}", ALICE, gpus=(i,)) for i in range(6)],
            ),
            a_pod(GPU),
            "is in use by lab/p0, lab/p1, lab/p2, lab/p3, lab/p4 and 1 more",
            id="many pods use it",
        ),
        pytest.param(
            booked(), a_pod({"nvidia.com/gpu": "2"}), "is for fewer GPUs than this pod asks for (2 whole GPUs)", id="2"
        ),
        pytest.param(
            booked(),
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}),
            "is not for NVIDIA-H100",
            id="another model",
        ),
        pytest.param(
            ReviewedCluster(bookings=[a_booking(shareOf=4)]),
            a_pod(GPU),
            "is for a part of a GPU, and this pod asks for 1 whole GPU",
            id="a part was booked",
        ),
        pytest.param(
            booked(),
            a_pod(GPU, nodeSelector={"room": "other"}),
            "has no GPU now that this pod could have",
            id="the pod may not run where the GPU is",
        ),
    ],
)
async def test_a_pod_beyond_the_booking_is_opportunistic_and_is_told_why(
    cluster: ReviewedCluster, pod: Json, words: str
) -> None:
    reviewed = await cluster.create(pod)

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    (told,) = [warning for warning in reviewed.warnings if warning.startswith("your booking of ")]
    assert f"{words}; this pod runs on what is free" in told


async def test_two_halves_share_a_booked_gpu() -> None:
    half = a_pod(annotations={"gpu-fraction": "0.5"})
    one, two = (RunningPod(name, ALICE, gpus=(0,), mib=8138) for name in ("one", "two"))

    assert (await booked(running=[one]).create(half)).annotations["carrel.dev/tier"] == "booked"
    held = replace(one, gpus=(0,)), replace(two, gpus=(1,))
    assert (await booked(running=held).create(half)).annotations["carrel.dev/tier"] == "booked"
    assert (await booked(running=[replace(one, mib=16276)]).create(half)).annotations["carrel.dev/tier"] != "booked"


async def test_the_booking_of_a_group_covers_its_members() -> None:
    cluster = ReviewedCluster(bookings=[a_booking("", group="vision", members=["Bob@lab.example", ALICE])])

    assert (await cluster.create(a_pod(GPU), "bob@lab.example")).annotations["carrel.dev/tier"] == "booked"
    assert (await cluster.create(a_pod(GPU), "eve@lab.example")).annotations["carrel.dev/tier"] == "opportunistic"


async def test_a_claim_counts_as_it_is_or_as_one_gpu_while_it_does_not_exist() -> None:
    claim = {"metadata": {"name": "c", "namespace": "lab"}, "spec": {"devices": {"count": 2}}}
    pod = a_pod(annotations={"gpu.scheduling/claim": "c"})

    assert (await booked(claims=[claim]).create(pod)).annotations["carrel.dev/tier"] == "opportunistic"
    assert (await booked().create(pod)).annotations["carrel.dev/tier"] == "booked"


async def test_a_booking_object_that_cannot_be_read_entitles_to_nothing() -> None:
    cluster = ReviewedCluster(bookings=[a_booking(gpus=0)])

    assert (await cluster.create(a_pod(GPU))).annotations["carrel.dev/tier"] == "opportunistic"


# --- another booking service -----------------------------------------------------------------------------------------


async def test_another_booking_service_is_asked_about_people_of_whom_the_cluster_knows_no_booking() -> None:
    service = BookedPeople({ALICE: EVENING})
    reviewed = await ReviewedCluster(booking_lookup=service).create(a_pod(GPU))
    assert reviewed.annotations["carrel.dev/tier"] == "booked"
    assert reviewed.annotations["terminate-at"] == "2026-11-16T20:00:00Z"
    assert service.asked == [(ALICE, "lab")]

    await booked(booking_lookup=service).create(a_pod(GPU))
    await ReviewedCluster(booking_lookup=service).create(a_pod(GPU), JOB_CONTROLLER)
    assert service.asked == [(ALICE, "lab")]


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}), "is not for NVIDIA-H100"),
        (a_pod({"nvidia.com/gpu": "2"}), "is for fewer GPUs"),
    ],
    ids=["another model", "more GPUs"],
)
async def test_the_booking_of_another_service_is_worth_one_gpu_of_its_model(pod: Json, words: str) -> None:
    reviewed = await ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING})).create(pod)

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert f"your booking of 1 {MODEL} {words}" in reviewed.warnings[0]


async def test_if_the_other_booking_service_is_down_a_pod_is_opportunistic_with_a_warning() -> None:
    silent = ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING}, silence="refused"))
    reviewed = await silent.create(a_pod(GPU))

    assert reviewed.allowed and reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert reviewed.warnings == ["the booking service does not answer; decided as if no booking were active"]
    assert reviewed.container()["resources"]["limits"] == GPU


async def test_an_answer_of_the_other_booking_service_that_cannot_be_used_is_not_called_silence() -> None:
    odd = ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING}, silence="no JSON", was_answered=True))
    reviewed = await odd.create(a_pod(GPU))

    assert reviewed.warnings == [
        "the booking service answers in a form that Carrel cannot use; decided as if no booking were active"
    ]
