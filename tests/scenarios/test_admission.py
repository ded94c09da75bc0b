"""What admission changes on a pod before it is created: tier, owner, refusals, protected keys, seal."""

from dataclasses import replace
from datetime import timedelta

import pytest

from carrel.admission.admission import AdmissionOptions
from carrel.dialects import protected_keys
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why
from carrel.dialects.registry import ALL
from carrel.dialects.seal import Seal
from tests.kit.forged import PROTECTED, PROTECTED_LABELS
from tests.kit.reviews import (
    ALICE,
    DEVICES,
    EVENING,
    GPU,
    JOB_CONTROLLER,
    MODEL,
    NOON,
    SPAWNER,
    BookedPeople,
    Json,
    ReviewedCluster,
    a_pod,
    booked,
    full,
    review,
)

# --- tiers -----------------------------------------------------------------------------------------------------------


async def test_a_pod_of_somebody_with_an_active_booking_is_booked_until_its_end() -> None:
    reviewed = await booked().create(a_pod(GPU))

    assert reviewed.annotations == {
        "carrel.dev/tier": "booked",
        "carrel.dev/user": ALICE,
        "terminate-at": "2026-11-16T20:00:00Z",
        "carrel.dev/gpu-model": MODEL,
    }
    assert reviewed.object["spec"]["priorityClassName"] == "carrel-booked"
    assert reviewed.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert reviewed.env() == DEVICES


async def test_a_pod_without_an_active_booking_is_opportunistic_and_may_be_revoked_at_any_time() -> None:
    reviewed = await ReviewedCluster().create(a_pod(GPU))

    assert reviewed.annotations == {
        "carrel.dev/tier": "opportunistic",
        "carrel.dev/user": ALICE,
        "terminate-at": "1900-01-01T08:00:00Z",
    }
    assert reviewed.object["spec"]["priorityClassName"] == "carrel-opportunistic"
    assert reviewed.container()["resources"]["limits"] == GPU


async def test_the_priority_number_of_another_class_is_removed() -> None:
    reviewed = await booked().create(a_pod(GPU, priorityClassName="mine", preemptionPolicy="PreemptLowerPriority"))

    assert "priority" not in reviewed.object["spec"] and "preemptionPolicy" not in reviewed.object["spec"]


async def test_a_priority_class_that_does_not_exist_is_not_set() -> None:
    reviewed = await replace(booked(), classes=()).create(a_pod(GPU))

    assert "priorityClassName" not in reviewed.object["spec"]


@pytest.mark.parametrize(
    ("pod", "user"),
    [(a_pod(), ALICE), (a_pod(GPU), JOB_CONTROLLER)],
    ids=["without a GPU", "without an owner"],
)
@pytest.mark.parametrize("name", ["carrel-booked", "carrel-opportunistic"])
async def test_a_pod_without_a_tier_loses_the_priority_of_a_tier(pod: Json, user: str, name: str) -> None:
    asked = {**pod, "spec": {**pod["spec"], "priorityClassName": name, "priority": 1000, "preemptionPolicy": "Never"}}
    reviewed = await booked().create(asked, user)

    assert reviewed.allowed and not reviewed.object["spec"].keys() & {
        "priorityClassName",
        "priority",
        "preemptionPolicy",
    }
    mine = await booked().create({**pod, "spec": {**pod["spec"], "priorityClassName": "mine"}}, user)
    assert mine.object["spec"]["priorityClassName"] == "mine"


async def test_a_booking_that_has_just_ended_does_not_count() -> None:
    cluster = ReviewedCluster(booking_lookup=BookedPeople({ALICE: NOON}))

    assert (await cluster.create(a_pod(GPU))).annotations["carrel.dev/tier"] == "opportunistic"


async def test_a_model_that_the_pod_names_itself_is_left_alone() -> None:
    reviewed = await booked().create(a_pod(GPU, annotations={"carrel.dev/gpu-model": MODEL}))

    assert reviewed.annotations["carrel.dev/tier"] == "booked"
    assert (await booked().create(a_pod(GPU, nodeSelector={"nvidia.com/gpu.product": MODEL}))).annotations.get(
        "carrel.dev/gpu-model"
    ) is None


async def test_a_booking_counts_only_for_its_model() -> None:
    reviewed = await booked().create(a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}))

    assert reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert f"the booking is for {MODEL}, not for NVIDIA-H100" in reviewed.warnings[0]


async def test_if_the_booking_service_is_down_a_pod_is_opportunistic_with_a_warning() -> None:
    reviewed = await ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING}, silence="refused")).create(
        a_pod(GPU)
    )

    assert reviewed.allowed and reviewed.annotations["carrel.dev/tier"] == "opportunistic"
    assert reviewed.warnings == ["the booking service does not answer; decided as if no booking were active"]
    assert reviewed.container()["resources"]["limits"] == GPU, "whether a GPU is free is not known, so the pod waits"


async def test_without_a_booking_service_pods_have_no_tier_but_see_their_gpus() -> None:
    reviewed = await ReviewedCluster(booking_lookup=None).create(a_pod(GPU))

    assert reviewed.annotations == {} and reviewed.env() == DEVICES


# --- no GPU free -----------------------------------------------------------------------------------------------------


async def test_an_opportunistic_pod_runs_without_a_gpu_when_no_gpu_is_free() -> None:
    two = [{"name": "main", "resources": {"limits": GPU, "requests": {**GPU, "cpu": "1"}}}, {"name": "log"}]
    reviewed = await full().create(a_pod(containers=two, initContainers=[{"name": "init", "env": []}]))

    assert reviewed.container()["resources"] == {"limits": {}, "requests": {"cpu": "1"}}
    assert [reviewed.env(name) for name in ("main", "log", "init")] == [{"NVIDIA_VISIBLE_DEVICES": "none"}] * 3
    assert "carrel.dev/tier" not in reviewed.annotations and "terminate-at" not in reviewed.annotations
    assert reviewed.warnings == ["runs without a GPU: no GPU is free, and no booking is active"]


@pytest.mark.parametrize(
    ("cluster", "pod"),
    [
        pytest.param(full(waits_when_full=True), a_pod(GPU), id="the setting says wait"),
        pytest.param(full(), a_pod({"aliyun.com/gpu-mem": "100"}), id="a part of a GPU may be free"),
        pytest.param(full(), a_pod(annotations={"gpu-fraction": "0.5"}), id="a fraction may be free"),
        pytest.param(full(), a_pod(annotations={"gpu.scheduling/claim": "c"}), id="the claim may not exist yet"),
        pytest.param(
            full(),
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "other"}),
            id="a model that the service does not count",
        ),
        pytest.param(ReviewedCluster(booking_lookup=BookedPeople(cards={})), a_pod(GPU), id="no counts at all"),
        pytest.param(
            ReviewedCluster(booking_lookup=BookedPeople(cards={MODEL: 1, "b": -3})), a_pod(GPU), id="one GPU is free"
        ),
        pytest.param(
            ReviewedCluster(booking_lookup=BookedPeople({ALICE: EVENING}, cards={MODEL: 0})),
            a_pod(GPU),
            id="it is booked",
        ),
        pytest.param(replace(full(), booking_lookup=None), a_pod(GPU), id="no booking service"),
    ],
)
async def test_a_pod_keeps_its_request(cluster: ReviewedCluster, pod: Json) -> None:
    reviewed = await cluster.create(pod)

    assert reviewed.allowed and reviewed.object["spec"]["schedulerName"] == "gpu-scheduler"


# --- the owner -------------------------------------------------------------------------------------------------------

JUPYTER = {"hub.jupyter.org/username": "bob-40lab-2eexample"}


@pytest.mark.parametrize(
    ("user", "pod", "who"),
    [
        pytest.param(SPAWNER, a_pod(GPU, labels=JUPYTER), "bob@lab.example", id="a spawner's label"),
        pytest.param(
            SPAWNER,
            a_pod(GPU, labels=JUPYTER, annotations={"hub.jupyter.org/username": "eve@lab.example"}),
            "eve@lab.example",
            id="a spawner's annotation wins over its label",
        ),
        pytest.param(ALICE, a_pod(GPU, labels=JUPYTER), ALICE, id="another user's label is ignored"),
        pytest.param(JOB_CONTROLLER, a_pod(GPU, labels=JUPYTER), "owner@lab.example", id="the namespace's owner"),
        pytest.param(SPAWNER, a_pod(GPU), "owner@lab.example", id="a spawner that names no user"),
        pytest.param(
            SPAWNER,
            a_pod(GPU, labels={"hub.jupyter.org/username": "-ff"}),
            "owner@lab.example",
            id="a spawner whose label cannot be read",
        ),
        pytest.param("oidc:carol", a_pod(GPU), "carol", id="without the prefix of the API server"),
    ],
)
async def test_whose_pod_it_is(user: str, pod: Json, who: str) -> None:
    cluster = ReviewedCluster(namespace_owners={"lab": "owner@lab.example"}, username_prefix="oidc:")

    assert (await cluster.create(pod, user)).annotations["carrel.dev/user"] == who


async def test_a_pod_without_an_owner_has_no_tier_but_sees_its_gpu() -> None:
    cluster = booked()
    reviewed = await cluster.create(a_pod(GPU), JOB_CONTROLLER)

    assert reviewed.annotations == {} and reviewed.env() == DEVICES
    assert cluster.booking_lookup is not None and not cluster.booking_lookup.asked


async def test_a_strict_cluster_refuses_only_gpu_pods_without_an_owner() -> None:
    cluster = ReviewedCluster(options=AdmissionOptions(strict=True))

    reviewed = await cluster.create(a_pod(GPU), JOB_CONTROLLER)
    assert (
        not reviewed.allowed and reviewed.message == "pod lab/train asks for a GPU, and Carrel cannot tell who owns it"
    )
    assert (await cluster.create(a_pod(), JOB_CONTROLLER)).allowed


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param(a_pod(GPU, nodeName="n1"), "names its node (n1); leave that to the scheduler", id="a node"),
        pytest.param(a_pod(GPU, schedulerName="mine"), "wants the scheduler 'mine'", id="another scheduler"),
        pytest.param(a_pod(GPU, annotations={"gpu-fraction": "0.5"}), "in 2 ways", id="two dialects"),
        pytest.param(a_pod(annotations={"gpu-fraction": "2"}), "a number between 0 and 1", id="too much of a GPU"),
        pytest.param(a_pod({"nvidia.com/gpu": "-1"}), "nvidia.com/gpu", id="a negative number"),
        pytest.param(a_pod({"nvidia.com/gpu": "0.5"}), "nvidia.com/gpu", id="half of an nvidia.com/gpu"),
        pytest.param(a_pod({"nvidia.com/gpu": "9223372036854775808"}), "nvidia.com/gpu", id="2^63 GPUs"),
        pytest.param(a_pod(annotations={"gpu.scheduling/claim": ""}), "GpuClaim", id="a claim without a name"),
        pytest.param(
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "a"}, nodeSelector={"nvidia.com/gpu.product": "b"}),
            "asks for two models",
            id="two models",
        ),
    ],
)
async def test_a_gpu_pod_that_cannot_be_placed_is_refused_with_the_reason(pod: Json, why: str) -> None:
    reviewed = await ReviewedCluster().create(pod)

    assert not reviewed.allowed and reviewed.code == 422
    assert why in reviewed.message


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "kai-scheduler", "gpu-scheduler"])
async def test_a_pod_with_a_default_scheduler_gets_the_scheduler_that_asks_carrel(scheduler: str) -> None:
    assert (await ReviewedCluster().create(a_pod(GPU, schedulerName=scheduler))).object["spec"][
        "schedulerName"
    ] == "gpu-scheduler"


async def test_a_quantity_of_zero_asks_for_nothing() -> None:
    assert (await ReviewedCluster().create(a_pod({"nvidia.com/gpu": "0"}, nodeName="n1"))).patch == []


# --- pods that are not changed, or run without a GPU -----------------------------------------------------------------


async def test_a_pod_that_asks_for_no_gpu_is_not_changed() -> None:
    reviewed = await full(strict=True).create(a_pod({"cpu": "1"}, nodeName="n1", schedulerName="mine"))

    assert reviewed.allowed and reviewed.patch == [] and reviewed.warnings == []


async def test_if_the_setting_says_so_a_pod_without_a_gpu_is_told_to_see_none() -> None:
    reviewed = await ReviewedCluster(options=AdmissionOptions(hides_from_everybody=True)).create(a_pod())

    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize("user", ["system:serviceaccount:carrel:carrel-controller", "root"])
async def test_pods_that_carrel_creates_are_left_alone(user: str) -> None:
    reviewed = await ReviewedCluster().create(a_pod(GPU, annotations=PROTECTED, nodeName="n1"), user)

    assert reviewed.allowed and reviewed.patch == []


async def test_the_replacement_of_a_pod_that_lost_its_gpu_runs_without_a_gpu() -> None:
    record = HandOver("gone", "lab/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid")
    reviewed = await ReviewedCluster(handed_over={"job-uid": record}).create(
        a_pod(GPU, owner="job-uid"), JOB_CONTROLLER
    )

    assert reviewed.container()["resources"] == {"limits": {}}
    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    assert reviewed.annotations == {
        "carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}'
    }
    assert (await ReviewedCluster(handed_over={"job-uid": record}).create(a_pod(GPU, owner="other"))).env() == DEVICES
    assert (await ReviewedCluster(handed_over={"job-uid": record}).create(reviewed.object, JOB_CONTROLLER)).patch == []


async def test_a_user_cannot_mark_a_pod_as_a_successor() -> None:
    """Else a record would be closed by a pod that is no successor, and the next pod of its owner had a GPU again."""
    mark = {"carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}'}
    elsewhere = HandOver("gone", "other/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid")

    assert (await ReviewedCluster().create(a_pod(annotations=mark))).annotations == {}
    assert (
        await ReviewedCluster(handed_over={"job-uid": elsewhere}).create(a_pod(GPU, owner="job-uid"))
    ).env() == DEVICES


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "gpu-scheduler"])
async def test_a_pod_that_runs_without_a_gpu_gets_the_default_scheduler(scheduler: str) -> None:
    assert "schedulerName" not in (await full().create(a_pod(GPU, schedulerName=scheduler))).object["spec"]


# --- forged keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [GPU, {}], ids=["a GPU pod", "another pod"])
@pytest.mark.parametrize("key", [*PROTECTED, *PROTECTED_LABELS])
async def test_a_forged_key_is_removed(key: str, limits: dict[str, str]) -> None:
    group = "annotations" if key in PROTECTED else "labels"
    forged = PROTECTED.get(key) or PROTECTED_LABELS[key]

    reviewed = await ReviewedCluster(booking_lookup=None).create(
        a_pod(limits, **{group: {key: forged, "mine": "stays"}})
    )

    assert reviewed.object["metadata"][group] == {"mine": "stays"}


def test_every_protected_key_is_tested() -> None:
    assert PROTECTED.keys() >= protected_keys.annotations() and PROTECTED_LABELS.keys() >= ALL.written_labels


# --- the seal --------------------------------------------------------------------------------------------------------


async def test_an_admitted_gpu_pod_has_a_seal_and_keeps_it_in_a_second_review() -> None:
    later = NOON
    cluster = replace(booked(), seal=Seal((b"key",)), now=lambda: later)

    first = await cluster.create(a_pod(GPU))
    later = NOON + timedelta(seconds=30)
    again = await cluster.create(first.object)

    assert first.annotations["carrel.dev/admitted"].startswith("2026-11-16T12:00:00Z ")
    assert again.patch == []


async def test_a_pod_without_a_gpu_has_no_seal() -> None:
    assert (await replace(full(), seal=Seal((b"key",))).create(a_pod(GPU))).annotations == {}
    assert (await replace(full(), seal=Seal((b"key",))).create(a_pod())).patch == []


# --- reviews ---------------------------------------------------------------------------------------------------------


async def test_an_old_version_and_a_dry_run_are_answered_like_any_other_review() -> None:
    for changes in ({"version": "v1beta1"}, {"dry_run": True}):
        assert (await ReviewedCluster().create(a_pod(GPU), **changes)).env() == DEVICES


async def test_other_kinds_and_other_operations_are_allowed() -> None:
    assert (await ReviewedCluster().create({"metadata": {}}, kind="Service")).patch == []
    assert (await ReviewedCluster().create(a_pod(GPU), operation="UPDATE", old=a_pod(GPU))).patch == []
    assert (await ReviewedCluster().ask(review(None, old=a_pod(GPU), operation="DELETE"))).allowed
