"""What admission does with a pod while no GPU is free: it waits, or it runs without a GPU."""

from dataclasses import replace
from datetime import timedelta

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects.options import WhenFull
from tests.kit.gpus import a_node
from tests.kit.reviews import (
    ALICE,
    DEVICES,
    GPU,
    NOON,
    Json,
    ReviewedCluster,
    RunningPod,
    a_booking,
    a_pod,
    full,
)

NOTEBOOK = {"hub.jupyter.org/username": "alice-40lab-2eexample"}
FULL = replace(full(), options=AdmissionOptions())
LATER = NOON + timedelta(minutes=30)


async def test_an_opportunistic_pod_runs_without_a_gpu_when_no_gpu_is_free() -> None:
    two = [{"name": "main", "resources": {"limits": GPU, "requests": {**GPU, "cpu": "1"}}}, {"name": "log"}]
    reviewed = await full().create(a_pod(containers=two, initContainers=[{"name": "init", "env": []}]))

    assert reviewed.container()["resources"] == {"limits": {}, "requests": {"cpu": "1"}}
    assert [reviewed.env(name) for name in ("main", "log", "init")] == [{"NVIDIA_VISIBLE_DEVICES": "none"}] * 3
    assert "carrel.dev/tier" not in reviewed.annotations and "terminate-at" not in reviewed.annotations
    assert len(reviewed.warnings) == 1
    why = "this pod runs without a GPU: on Mon 16 Nov 12:00 UTC, n1 has no room for 1 whole GPU: "
    assert reviewed.warnings[0].startswith(why)


CLAIM = {"metadata": {"name": "c", "namespace": "lab"}, "spec": {"devices": {"count": 1}}}


@pytest.mark.parametrize(
    ("cluster", "pod"),
    [
        pytest.param(FULL, a_pod(GPU, labels=NOTEBOOK), id="a notebook, by its label"),
        pytest.param(FULL, a_pod(GPU, annotations=NOTEBOOK), id="a notebook, by its annotation"),
        pytest.param(FULL, a_pod(GPU, annotations={"terminate-at": "1900-01-01T08:00:00Z"}), id="MAIA's mark"),
        pytest.param(FULL, a_pod(labels=NOTEBOOK, annotations={"gpu-fraction": "0.5"}), id="a part of a GPU"),
        pytest.param(full(), a_pod({"aliyun.com/gpu-mem": "100"}), id="memory of a GPU"),
        pytest.param(
            replace(full(), claims=[CLAIM]), a_pod(annotations={"gpu.scheduling/claim": "c"}), id="a claim that exists"
        ),
        pytest.param(
            replace(full(), claims=[CLAIM]),
            a_pod(GPU, annotations={"gpu.scheduling/claim": "c"}),
            id="a claim, and as many GPUs in its limits",
        ),
        pytest.param(full(), a_pod({"nvidia.com/gpumem": "3000"}), id="HAMi's part of a GPU"),
        pytest.param(replace(FULL, namespace={"carrel.dev/when-full": "cpu"}), a_pod(GPU), id="the namespace says cpu"),
        pytest.param(
            replace(full(when_full=WhenFull.WAIT), namespace={"carrel.dev/when-full": "cpu"}),
            a_pod(GPU),
            id="the namespace says cpu and the setting wait",
        ),
        pytest.param(
            replace(full(), bookings=[a_booking(start=NOON + timedelta(hours=2))]),
            a_pod(GPU),
            id="a booking starts in two hours",
        ),
        pytest.param(
            replace(full(), bookings=[a_booking(start=LATER)]),
            a_pod(GPU, annotations={"carrel.dev/gpu-model": "NVIDIA-H100"}),
            id="a booking of another model starts soon",
        ),
        pytest.param(
            ReviewedCluster(options=AdmissionOptions(when_full=WhenFull.CPU), nodes=[a_node("n1", 1)]),
            a_pod({"nvidia.com/gpu": "2"}),
            id="more than any node has",
        ),
        pytest.param(
            replace(full(), running=[RunningPod("mine", ALICE)], opportunistic_gpus=1),
            a_pod(GPU),
            id="more than a person may hold without a booking",
        ),
        pytest.param(
            ReviewedCluster(
                options=AdmissionOptions(when_full=WhenFull.CPU),
                bookings=[a_booking("bob@lab.example")],
                nodes=[a_node("n1", 1)],
                running=[RunningPod("booked", "bob@lab.example", gpus=())],
            ),
            a_pod(GPU),
            id="a booked pod waits for the last one",
        ),
    ],
)
async def test_a_pod_runs_on_cpu_when_no_gpu_is_free_for_it(cluster: ReviewedCluster, pod: Json) -> None:
    reviewed = await cluster.create(pod)

    assert reviewed.allowed and reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    assert reviewed.warnings[-1].startswith("this pod runs without a GPU: ")
    assert reviewed.annotations["carrel.dev/runs-without-gpu"] == reviewed.warnings[-1]
    assert (await cluster.create(reviewed.object)).patch == []


async def test_a_pod_that_runs_on_cpu_asks_for_no_node_with_a_gpu_any_more() -> None:
    has_gpu = {"key": "nvidia.com/gpu.present", "operator": "Exists"}
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [has_gpu]}]}
    }
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    pod = a_pod(
        GPU,
        nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-l4", "room": "b12"},
        affinity={"nodeAffinity": required},
        tolerations=tolerations,
    )

    reviewed = await full().create(pod)

    assert reviewed.warnings[-1].startswith("this pod runs without a GPU: ")
    assert reviewed.object["spec"]["nodeSelector"] == {"room": "b12"}
    assert not reviewed.object["spec"].get("affinity")
    assert reviewed.object["spec"]["tolerations"] == tolerations


@pytest.mark.parametrize("claims", [[CLAIM], []], ids=["the claim exists", "the claim comes later"])
async def test_a_claim_and_as_many_gpus_in_the_limits_are_one_request(claims: list[Json]) -> None:
    containers = [{"name": "main", "resources": {"limits": GPU}}, {"name": "log"}]
    cluster = ReviewedCluster(claims=claims)
    reviewed = await cluster.create(a_pod(annotations={"gpu.scheduling/claim": "c"}, containers=containers))

    assert reviewed.allowed
    assert reviewed.env("main") == DEVICES
    assert reviewed.env("log") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (await cluster.create(reviewed.object)).patch == []


async def test_a_pod_that_asks_for_mig_slices_is_reviewed_like_one_that_asks_for_gpus() -> None:
    reviewed = await ReviewedCluster().create(a_pod({"nvidia.com/mig-1g.5gb": "1"}))
    assert reviewed.allowed
    assert reviewed.env("main") == DEVICES
    assert reviewed.object["metadata"]["annotations"]["carrel.dev/tier"] == "opportunistic"

    assert (await ReviewedCluster().create(a_pod({"nvidia.com/mig-1g.5gb": "0"}))).patch == []


async def test_a_part_of_a_slice_is_refused_where_memory_is_limited() -> None:
    words = {"carrel.dev/gpu-memory-mib": "4096", "carrel.dev/gpu-model": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    pod = a_pod({}, annotations=words)
    assert (await ReviewedCluster().create(pod)).allowed
    refused = await ReviewedCluster(options=AdmissionOptions(limits_memory=True)).create(pod)
    assert not refused.allowed
    assert "a part of a MIG slice; NVIDIA's driver limits no memory inside a slice" in refused.message


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        pytest.param({"nvidia.com/mig-one": "1"}, "nvidia.com/mig-one, which no profile", id="no profile"),
        pytest.param(
            {"nvidia.com/mig-1g.10gb": "1", "nvidia.com/mig-2g.20gb": "1"},
            "MIG slices of 2 profiles: nvidia.com/mig-1g.10gb and nvidia.com/mig-2g.20gb; keep one",
            id="two profiles",
        ),
        pytest.param(
            {"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu": "1"},
            "in 2 ways: nvidia.com/gpu and nvidia.com/mig-<profile>",
            id="a slice and a GPU",
        ),
    ],
)
async def test_a_pod_that_asks_for_slices_in_no_possible_way_is_refused(limits: dict[str, str], why: str) -> None:
    refused = await ReviewedCluster().create(a_pod(limits))
    assert not refused.allowed
    assert why in refused.message


async def test_a_claim_and_another_number_of_gpus_in_the_limits_are_refused() -> None:
    pod = a_pod({"nvidia.com/gpu": "2"}, annotations={"gpu.scheduling/claim": "c"})
    reviewed = await ReviewedCluster(claims=[CLAIM]).create(pod)

    assert not reviewed.allowed
    assert "of 1 GPU and asks for 2 by nvidia.com/gpu; make the numbers equal" in reviewed.message


@pytest.mark.parametrize(
    ("cluster", "pod"),
    [
        pytest.param(full(when_full=WhenFull.WAIT), a_pod(GPU, labels=NOTEBOOK), id="the setting says wait"),
        pytest.param(FULL, a_pod(GPU), id="by default, a pod that is no notebook"),
        pytest.param(
            FULL,
            a_pod(GPU, annotations={"terminate-at": "1900-01-01T08:00:00Z", "carrel.dev/tier": "opportunistic"}),
            id="what Carrel itself wrote in a first review is not MAIA's mark",
        ),
        pytest.param(
            replace(full(), namespace={"carrel.dev/when-full": "wait"}), a_pod(GPU), id="the namespace says wait"
        ),
        pytest.param(full(), a_pod(annotations={"gpu.scheduling/claim": "c"}), id="the claim does not exist yet"),
        pytest.param(full(), a_pod(GPU, annotations={"pod-group-name": "g"}), id="a member of a gang"),
        pytest.param(full(), a_pod(GPU, schedulingGates=[{"name": "a.example/quota"}]), id="it does not run now"),
        pytest.param(replace(full(), bookings=[a_booking()]), a_pod(GPU), id="it is booked"),
        pytest.param(
            replace(full(), bookings=[a_booking(start=LATER)]), a_pod(GPU), id="a booking of its person starts soon"
        ),
        pytest.param(
            replace(full(), bookings=[a_booking(start=NOON + timedelta(days=1))]),
            a_pod(GPU, annotations={"carrel.dev/booking": "next"}),
            id="it is made for a booking",
        ),
        pytest.param(
            replace(full(), namespace={"carrel.dev/exempt": "true"}), a_pod(GPU), id="its namespace is exempt"
        ),
        pytest.param(replace(full(), running=()), a_pod(GPU), id="a GPU is free"),
        pytest.param(
            replace(full(), running=[RunningPod("half", gpus=(0, 1, 2), mib=8138)]),
            a_pod(annotations={"gpu-fraction": "0.5"}),
            id="half of a GPU is free",
        ),
        pytest.param(replace(full(), nodes=()), a_pod(GPU), id="no agent has reported a GPU yet"),
    ],
)
async def test_a_pod_keeps_its_request(cluster: ReviewedCluster, pod: Json) -> None:
    reviewed = await cluster.create(pod)

    assert reviewed.allowed and reviewed.object["spec"]["schedulerName"] == "gpu-scheduler"
    assert (await cluster.create(reviewed.object)).patch == []


async def test_who_creates_a_pod_before_its_claim_is_told_what_it_waits_for() -> None:
    reviewed = await full().create(a_pod(annotations={"gpu.scheduling/claim": "c"}))

    assert reviewed.warnings == [
        "this pod waits: pod lab/train names the GpuClaim 'c', which does not exist in namespace 'lab'; create it"
    ]


async def test_what_a_namespace_says_counts_only_if_it_can_be_read() -> None:
    odd = replace(full(), namespace={"carrel.dev/when-full": "never"})
    reviewed = await odd.create(a_pod(GPU))

    assert reviewed.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    said = "namespace lab says carrel.dev/when-full: 'never', which is neither cpu nor wait; it does not count"
    assert said in reviewed.warnings
