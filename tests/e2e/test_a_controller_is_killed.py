"""The controller is killed after each of its writes in turn: on a real API server no workload is lost, none doubled."""

import json
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.carrel_cluster import CarrelCluster, a_node, carrel_cluster
from tests.e2e.configuration import OURS
from tests.e2e.counting_proxy import counting_proxy
from tests.e2e.pods import create, eventually, is_gone, namespace, pod

LOW = {"carrel.dev/tier": "opportunistic", "terminate-at": "1900-01-01T08:00:00Z"}
ADA = "ada@lab.example"
HIGH = {"carrel.dev/tier": "booked", "terminate-at": "2099-01-01T00:00:00Z", "carrel.dev/user": ADA}
LIMIT_S = 180
ELECTION = f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases/carrel-controller"
MOST_WRITES = 30
"""A hand-over takes about a dozen. More would mean that a controller never comes to rest."""


@pytest.fixture(scope="module")
def cluster_of_carrel() -> Iterator[CarrelCluster]:
    with carrel_cluster("tiers-killed", [a_node("n1", [16276] * 2)]) as cluster:
        cluster.api.start_scheduler()  # for the pods that have no GPU any more
        cluster.controller.stop()
        cluster.book("enough", ADA, gpus=100)
        yield cluster


def a_gpu_pod(name: str, annotations: dict[str, str]) -> dict[str, Any]:
    manifest = pod(name, limits={"nvidia.com/gpu": "1"}, schedulerName="gpu-scheduler")
    manifest["metadata"]["annotations"] = annotations
    return manifest


def is_counted(method: str, path: str) -> bool:
    """Who leads is renewed all the time, and is about nobody's pod."""
    return "/leases/carrel-controller" not in path and not (method == "POST" and path.endswith(f"/{OURS}/leases"))


def no_leader(cluster: CarrelCluster) -> None:
    """A leader that was killed is succeeded when its Lease has run out; here nobody waits for that."""
    try:
        cluster.api.call("DELETE", ELECTION)
    except urllib.error.HTTPError as error:
        assert error.code == 404


def revoke_once(cluster: CarrelCluster, ours: str, kill_after: int) -> bool:
    """One revocation with a controller that dies after so many writes, and another after it. Whether it died."""
    for name in ("first", "second"):
        create(cluster.api, ours, a_gpu_pod(name, LOW))
    eventually(lambda: all(runs(cluster, ours, name) for name in ("first", "second")), LIMIT_S)
    before = {name: each["metadata"]["uid"] for name, each in cluster.pods(ours).items()}
    no_leader(cluster)
    with counting_proxy(cluster.api, is_counted) as proxy:
        controller = cluster.start_controller("--server", proxy.url)
        proxy.on_write = lambda number: controller.program.kill() if number == kill_after else None
        create(cluster.api, ours, a_gpu_pod("urgent", HIGH))
        eventually(lambda: controller.program.poll() is not None or is_over(cluster, ours), LIMIT_S)
        died = controller.program.poll() is not None
        controller.program.kill()
        controller.program.wait()
        assert len(proxy.writes) <= MOST_WRITES, proxy.writes
    no_leader(cluster)
    successor = cluster.start_controller("--kubeconfig", cluster.api.kubeconfig)
    eventually(lambda: is_over(cluster, ours), LIMIT_S)
    pods = cluster.pods(ours)
    assert pods.keys() == {"first", "second", "urgent"}, "no workload is lost, none is doubled"
    marks = {name: mark(each) for name, each in pods.items()}
    victims = [name for name, said in marks.items() if said]
    assert len(victims) == 1, "no victim is superfluous"
    assert marks[victims[0]]["from"] == before[victims[0]], "the successor of the pod, not of a successor"
    leave(cluster, ours)
    successor.stop()
    return died


def leave(cluster: CarrelCluster, ours: str) -> None:
    for name in cluster.pods(ours):
        path = f"/api/v1/namespaces/{ours}/pods/{name}"
        cluster.api.call("DELETE", path)
        eventually(lambda path=path: is_gone(cluster.api, path))  # type: ignore[misc] # bound now
    eventually(lambda: not cluster.held(), LIMIT_S)


def runs(cluster: CarrelCluster, ours: str, name: str) -> bool:
    each = cluster.pods(ours).get(name)
    return each is not None and each["status"]["phase"] == "Running" and "deletionTimestamp" not in each["metadata"]


def mark(each: dict[str, Any]) -> Any:
    return json.loads(each["metadata"].get("annotations", {}).get("carrel.dev/handed-over", "null"))


def is_over(cluster: CarrelCluster, ours: str) -> bool:
    """All three run, nothing is left to be handed over, and nothing is kept for anybody."""
    if not all(runs(cluster, ours, name) for name in ("first", "second", "urgent")):
        return False
    records = cluster.api.call("GET", f"/api/v1/namespaces/{OURS}/configmaps?labelSelector=carrel.dev/handover")
    leases = cluster.api.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{OURS}/leases")["items"]
    kept = [each for each in leases if "carrel.dev/kept-for" in each["metadata"].get("annotations", {})]
    return not records["items"] and not kept


def test_a_controller_that_is_killed_after_any_of_its_writes_loses_and_doubles_nothing(
    cluster_of_carrel: CarrelCluster,
) -> None:
    cluster = cluster_of_carrel
    kills = 0
    while True:
        with namespace(cluster.api) as ours:
            died = revoke_once(cluster, ours, kill_after=kills + 1)
        if not died:
            break
        kills += 1
    assert kills >= 8, "kept, intended, told, manifest kept and named, ended, created, closed"
