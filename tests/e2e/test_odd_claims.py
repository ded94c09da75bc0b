"""ResourceClaims that ask in unusual ways, all at once on one real node: what each gets, and what its Leases say.

All are asked for before the first is looked at: the tests only read, apart from the last two.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.carrel_node import CarrelNode
from tests.e2e.claim_node import RESOURCES, claim_node, since_1_36, slices, with_claim
from tests.e2e.pods import Json, create, eventually, is_gone, namespace, wait_for_phase

pytestmark = since_1_36

V100 = {"count": 3, "model": "Tesla-V100-SXM2", "memoryMiB": 16276, "perIsland": 3, "bandwidthGBps": 300}
A100 = {"count": 1, "model": "NVIDIA-A100-SXM4", "memoryMiB": 40960}
OURS, NVIDIAS = "gpu.carrel.dev", "gpu.nvidia.com"


def exactly(memory: str = "", **more: Any) -> Json:
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    return {"deviceClassName": OURS, **capacity, **more}


def chosen_by(expression: str, **more: Any) -> Json:
    return {"selectors": [{"cel": {"expression": expression}}], **more}


LINKED = {"constraints": [{"matchAttribute": f"{OURS}/island"}]}
ALTERNATIVES = [{"name": "huge", **exactly("100Gi")}, {"name": "small", **exactly("4Gi")}]
AS_FOR_NVIDIA = (
    f'device.attributes["{NVIDIAS}"].type == "gpu" && device.attributes["{NVIDIAS}"].productName.matches("A100")'
    f' && device.capacity["{NVIDIAS}"].memory.compareTo(quantity("40Gi")) >= 0'
)
CLAIMS: Mapping[str, Json] = {
    "two": {"requests": [{"name": "gpu", "exactly": exactly("2000M", count=2)}]},
    "linked": {"requests": [{"name": "gpu", "exactly": exactly("1500k", count=2)}], **LINKED},
    "first-available": {"requests": [{"name": "gpu", "firstAvailable": ALTERNATIVES}]},
    "nothing": {"requests": [{"name": "gpu", "exactly": exactly("0")}]},
    "for-nvidia": {"requests": [{"name": "gpu", "exactly": chosen_by(AS_FOR_NVIDIA, deviceClassName=NVIDIAS)}]},
    "shared": {"requests": [{"name": "gpu", "exactly": exactly("1Gi")}]},
    "unknown-class": {"requests": [{"name": "gpu", "exactly": exactly(deviceClassName="gpu.nobody.example")}]},
    "no-pod": {"requests": [{"name": "gpu", "exactly": exactly()}]},
}
PODS = {**{name: name for name in CLAIMS if name != "no-pod"}, "also-shared": "shared"}


class Claims:
    def __init__(self, carrel: CarrelNode, where: str) -> None:
        self.carrel, self.where = carrel, where
        self.uuids = [each["uuid"] for each in carrel.devices()]

    def claim(self, name: str) -> Json:
        found: Json = self.carrel.api.call("GET", f"{RESOURCES}/namespaces/{self.where}/resourceclaims/{name}")
        return found

    def held(self, name: str) -> dict[str, int | None]:
        """UUID of a GPU → MiB that its Lease gives to the claim; None: the whole GPU."""
        uid = self.claim(name)["metadata"]["uid"]
        leases = self.carrel.api.call("GET", "/apis/coordination.k8s.io/v1/namespaces/carrel/leases")["items"]
        notes = [each["metadata"].get("annotations", {}) for each in leases]
        of_gpus = [each for each in notes if "carrel.dev/gpu" in each]
        told = [(each["carrel.dev/gpu"], json.loads(each["carrel.dev/shares"])) for each in of_gpus]
        return {gpu: shares[uid].get("mib") for gpu, shares in told if uid in shares}

    def sees(self, pod: str) -> set[str]:
        wait_for_phase(self.carrel.api, self.where, pod, "Running")
        return set(self.carrel.told(self.where, pod)["NVIDIA_VISIBLE_DEVICES"].split(","))

    def pod(self, name: str) -> Json:
        found: Json = self.carrel.api.call("GET", f"/api/v1/namespaces/{self.where}/pods/{name}")
        return found

    def delete(self, pod: str) -> None:
        path = f"/api/v1/namespaces/{self.where}/pods/{pod}"
        self.carrel.api.call("DELETE", path)
        eventually(lambda: is_gone(self.carrel.api, path))


@pytest.fixture(scope="module")
def claims() -> Iterator[Claims]:
    with claim_node("odd-claims", [V100, A100]) as carrel, namespace(carrel.api) as where:
        for name, devices in CLAIMS.items():
            path = f"{RESOURCES}/namespaces/{where}/resourceclaims"
            carrel.api.call("POST", path, {"metadata": {"name": name}, "spec": {"devices": devices}})
        for pod, claim in PODS.items():
            create(carrel.api, where, with_claim(pod, {"resourceClaimName": claim}))
        yield Claims(carrel, where)


def test_two_gpus_are_different_ones_and_amounts_are_rounded_up_to_whole_mib(claims: Claims) -> None:
    assert len(claims.sees("two")) == 2
    assert claims.held("two") == dict.fromkeys(claims.sees("two"), 1908)


def test_gpus_that_must_be_linked_are_of_one_island(claims: Claims) -> None:
    seen = claims.sees("linked")
    assert claims.held("linked") == dict.fromkeys(seen, 2)
    assert len(seen) == 2 and seen < set(claims.uuids[:3]), "the last GPU has no link"


def test_of_alternatives_the_first_that_can_be_had_counts(claims: Claims) -> None:
    (gpu,) = claims.sees("first-available")
    assert claims.held("first-available") == {gpu: 4096}


def test_no_memory_at_all_is_a_mebibyte(claims: Claims) -> None:
    (gpu,) = claims.sees("nothing")
    assert claims.held("nothing") == {gpu: 1}


def test_a_claim_for_nvidias_driver_runs_unchanged_and_gets_the_whole_gpu(claims: Claims) -> None:
    assert claims.sees("for-nvidia") == {claims.uuids[3]}
    assert claims.held("for-nvidia") == {claims.uuids[3]: None}


def test_a_class_that_does_not_exist_holds_nothing_and_the_pod_is_told(claims: Claims) -> None:
    def told() -> bool:
        events = claims.carrel.api.call("GET", f"/api/v1/namespaces/{claims.where}/events")["items"]
        return any("gpu.nobody.example" in each["message"] for each in events)

    eventually(told)
    assert claims.held("unknown-class") == {}


def test_a_claim_without_a_pod_holds_nothing(claims: Claims) -> None:
    assert claims.held("no-pod") == {}
    assert "allocation" not in claims.claim("no-pod").get("status", {})


def test_two_pods_of_one_claim_share_its_gpu_until_the_last_has_ended(claims: Claims) -> None:
    (gpu,) = claims.sees("shared")
    assert claims.sees("also-shared") == {gpu}
    assert claims.held("shared") == {gpu: 1024}
    claims.delete("shared")
    assert claims.held("shared") == {gpu: 1024}
    claims.delete("also-shared")
    eventually(lambda: claims.held("shared") == {})


def test_the_kubelet_shows_whether_the_gpu_of_a_claim_is_well(claims: Claims) -> None:
    def health() -> list[str]:
        (container,) = claims.pod("for-nvidia")["status"]["containerStatuses"]
        told = container.get("allocatedResourcesStatus", [])
        return [each["health"] for status in told for each in status["resources"]]

    def taints() -> list[str]:
        devices, name = slices(claims.carrel)[0]["spec"]["devices"], claims.uuids[3].lower()
        (device,) = [each for each in devices if each["name"] == name]
        return [each["key"] for each in device.get("taints", [])]

    eventually(lambda: health() == ["Healthy"])
    claims.carrel.simulate([V100, {**A100, "unusable": "XID 79"}])
    eventually(lambda: health() == ["Unhealthy"])
    eventually(lambda: taints() == ["carrel.dev/unusable"])  # the kubelet may hear of it before the slice is written
    claims.carrel.simulate([V100, A100])
    eventually(lambda: health() == ["Healthy"])
