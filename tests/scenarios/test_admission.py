"""What admission refuses, leaves alone and removes: bad requests, pods without a GPU, protected keys, the seal."""

from dataclasses import replace
from datetime import timedelta

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects import protected_keys
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why
from carrel.dialects.options import HideFrom
from carrel.dialects.registry import ALL
from carrel.dialects.seal import Seal
from carrel.ids import PodUid
from tests.kit.forged import PROTECTED, PROTECTED_LABELS
from tests.kit.reviews import (
    DEVICES,
    GPU,
    JOB_CONTROLLER,
    NOON,
    Json,
    ReviewedCluster,
    a_pod,
    booked,
    full,
    review,
)

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


async def test_a_pod_with_a_gpu_for_each_of_a_thousand_containers_is_admitted_and_waits() -> None:
    pod = a_pod(GPU)
    (container,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [{**container, "name": f"c{number}"} for number in range(1000)]
    reviewed = await ReviewedCluster().create(pod)

    assert reviewed.allowed
    assert reviewed.object["spec"]["schedulerName"] == "gpu-scheduler"


@pytest.mark.parametrize(
    ("notes", "argument", "why"),
    [
        pytest.param("x" * 130_000, "", "", id="many annotations"),
        pytest.param("x" * 132_000, "", "bytes of annotations; at most 131,072", id="no room for its GPUs"),
        pytest.param("", "<" * 1_000_000, "", id="as large as it may be, although Go writes six times as much"),
        pytest.param("", "x" * 1_100_000, "bytes; at most 1,048,576, to leave room", id="too large"),
    ],
)
async def test_a_gpu_pod_on_which_carrel_could_write_nothing_any_more_is_refused(
    notes: str, argument: str, why: str
) -> None:
    pod = a_pod(GPU, annotations={"mine": notes})
    pod["spec"]["containers"][0]["args"] = [argument]
    reviewed = await ReviewedCluster().create(pod)

    assert reviewed.allowed is not bool(why) and why in reviewed.message
    plain = a_pod(annotations={"mine": notes})
    plain["spec"]["containers"][0]["args"] = [argument]
    assert (await ReviewedCluster().create(plain)).allowed, "pods without a GPU are not Carrel's business"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param(365 * 24 * 3600, 300, id="longer than a GPU pod may take"),
        pytest.param(300, 300, id="the longest"),
        pytest.param(30, 30, id="the usual one"),
        pytest.param(0, 0, id="none"),
    ],
)
async def test_a_gpu_pod_does_not_take_longer_to_end_than_the_admin_allows(given: int, kept: int) -> None:
    reviewed = await booked().create(a_pod(GPU, terminationGracePeriodSeconds=given))

    assert reviewed.object["spec"]["terminationGracePeriodSeconds"] == kept
    lowered = [each for each in reviewed.warnings if "terminationGracePeriodSeconds was lowered" in each]
    assert bool(lowered) == (kept < given)


@pytest.mark.parametrize("probe", ["livenessProbe", "startupProbe"])
async def test_a_probe_gives_a_container_no_longer_to_end_either(probe: str) -> None:
    pod = a_pod(GPU)
    pod["spec"]["containers"][0][probe] = {"exec": {"command": ["false"]}, "terminationGracePeriodSeconds": 31_536_000}

    reviewed = await booked().create(pod)

    (container,) = reviewed.object["spec"]["containers"]
    assert container[probe] == {"exec": {"command": ["false"]}, "terminationGracePeriodSeconds": 300}
    assert any("was lowered from 31536000 to 300" in each for each in reviewed.warnings)


async def test_pods_without_a_gpu_and_of_exempt_namespaces_take_as_long_as_they_like_to_end() -> None:
    year = 365 * 24 * 3600
    exempt = booked(namespace={"carrel.dev/exempt": "true"})
    for cluster, limits in ((booked(), {}), (exempt, GPU)):
        reviewed = await cluster.create(a_pod(limits, terminationGracePeriodSeconds=year))
        assert reviewed.object["spec"]["terminationGracePeriodSeconds"] == year


@pytest.mark.parametrize("scheduler", ["", "default-scheduler", "kai-scheduler", "gpu-scheduler"])
async def test_a_pod_with_a_default_scheduler_gets_the_scheduler_that_asks_carrel(scheduler: str) -> None:
    assert (await ReviewedCluster().create(a_pod(GPU, schedulerName=scheduler))).object["spec"][
        "schedulerName"
    ] == "gpu-scheduler"


@pytest.mark.parametrize(
    ("named", "given"),
    [
        pytest.param("night", "night", id="one of several that ask Carrel is kept"),
        pytest.param("day", "day", id="the first too"),
        pytest.param(
            "default-scheduler", "day", id="a pod that chose none gets the first, also where the default asks"
        ),
        pytest.param("kai-scheduler", "day", id="a peer's is replaced by the first"),
    ],
)
async def test_each_scheduler_that_asks_carrel_may_place_gpu_pods(named: str, given: str) -> None:
    cluster = ReviewedCluster(options=AdmissionOptions(schedulers=("day", "night", "default-scheduler")))
    reviewed = await cluster.create(a_pod(GPU, schedulerName=named))
    assert reviewed.allowed and reviewed.object["spec"]["schedulerName"] == given


async def test_a_scheduler_that_does_not_ask_carrel_is_refused_where_several_do() -> None:
    cluster = ReviewedCluster(options=AdmissionOptions(schedulers=("day", "night")))
    refused = await cluster.create(a_pod(GPU, schedulerName="evening"))
    assert not refused.allowed and "wants the scheduler 'evening'" in refused.message


async def test_a_quantity_of_zero_asks_for_nothing() -> None:
    assert (await ReviewedCluster().create(a_pod({"nvidia.com/gpu": "0"}, nodeName="n1"))).patch == []


# --- pods that are not changed, or run without a GPU -----------------------------------------------------------------


async def test_a_pod_that_asks_for_no_gpu_is_not_changed() -> None:
    reviewed = await full(strict=True).create(a_pod({"cpu": "1"}, nodeName="n1", schedulerName="mine"))

    assert reviewed.allowed and reviewed.patch == [] and reviewed.warnings == []


async def test_if_the_setting_says_so_every_pod_without_a_gpu_is_told_to_see_none() -> None:
    reviewed = await ReviewedCluster(options=AdmissionOptions(hide_from=HideFrom.ALL_PODS)).create(a_pod())

    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize("user", ["system:serviceaccount:carrel:carrel-controller", "root"])
async def test_pods_that_carrel_creates_are_left_alone(user: str) -> None:
    reviewed = await ReviewedCluster().create(a_pod(GPU, annotations=PROTECTED, nodeName="n1"), user)

    assert reviewed.allowed and reviewed.patch == []


async def test_other_programs_in_carrels_namespace_are_not_carrel() -> None:
    """MAIA's own terminator makes a pod again with everything that was on it."""
    reviewed = await ReviewedCluster().create(
        a_pod(GPU, annotations={"carrel.dev/devices": "GPU-1"}), "system:serviceaccount:carrel:pod-terminator"
    )

    assert "carrel.dev/devices" not in reviewed.annotations


async def test_the_replacement_of_a_pod_that_lost_its_gpu_runs_without_a_gpu() -> None:
    record = HandOver(PodUid("gone"), "lab/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid")
    reviewed = await ReviewedCluster(handed_over=[record]).create(a_pod(GPU, owner="job-uid"), JOB_CONTROLLER)

    assert reviewed.container()["resources"] == {"limits": {}}
    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    why = "the one that it had was needed for a booked pod on Mon 16 Nov 12:00 UTC"
    assert reviewed.annotations == {
        "carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}',
        "carrel.dev/runs-without-gpu": f"this pod runs without a GPU: {why}",
        "carrel.dev/asked-for": '{"gpus": 1}',
    }
    assert (await ReviewedCluster(handed_over=[record]).create(a_pod(GPU, owner="other"))).env() == DEVICES
    assert (await ReviewedCluster(handed_over=[record]).create(reviewed.object, JOB_CONTROLLER)).patch == []


async def test_naming_somebody_elses_controller_takes_no_gpu_from_its_next_pod() -> None:
    """Eve's pod named a Job that is not hers, and was revoked. The Job's own next pod is no successor of it."""
    forged = HandOver(
        *(PodUid("gone"), "lab/eves", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING),
        owner="job-uid",
        user="eve@lab.example",
    )
    reviewed = await ReviewedCluster(handed_over=[forged]).create(a_pod(GPU, owner="job-uid"), JOB_CONTROLLER)

    assert reviewed.env() == DEVICES


async def test_a_user_cannot_mark_a_pod_as_a_successor() -> None:
    """Else a record would be closed by a pod that is no successor, and the next pod of its owner had a GPU again."""
    mark = {"carrel.dev/handed-over": '{"at":"2026-11-16T12:00:00Z","why":"revoked","from":"gone"}'}
    elsewhere = HandOver(
        PodUid("gone"), "other/train-1", Why.REVOKED, NOON, NOON, HandOverPhase.ENDING, owner="job-uid"
    )

    assert (await ReviewedCluster().create(a_pod(annotations=mark))).annotations == {}
    assert (await ReviewedCluster(handed_over=[elsewhere]).create(a_pod(GPU, owner="job-uid"))).env() == DEVICES


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "gpu-scheduler"])
async def test_a_pod_that_runs_without_a_gpu_gets_the_default_scheduler(scheduler: str) -> None:
    assert "schedulerName" not in (await full().create(a_pod(GPU, schedulerName=scheduler))).object["spec"]


# --- forged keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [GPU, {}], ids=["a GPU pod", "another pod"])
@pytest.mark.parametrize("key", [*PROTECTED, *PROTECTED_LABELS])
async def test_a_forged_key_is_removed(key: str, limits: dict[str, str]) -> None:
    group = "annotations" if key in PROTECTED else "labels"
    forged = PROTECTED.get(key) or PROTECTED_LABELS[key]

    cluster = ReviewedCluster(namespace={"carrel.dev/exempt": "true"})
    reviewed = await cluster.create(a_pod(limits, **{group: {key: forged, "mine": "stays"}}), JOB_CONTROLLER)

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


async def test_of_pods_without_a_gpu_only_those_that_asked_for_one_have_a_seal() -> None:
    sealed = replace(full(), seal=Seal((b"key",)))
    assert "carrel.dev/admitted" in (await sealed.create(a_pod(GPU))).annotations
    assert (await sealed.create(a_pod())).patch == []


# --- reviews ---------------------------------------------------------------------------------------------------------


async def test_an_old_version_and_a_dry_run_are_answered_like_any_other_review() -> None:
    for changes in ({"version": "v1beta1"}, {"dry_run": True}):
        assert (await ReviewedCluster().create(a_pod(GPU), **changes)).env() == DEVICES


async def test_other_kinds_and_other_operations_are_allowed() -> None:
    assert (await ReviewedCluster().create({"metadata": {}}, kind="Service")).patch == []
    assert (await ReviewedCluster().create(a_pod(GPU), operation="UPDATE", old=a_pod(GPU))).patch == []
    assert (await ReviewedCluster().ask(review(None, old=a_pod(GPU), operation="DELETE"))).allowed
