"""The real kube-scheduler on the embedded API: it finds every kind that it follows, and places Carrel's pods.

Its streaming lists, its protobuf, its leader's Lease and its Events are those of production. The log must be clean.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.e2e.carrel_cluster import a_node
from tests.e2e.embedded_cluster import EmbeddedCluster, Json, embedded_cluster
from tests.e2e.pods import eventually, pod

COMPLAINT = re.compile(r"^[EF]\d{4} |Unhandled Error|[Ff]ailed to (list|watch)|could not find the requested resource")


@pytest.fixture(scope="module")
def cluster_in_memory() -> Iterator[EmbeddedCluster]:
    with embedded_cluster([a_node("n1", [16276] * 2), a_node("n2", [16276] * 2, "aa")]) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def clean_log(cluster_in_memory: EmbeddedCluster) -> Iterator[None]:
    yield
    log = cluster_in_memory.scheduler.log.read_text()
    assert [line for line in log.splitlines() if COMPLAINT.search(line)] == []


def a_pod(name: str, limits: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None) -> Json:
    manifest = pod(name, limits=limits, schedulerName="gpu-scheduler")
    manifest["metadata"]["annotations"] = dict(annotations or {})
    return manifest


def is_running(cluster: EmbeddedCluster, name: str) -> Json | None:
    found = cluster.get("pod", name)
    return found if found["status"]["phase"] == "Running" else None


def placed(cluster: EmbeddedCluster, manifest: Json) -> Json:
    cluster.kubectl("apply", "-f", "-", given=manifest)
    found = eventually(lambda: is_running(cluster, manifest["metadata"]["name"]), limit_s=120)
    assert found is not None
    return found


def test_a_pod_that_shares_a_gpu_is_placed_and_annotated(cluster_in_memory: EmbeddedCluster) -> None:
    found = placed(cluster_in_memory, a_pod("shares", {"aliyun.com/gpu-mem": "8138"}))
    told = found["metadata"]["annotations"]
    assert (told["ALIYUN_COM_GPU_MEM_POD"], told["ALIYUN_COM_GPU_MEM_DEV"]) == ("8138", "16276")
    assert told["carrel.dev/devices"].startswith(f"GPU-{found['spec']['nodeName']}-")


def test_a_pod_with_a_claim_is_placed_and_annotated(cluster_in_memory: EmbeddedCluster) -> None:
    claim: dict[str, Any] = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "pair"}}
    claim["spec"] = {"devices": {"count": 2}, "topology": {"mode": "Required"}}
    cluster_in_memory.kubectl("apply", "-f", "-", given=claim)
    found = placed(cluster_in_memory, a_pod("claims", annotations={"gpu.scheduling/claim": "pair"}))
    assert found["spec"]["nodeName"] == "n2", "only its GPUs are linked"
    assert found["metadata"]["annotations"]["gpu.scheduling/allocated"] == "n2:0,1"


def test_a_pod_with_a_whole_gpu_is_placed_and_the_next_waits_with_the_reason(
    cluster_in_memory: EmbeddedCluster,
) -> None:
    cluster = cluster_in_memory
    found = placed(cluster, a_pod("whole", {"nvidia.com/gpu": "1"}))
    assert found["spec"]["nodeName"] == "n1", "both GPUs of n2 are claimed"
    cluster.kubectl("apply", "-f", "-", given=a_pod("waits", {"nvidia.com/gpu": "1"}))
    # The reason comes from the extender; kube-scheduler writes it, as an Event of the group events.k8s.io.
    eventually(lambda: "0 of 2" in cluster.kubectl("events", "--for", "pod/waits"), limit_s=120)
    assert "FailedScheduling" in cluster.kubectl("events", "--for", "pod/waits")
    cluster.kubectl("delete", "pod", "whole", "--wait=false")
    eventually(lambda: is_running(cluster, "waits"), limit_s=120)


def test_the_scheduler_leads_by_a_lease(cluster_in_memory: EmbeddedCluster) -> None:
    eventually(lambda: "Successfully acquired lease" in cluster_in_memory.scheduler.log.read_text())
    lease = cluster_in_memory.get("lease", "gpu-scheduler", "-n", "kube-system")
    assert lease["spec"]["holderIdentity"]


def test_a_pod_of_kais_scheduler_that_asks_for_no_gpu_is_placed(cluster_in_memory: EmbeddedCluster) -> None:
    found = placed(cluster_in_memory, pod("of-kai", schedulerName="kai-scheduler"))
    assert found["spec"]["nodeName"] in ("n1", "n2")


def test_the_pods_of_a_job_that_does_not_say_the_size_of_its_gang_wait_for_the_last_one(
    cluster_in_memory: EmbeddedCluster,
) -> None:
    notes = {"gpu-fraction": "0.1", "pod-group-name": "gang-of-a-job"}
    template = {"metadata": {"annotations": notes}, "spec": {"restartPolicy": "Never", "containers": [A_CONTAINER]}}
    job: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gang"}}
    cluster_in_memory.kubectl("apply", "-f", "-", given={**job, "spec": {"parallelism": 2, "template": template}})
    uid = cluster_in_memory.get("job", "gang")["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "gang", "uid": uid, "controller": True}

    members = [a_pod(f"gang-{i}", annotations=notes) for i in range(2)]
    for member in members:
        member["metadata"]["ownerReferences"] = [owner]
    cluster_in_memory.kubectl("apply", "-f", "-", given=members[0])
    eventually(lambda: ONE_MISSING in why_waiting(cluster_in_memory, "gang-0"), limit_s=120)

    placed(cluster_in_memory, members[1])
    eventually(lambda: is_running(cluster_in_memory, "gang-0"), limit_s=120)


A_CONTAINER = {"name": "main", "image": "work"}
ONE_MISSING = "gang default/gang-of-a-job waits for 1 more member: 1 of 2 are here"


def why_waiting(cluster: EmbeddedCluster, name: str) -> str:
    """The last Event of the controller about it."""
    events = cluster.get("events", f"--field-selector=involvedObject.name={name},reason=WaitingForGPU")["items"]
    return str(max(events, key=lambda each: each["lastTimestamp"])["message"]) if events else ""
