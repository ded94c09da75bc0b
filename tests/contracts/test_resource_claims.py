"""ResourceClaims, as schedulers and Carrel write and read them."""

from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Invalid, Json, Selection
from carrel.resource_claims.objects import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS

MIB_8138: Json = {"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev"}}
SPEC: Json = {"devices": {"requests": [MIB_8138]}}
POD = {"resource": "pods", "name": "train", "uid": "e3674258-0000-4000-8000-000000000001"}


def allocation(device: str = "gpu-0", **more: Any) -> Json:
    result = {"request": "gpu", "driver": "gpu.carrel.dev", "pool": "n1", "device": device, **more}
    names = [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
    return {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": names}]},
    }


@pytest.fixture
async def claim(cluster: Client, namespace: str) -> Json:
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "train-gpu"}}
    return await cluster.create(RESOURCE_CLAIMS, {**body, "spec": SPEC}, namespace)


async def with_status(cluster: Client, claim: Json, **status: Any) -> Json:
    return await cluster.update(RESOURCE_CLAIMS, {**claim, "status": status}, subresource="status")


async def test_an_allocated_claim_is_read_with_its_devices_and_pods(cluster: Client, claim: Json) -> None:
    await with_status(cluster, claim, allocation=allocation(), reservedFor=[POD])

    (found,) = (await cluster.list(RESOURCE_CLAIMS, Selection(claim["metadata"]["namespace"]))).items
    assert found.spec.devices.requests[0].exactly is not None
    assert found.spec.devices.requests[0].exactly.count == 1, "the server's default"
    assert found.status.allocation is not None
    (device,) = found.status.allocation.devices.results
    assert (device.driver, device.pool, device.device) == ("gpu.carrel.dev", "n1", "gpu-0")
    assert [(each.is_pod, each.uid) for each in found.status.reserved_for] == [(True, POD["uid"])]


async def test_an_allocation_is_removed_and_never_changed(cluster: Client, claim: Json) -> None:
    allocated = await with_status(cluster, claim, allocation=allocation())
    with pytest.raises(Invalid, match=r"status\.allocation: .*cannot be modified once set"):
        await with_status(cluster, allocated, allocation=allocation("gpu-1"))

    free = await with_status(cluster, allocated)
    assert "allocation" not in free.get("status", {})
    again = await with_status(cluster, free, allocation=allocation("gpu-1"))
    assert again["status"]["allocation"]["devices"]["results"][0]["device"] == "gpu-1"


async def test_a_claim_that_is_not_allocated_is_reserved_for_nobody(cluster: Client, claim: Json) -> None:
    with pytest.raises(Invalid, match=r"status\.reservedFor"):
        await with_status(cluster, claim, reservedFor=[POD])


async def test_what_a_claim_asks_for_never_changes(cluster: Client, claim: Json) -> None:
    other = {"devices": {"requests": [{**MIB_8138, "name": "other"}]}}
    with pytest.raises(Invalid, match="immutable"):
        await cluster.update(RESOURCE_CLAIMS, {**claim, "spec": other})


async def test_the_claim_itself_and_its_status_are_written_apart(cluster: Client, claim: Json) -> None:
    written = await cluster.update(RESOURCE_CLAIMS, {**claim, "status": {"allocation": allocation()}})
    assert "allocation" not in written.get("status", {})


async def test_a_template_has_the_defaults_of_its_claims(cluster: Client, namespace: str) -> None:
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"}}
    await cluster.create(RESOURCE_CLAIM_TEMPLATES, {**body, "spec": {"spec": SPEC}}, namespace)

    (found,) = (await cluster.list(RESOURCE_CLAIM_TEMPLATES, Selection(namespace))).items
    wanted = found.spec.spec.devices.requests[0].exactly
    assert wanted is not None
    assert (wanted.device_class_name, wanted.allocation_mode, wanted.count) == ("gpu.carrel.dev", "ExactCount", 1)
