"""A pod that has a ResourceClaim for a GPU and asks in another dialect too is refused, with the reason."""

import pytest

from tests.kit.reviews import Json, ReviewedCluster, a_pod, review

SHARE = {"aliyun.com/gpu-mem": "8138"}


def spec(device_class: str) -> Json:
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class, "count": 1}}]}}


def a_cluster(device_class: str = "gpu.carrel.dev", *, dra: bool = True) -> ReviewedCluster:
    """With a claim `mine` and a template `each` of that class; the class `large` selects our driver by CEL."""
    by_driver = [{"cel": {"expression": "device.driver == 'gpu.carrel.dev' && device.attributes.size() > 0"}}]
    return ReviewedCluster(
        dra=dra,
        resource_claims=[{"metadata": {"name": "mine", "namespace": "lab"}, "spec": spec(device_class)}],
        claim_templates=[{"metadata": {"name": "each", "namespace": "lab"}, "spec": {"spec": spec(device_class)}}],
        device_classes=[{"metadata": {"name": "large"}, "spec": {"selectors": by_driver}}],
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


async def test_a_pod_with_a_claim_alone_passes_and_its_claim_is_judged_when_it_is_allocated() -> None:
    answer = await a_cluster().create(a_pod(resourceClaims=BY_CLAIM))
    assert answer.allowed
    assert "carrel.dev/tier" not in answer.annotations


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
