import pytest

from testbed.control_plane import ApiServer
from testbed.fixtures import HOLLOW_NODES
from tests.e2e.pods import create, eventually, is_gone, namespace, phase, pod, wait_for_phase

GPUS, GPU_MIB = 4, 40960
NODE_STATUSES = "/apis/gpu.scheduling/v1/gpunodestatuses"


@pytest.mark.parametrize(
    ("resource", "amount"),
    [
        pytest.param("nvidia.com/gpu", GPUS, id="whole GPUs"),
        pytest.param("aliyun.com/gpu-count", GPUS, id="GPUs to share"),
        pytest.param("aliyun.com/gpu-mem", GPUS * GPU_MIB, id="memory of all GPUs"),
    ],
)
def test_a_hollow_node_advertises_its_gpus(cluster: ApiServer, resource: str, amount: int) -> None:
    status = cluster.call("GET", "/api/v1/nodes/hollow-0")["status"]
    assert status["allocatable"][resource] == str(amount)


def test_a_pod_gets_a_hollow_node_from_the_real_scheduler_and_runs(cluster: ApiServer) -> None:
    with namespace(cluster) as name:
        create(cluster, name, pod("one", limits={"nvidia.com/gpu": "1"}))
        placed = wait_for_phase(cluster, name, "one", "Running")
    assert placed["spec"]["nodeName"].startswith("hollow-")


def test_no_more_pods_run_than_there_are_gpus(cluster: ApiServer) -> None:
    with namespace(cluster) as name:
        for number in range(HOLLOW_NODES + 1):
            create(cluster, name, pod(f"whole-node-{number}", limits={"nvidia.com/gpu": str(GPUS)}))

        def phases() -> list[str]:
            return sorted(phase(cluster, name, f"whole-node-{number}") for number in range(HOLLOW_NODES + 1))

        eventually(lambda: phases() == ["Pending", *["Running"] * HOLLOW_NODES])
        events = f"/api/v1/namespaces/{name}/events?fieldSelector=reason=FailedScheduling"
        refusals = eventually(lambda: cluster.call("GET", events)["items"])
        assert "Insufficient nvidia.com/gpu" in refusals[0]["message"]


def test_a_deleted_pod_has_its_grace_period_and_is_removed(cluster: ApiServer) -> None:
    with namespace(cluster) as name:
        create(cluster, name, pod("leaves", terminationGracePeriodSeconds=30))
        wait_for_phase(cluster, name, "leaves", "Running")
        path = f"/api/v1/namespaces/{name}/pods/leaves"
        assert cluster.call("DELETE", path)["metadata"]["deletionGracePeriodSeconds"] == 30
        eventually(lambda: is_gone(cluster, path), limit_s=20)


def test_gpus_are_reported_once_their_kind_is_defined(cluster: ApiServer) -> None:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    definition = {
        "metadata": {"name": "gpunodestatuses.gpu.scheduling"},
        "spec": {
            "group": "gpu.scheduling",
            "scope": "Cluster",
            "names": {"plural": "gpunodestatuses", "kind": "GpuNodeStatus"},
            "versions": [version],
        },
    }
    cluster.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    eventually(lambda: not is_gone(cluster, f"{NODE_STATUSES}/hollow-0"))
    status = cluster.call("GET", f"{NODE_STATUSES}/hollow-0")["status"]
    assert status["total"] == GPUS
    assert [device["memoryMiB"] for device in status["devices"]] == [GPU_MIB] * GPUS
