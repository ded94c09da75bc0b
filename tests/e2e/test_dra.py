"""ResourceClaims and pods of other dialects on one real node: one ledger, real containers, any scheduler."""

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from testbed.build import release
from tests.e2e.carrel_node import MEM, CarrelNode, a_pod
from tests.e2e.claim_node import claim_node, slices, with_claim
from tests.e2e.pods import create, eventually, namespace, wait_for_phase

TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"
HALF = {"resourceClaimTemplateName": "half"}
ONE_GPU = [{"count": 1, "model": "Tesla-V100", "memoryMiB": 16276}]

pytestmark = pytest.mark.skipif(
    tuple(map(int, release().split(".")[:2])) < (1, 36), reason="memory of claims is off before Kubernetes 1.36"
)


@pytest.fixture(scope="module")
def carrel() -> Iterator[CarrelNode]:
    with claim_node("dra", ONE_GPU) as found:
        yield found


def template(carrel: CarrelNode, where: str, name: str, memory: str = "") -> None:
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.carrel.dev", **capacity}}]
    body = {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}
    carrel.api.call("POST", TEMPLATES.format(where), body)


def shares(carrel: CarrelNode) -> dict[str, Any]:
    """`pod lab/x` or `claim lab/x` → MiB, of the one GPU."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/carrel/leases/gpu-{carrel.node.name}-0"
    try:
        notes = carrel.api.call("GET", path)["metadata"]["annotations"]
    except urllib.error.HTTPError as error:
        assert error.code == 404, error
        return {}
    told = json.loads(notes["carrel.dev/shares"]).values()
    return {("claim" if "claim" in each else "pod"): each.get("mib") for each in told}


def test_the_slice_offers_memory_that_can_be_divided(carrel: CarrelNode) -> None:
    (found,) = slices(carrel)
    (device,) = found["spec"]["devices"]
    assert device["capacity"]["memory"]["value"] == "16276Mi"
    assert device["allowMultipleAllocations"] is True


def test_one_gpu_is_shared_by_a_pod_of_gpushare_and_a_claim_and_never_exceeded(carrel: CarrelNode) -> None:
    uuid = carrel.devices()[0]["uuid"]
    with namespace(carrel.api) as name:
        template(carrel, name, "half", "8138Mi")
        carrel.run(name, a_pod("share", {MEM: "8138"}))
        _, told = carrel.run(name, with_claim("claims", HALF))
        assert told["NVIDIA_VISIBLE_DEVICES"] == uuid
        assert shares(carrel) == {"pod": 8138, "claim": 8138}

        create(carrel.api, name, with_claim("late", HALF))

        def refused() -> str:
            events = carrel.api.call("GET", f"/api/v1/namespaces/{name}/events")["items"]
            return next((each["message"] for each in events if "0 MiB free, 8,138 MiB asked" in each["message"]), "")

        assert "held by" in eventually(refused), "the scheduler's Event has our words"
        carrel.api.call("DELETE", f"/api/v1/namespaces/{name}/pods/share")
        wait_for_phase(carrel.api, name, "late", "Running")
        assert shares(carrel) == {"claim": 8138}
    eventually(lambda: shares(carrel) == {})
