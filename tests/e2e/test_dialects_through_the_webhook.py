"""Pods as people write them, through the real webhook onto a real kubelet, in native and in coexist mode.

HAMi's: nothing advertises `nvidia.com/gpumem`, and two GPUs are fewer than five pods. They run because the webhook
records what they ask for and takes the resources off them. KAI's fractions and GpuClaims ask the kubelet for nothing.
"""

import json
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.carrel_cluster import CarrelCluster
from tests.e2e.carrel_node import TELL, carrel_node
from tests.e2e.pods import Json, eventually, namespace, pod, wait_for_phase
from tests.e2e.test_coexist import coexist_node
from tests.e2e.webhook import UserClient, Webhook, sealed_with

GPUS = [{"count": 2, "model": "Tesla-V100", "memoryMiB": 9_999}]
"""Three pods of 3000 MiB fit on one of them."""
LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
NAMES = tuple("abcde")
CLAIM = "gpu.scheduling/claim"


@pytest.fixture(scope="module", params=["native", "coexist"])
def cluster(request: pytest.FixtureRequest) -> Iterator[CarrelCluster]:
    with sealed_with("a key that nobody knows"):
        if request.param == "native":
            with carrel_node("hami-native", GPUS, {"memory": {"resource": "node"}}) as node:
                Webhook(node.api, "--api-url", "").install()
                yield node
        else:
            with coexist_node(yaml.safe_dump({"gpus": GPUS})) as node:
                Webhook(node.api, "--api-url", "").install()
                yield node


def told(cluster: CarrelCluster, ours: str, name: str) -> dict[str, str]:
    """What the container sees in its environment."""

    def lines() -> list[str]:
        logs = cluster.api.kubectl("--namespace", ours, "logs", name).splitlines()
        return logs if logs and logs[-1] == "told" else []

    return dict(line.split("=", 1) for line in eventually(lines)[:-1])


def test_five_pods_of_3000_mib_run_on_two_gpus(cluster: CarrelCluster) -> None:
    alice = UserClient(cluster.api, "alice")
    with namespace(cluster.api) as ours:
        for name in NAMES:
            manifest = pod(name, TELL, LIMITS)
            status, created = alice.call("POST", f"/api/v1/namespaces/{ours}/pods", manifest)
            assert status == 201, created
            assert "nvidia.com/gpumem" not in json.dumps(created["spec"])
            assert json.loads(created["metadata"]["annotations"]["carrel.dev/hami"]) == {
                "containers": {"main": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}}
            }
        for name in NAMES:
            wait_for_phase(cluster.api, ours, name, "Running")

        seen = [told(cluster, ours, name) for name in NAMES]
        gpus = Counter(each["NVIDIA_VISIBLE_DEVICES"] for each in seen)
        assert sorted(gpus.values()) == [2, 3] and all(uuid.startswith("GPU-") for uuid in gpus)
        assert {each["CUDA_DEVICE_MEMORY_LIMIT"] for each in seen} == {"3000m"}

        # The record is the webhook's: who writes it, or changes it, is refused.
        forged = pod("forged", TELL)
        forged["metadata"]["annotations"] = {"carrel.dev/hami": '{"containers":{"main":{"nvidia.com/gpu":1}}}'}
        status, answer = alice.call("POST", f"/api/v1/namespaces/{ours}/pods", forged)
        assert status == 422 and "only Carrel's webhook writes" in answer["message"]
        change = {"metadata": {"annotations": {"carrel.dev/hami": "{}"}}}
        status, answer = alice.call("PATCH", f"/api/v1/namespaces/{ours}/pods/a", change)
        assert status == 403 and "carrel.dev/hami" in answer["message"]


def test_halves_of_a_gpu_and_a_claim_see_the_gpus_that_they_were_given(cluster: CarrelCluster) -> None:
    alice = UserClient(cluster.api, "alice")
    claim = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
    claim |= {"spec": {"devices": {"count": 1, "exclusivity": "Exclusive"}}}
    asked = {"half-1": {"gpu-fraction": "0.5"}, "half-2": {"gpu-fraction": "0.5"}, "claims": {CLAIM: "one"}}
    # Else the halves lie where the pods of the test before end first.
    eventually(lambda: not any(cluster.held().values()), limit_s=180)
    with namespace(cluster.api) as ours:
        status, answer = alice.call("POST", f"/apis/gpu.scheduling/v1/namespaces/{ours}/gpuclaims", claim)
        assert status == 201, answer
        for name, notes in asked.items():
            manifest = pod(name, TELL)
            manifest["metadata"]["annotations"] = notes
            status, answer = alice.call("POST", f"/api/v1/namespaces/{ours}/pods", manifest)
            assert status == 201, answer
            assert answer["spec"]["schedulerName"] == "gpu-scheduler"
        placed = {name: wait_for_phase(cluster.api, ours, name, "Running") for name in asked}

        seen = {name: told(cluster, ours, name)["NVIDIA_VISIBLE_DEVICES"] for name in asked}
        gpus = devices(cluster)
        assert seen["half-1"] == seen["half-2"] != seen["claims"]
        assert set(seen.values()) == gpus.keys()
        for name, each in placed.items():
            assert each["metadata"]["annotations"]["carrel.dev/devices"] == seen[name]
        allocated = placed["claims"]["metadata"]["annotations"]["gpu.scheduling/allocated"]
        assert allocated == f"{placed['claims']['spec']['nodeName']}:{gpus[seen['claims']]}"
        path = f"/apis/gpu.scheduling/v1/namespaces/{ours}/gpuclaims/one"
        eventually(lambda: cluster.api.call("GET", path).get("status", {}).get("phase") == "Bound")


def devices(cluster: CarrelCluster) -> dict[str, int]:
    """UUID → index."""
    (status,) = cluster.api.call("GET", "/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
    found: list[Json] = status["status"]["devices"]
    return {each["uuid"]: each["id"] for each in found}
