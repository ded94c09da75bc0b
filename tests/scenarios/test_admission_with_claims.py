"""Pods with ResourceClaims for GPUs are admitted as all GPU pods; who asks in another dialect too is refused."""

from dataclasses import replace

import msgspec
import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects.options import WhenFull
from carrel.dialects.seal import Seal
from carrel.kubernetes.objects.kinds import Pod
from tests.kit.reviews import ALICE, Json, ReviewedCluster, RunningPod, a_booking, a_pod, review

SHARE = {"aliyun.com/gpu-mem": "8138"}


def spec(device_class: str, count: int = 1) -> Json:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class, "count": count}}]}}


def a_cluster(device_class: str = "gpu.carrel.dev", *, dra: bool = True, count: int = 1) -> ReviewedCluster:
    """With a claim `mine` and a template `each` of that class; the class `large` selects our driver by CEL."""
    by_driver = [{"cel": {"expression": "device.driver == 'gpu.carrel.dev' && device.attributes.size() > 0"}}]
    return ReviewedCluster(
        dra=dra,
        resource_claims=[{"metadata": {"name": "mine", "namespace": "lab"}, "spec": spec(device_class, count)}],
        claim_templates=[
            {"metadata": {"name": "each", "namespace": "lab"}, "spec": {"spec": spec(device_class, count)}}
        ],
        device_classes=[
            {"metadata": {"name": "large"}, "spec": {"selectors": by_driver}},
            {"metadata": {"name": "ours"}, "spec": {"selectors": by_driver, "extendedResourceName": "lab.example/gpu"}},
        ],
    )


BY_CLAIM = [{"name": "gpu", "resourceClaimName": "mine"}]
BY_TEMPLATE = [{"name": "gpu", "resourceClaimTemplateName": "each"}]
UNKNOWN = [{"name": "gpu", "resourceClaimTemplateName": "nowhere"}]


@pytest.mark.parametrize(
    ("device_class", "claims", "words"),
    [
        pytest.param("gpu.carrel.dev", BY_CLAIM, "aliyun.com/gpu-mem and ResourceClaim mine", id="a claim"),
        pytest.param(
            "gpu.carrel.dev", BY_TEMPLATE, "aliyun.com/gpu-mem and ResourceClaimTemplate each", id="a template"
        ),
        pytest.param("gpu.nvidia.com", BY_CLAIM, "aliyun.com/gpu-mem and ResourceClaim mine", id="NVIDIA's class"),
        pytest.param(
            "large", BY_CLAIM, "aliyun.com/gpu-mem and ResourceClaim mine", id="a class that selects our driver"
        ),
    ],
)
async def test_two_ways_of_asking_are_refused(device_class: str, claims: list[Json], words: str) -> None:
    answer = await a_cluster(device_class).create(a_pod(SHARE, resourceClaims=claims))
    assert not answer.allowed
    assert answer.message == f"pod lab/train asks for GPUs in 2 ways: {words}; keep one of them"


@pytest.mark.parametrize(
    ("device_class", "claims"),
    [
        pytest.param("nic.example", BY_CLAIM, id="a claim for something else"),
        pytest.param("gpu.carrel.dev", UNKNOWN, id="a template that does not exist yet: the gate looks again"),
        pytest.param("gpu.carrel.dev", [], id="no claim"),
    ],
)
async def test_other_claims_go_with_every_dialect(device_class: str, claims: list[Json]) -> None:
    answer = await a_cluster(device_class).create(a_pod(SHARE, resourceClaims=claims))
    assert answer.allowed, answer.message


async def test_a_pod_with_a_claim_is_admitted_as_every_gpu_pod_and_keeps_its_scheduler() -> None:
    cluster = replace(a_cluster(), bookings=[a_booking(ALICE)], seal=Seal((b"k" * 32,)), runtime_class="nvidia")
    answer = await cluster.create(a_pod(resourceClaims=BY_TEMPLATE))
    assert answer.annotations["carrel.dev/tier"] == "booked"
    assert answer.annotations["terminate-at"] == "2026-11-16T20:00:00Z"
    assert answer.annotations["carrel.dev/user"] == ALICE
    assert "carrel.dev/admitted" in answer.annotations
    spec = answer.object["spec"]
    assert (spec["schedulerName"], spec["priorityClassName"]) == ("default-scheduler", "carrel-gpu")
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["resourceClaims"] == BY_TEMPLATE
    assert answer.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}  # the claim's CDI file replaces it


RESOURCES = [
    pytest.param("deviceclass.resource.kubernetes.io/gpu.carrel.dev", id="the resource of our class"),
    pytest.param("deviceclass.resource.kubernetes.io/large", id="the resource of a class that selects our driver"),
    pytest.param("lab.example/gpu", id="a resource that such a class names"),
]


@pytest.mark.parametrize("resource", RESOURCES)
async def test_a_pod_with_a_resource_for_which_a_scheduler_makes_a_claim_is_admitted_in_the_same_way(
    resource: str,
) -> None:
    cluster = replace(a_cluster(), bookings=[a_booking(ALICE)], seal=Seal((b"k" * 32,)))
    answer = await cluster.create(a_pod({resource: "1"}))
    assert answer.annotations["carrel.dev/tier"] == "booked"
    assert answer.annotations["carrel.dev/user"] == ALICE
    assert answer.object["spec"]["schedulerName"] == "default-scheduler"
    assert answer.object["spec"]["containers"][0]["resources"]["limits"] == {resource: "1"}

    for other in (SHARE, {"nvidia.com/gpu": "1"}):
        twice = await cluster.create(a_pod({resource: "1", **other}))
        assert not twice.allowed and f"{next(iter(other))} and resource {resource}; keep one" in twice.message


@pytest.mark.parametrize("resource", RESOURCES)
async def test_such_a_pod_that_finds_no_gpu_goes_on_without_the_resource(resource: str) -> None:
    cluster = replace(a_cluster(), options=AdmissionOptions(when_full=WhenFull.CPU), seal=Seal((b"k" * 32,)))
    answer = await cluster.create(a_pod({resource: "9", "rdma/hca": "1"}))
    assert "carrel.dev/runs-without-gpu" in answer.annotations
    assert answer.object["spec"]["containers"][0]["resources"]["limits"] == {"rdma/hca": "1"}


@pytest.mark.parametrize("resource", ["deviceclass.resource.kubernetes.io/nic.example", "rdma/hca"])
async def test_resources_of_other_devices_are_left_alone(resource: str) -> None:
    answer = await replace(a_cluster(), seal=Seal((b"k" * 32,))).create(a_pod({resource: "1"}))
    assert answer.annotations == {}


async def test_a_second_review_of_a_pod_with_a_claim_changes_nothing() -> None:
    cluster = replace(a_cluster(), bookings=[a_booking(ALICE)], seal=Seal((b"k" * 32,)))
    once = await cluster.create(a_pod(resourceClaims=BY_TEMPLATE))
    assert (await cluster.create(once.object)).object == once.object


async def test_a_pod_with_a_claim_beyond_its_booking_is_opportunistic_and_told_why() -> None:
    cluster = replace(a_cluster(count=2), bookings=[a_booking(ALICE)])
    answer = await cluster.create(a_pod(resourceClaims=BY_CLAIM))
    assert answer.annotations["carrel.dev/tier"] == "opportunistic"
    assert any("is for fewer GPUs than this pod asks for (2 whole GPUs)" in warning for warning in answer.warnings), (
        answer.warnings
    )


@pytest.mark.parametrize("claims", [BY_CLAIM, BY_TEMPLATE], ids=["a claim", "a template"])
async def test_a_pod_with_a_claim_of_another_driver_is_left_alone(claims: list[Json]) -> None:
    answer = await replace(a_cluster("nic.example"), seal=Seal((b"k" * 32,))).create(a_pod(resourceClaims=claims))
    assert answer.annotations == {}
    assert "priorityClassName" not in answer.object["spec"]


NOT_YET = [
    pytest.param([{"name": "gpu", "resourceClaimName": "late"}], "ResourceClaim late", id="a claim"),
    pytest.param([{"name": "gpu", "resourceClaimTemplateName": "late"}], "ResourceClaimTemplate late", id="a template"),
]


@pytest.mark.parametrize(("claims", "source"), NOT_YET)
@pytest.mark.parametrize(("booked", "tier"), [(True, "booked"), (False, "opportunistic")])
async def test_a_pod_that_comes_before_its_claim_is_admitted_as_if_it_asked_for_a_gpu(
    claims: list[Json], source: str, booked: bool, tier: str
) -> None:
    """Charts make pods before templates. The gate judges them by their seal and their tier."""
    bookings = [a_booking(ALICE)] if booked else []
    seal = Seal((b"k" * 32,))
    answer = await replace(a_cluster(), bookings=bookings, seal=seal).create(a_pod(resourceClaims=claims))
    assert answer.annotations["carrel.dev/user"] == ALICE
    assert answer.annotations["carrel.dev/tier"] == tier
    stored = {"namespace": "lab", "creationTimestamp": answer.annotations["carrel.dev/admitted"].split()[0]}
    made = {**answer.object, "metadata": {**answer.object["metadata"], **stored}}
    assert seal.missing_on(msgspec.convert(made, Pod)) is None
    assert answer.object["spec"]["resourceClaims"] == claims
    assert f"this pod waits: {source} of pod lab/train is not known yet" in answer.warnings


async def test_in_a_full_cluster_a_pod_that_comes_before_its_claim_keeps_it_and_waits() -> None:
    full = [RunningPod("busy", gpus=(0, 1, 2))]
    cluster = replace(a_cluster(), running=full, options=AdmissionOptions(when_full=WhenFull.CPU))
    answer = await cluster.create(a_pod(resourceClaims=UNKNOWN))
    assert answer.object["spec"]["resourceClaims"] == UNKNOWN
    assert "carrel.dev/runs-without-gpu" not in answer.annotations


async def test_a_strict_cluster_refuses_a_pod_of_nobody_that_comes_before_its_claim() -> None:
    cluster = replace(a_cluster(), options=AdmissionOptions(strict=True))
    answer = await cluster.create(
        a_pod(resourceClaims=UNKNOWN), "system:serviceaccount:kube-system:replicaset-controller"
    )
    assert not answer.allowed
    assert "may ask for a GPU, and Carrel cannot tell who owns it" in answer.message


async def test_without_dra_a_pod_that_comes_before_its_claim_is_left_alone() -> None:
    answer = await a_cluster(dra=False).create(a_pod(resourceClaims=UNKNOWN))
    assert answer.allowed and "carrel.dev/tier" not in answer.annotations


async def test_in_a_full_cluster_a_pod_runs_without_its_claim_for_a_gpu_and_keeps_the_others() -> None:
    full = [RunningPod("busy", gpus=(0, 1, 2))]
    cluster = replace(a_cluster(), running=full, options=AdmissionOptions(when_full=WhenFull.CPU))
    nic = {"name": "nic", "resourceClaimName": "network"}
    pod = a_pod(resourceClaims=[*BY_CLAIM, nic])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}, {"name": "nic"}]}
    answer = await cluster.create(pod)
    assert answer.object["spec"]["resourceClaims"] == [nic]
    assert answer.object["spec"]["containers"][0]["resources"] == {"claims": [{"name": "nic"}]}
    assert "carrel.dev/runs-without-gpu" in answer.annotations
    assert (await cluster.create(answer.object)).object == answer.object, "a second review changes nothing"


async def test_nodes_that_advertise_no_claims_are_no_room_for_a_pod_with_a_claim() -> None:
    """Its claim cannot be allocated there, however many GPUs are free."""
    cluster = replace(a_cluster(), bookings=[a_booking(ALICE)], slices=())
    answer = await cluster.create(a_pod(resourceClaims=BY_CLAIM))
    assert answer.annotations["carrel.dev/tier"] == "opportunistic"


async def test_without_dra_claims_are_not_looked_at() -> None:
    answer = await a_cluster(dra=False).create(a_pod(SHARE, resourceClaims=BY_CLAIM))
    assert answer.allowed


def a_slice(*, divides: bool, driver: str = "gpu.carrel.dev") -> Json:
    device: Json = {"name": "gpu-0", **({"allowMultipleAllocations": True} if divides else {})}
    pool = {"name": "n1", "generation": 1}
    return {
        "metadata": {"name": f"n1-{driver}"},
        "spec": {"driver": driver, "nodeName": "n1", "pool": pool, "devices": [device]},
    }


HALF = {"exactly": {"deviceClassName": "gpu.carrel.dev", "capacity": {"requests": {"memory": "8138Mi"}}}}
ALTERNATIVES = {"firstAvailable": [{"name": "small", **HALF["exactly"]}]}
WHOLE_GPU = {"exactly": {"deviceClassName": "gpu.carrel.dev"}}
ELSEWHERE = {"exactly": {"deviceClassName": "nic.example", "capacity": {"requests": {"memory": "1Gi"}}}}


async def create_claim(request: Json, *slices: Json, kind: str = "ResourceClaim", dra: bool = True) -> str:
    """Why it is refused; empty: it is not."""
    body: Json = {"devices": {"requests": [{"name": "gpu", **request}]}}
    claim = {"metadata": {"name": "half"}, "spec": body if kind == "ResourceClaim" else {"spec": body}}
    cluster = ReviewedCluster(dra=dra, slices=slices)
    answer = await cluster.ask(review(claim, kind=kind))
    return "" if answer.allowed else answer.message


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("asked", [HALF, ALTERNATIVES], ids=["exactly", "among alternatives"])
async def test_where_the_api_server_drops_the_memory_of_claims_one_that_names_it_is_refused(
    kind: str, asked: Json
) -> None:
    why = await create_claim(asked, a_slice(divides=False), kind=kind)
    assert why.startswith(f"{kind} lab/half: it names an amount of memory, and claims get whole GPUs in this cluster")
    assert "DRAConsumableCapacity" in why


@pytest.mark.parametrize(
    ("asked", "slices", "dra"),
    [
        pytest.param(HALF, [a_slice(divides=True)], True, id="memory can be divided"),
        pytest.param(WHOLE_GPU, [a_slice(divides=False)], True, id="a whole GPU"),
        pytest.param(ELSEWHERE, [a_slice(divides=False)], True, id="no GPU"),
        pytest.param(HALF, [], True, id="no slice says yet what can be had"),
        pytest.param(HALF, [a_slice(divides=False, driver="gpu.nvidia.com")], True, id="only another driver"),
        pytest.param(HALF, [a_slice(divides=False)], False, id="claims are not counted"),
    ],
)
async def test_other_claims_are_not_refused_when_they_are_created(asked: Json, slices: list[Json], dra: bool) -> None:
    assert await create_claim(asked, *slices, dra=dra) == ""
