"""The real kube-scheduler with Carrel's extender: the documented figures, every dialect, gangs, and SIGKILL."""

import asyncio
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from carrel.cluster.state import ClusterState
from carrel.ids import GpuUuid
from carrel.kubernetes.client import Client
from carrel.kubernetes.config import access_to
from carrel.kubernetes.http_transport import HttpTransport
from carrel.scheduling.scheduler_config import Extender, cpu_scheduler_config, scheduler_config
from testbed.control_plane import LOOPBACK
from tests.e2e.carrel_cluster import CarrelCluster, a_node, carrel_cluster
from tests.e2e.configuration import own_configuration
from tests.e2e.pods import create, eventually, namespace, pod, wait_for_phase
from tests.e2e.webhook import given_secrets
from tests.kit.ports import free_port

EXAMPLES = [a_node(name, [16276] * 2) for name in ("n1", "n2", "n3")]
FOUR = [a_node("four", [16276] * 4)]
GANG = [a_node(f"gang-{number}", [40960] * 4, "aaaa") for number in range(4)]
MIXED = [a_node(f"mixed-{number:02}", [16276, 16276, 49140, 49140, 81920, 81920], "..aabb") for number in range(50)]


@pytest.fixture(scope="module")
def cluster_of_carrel() -> Iterator[CarrelCluster]:
    with carrel_cluster("scheduling", [*EXAMPLES, *FOUR, *GANG, *MIXED]) as cluster:
        yield cluster


def a_pod(
    name: str, on: str = "", annotations: Mapping[str, str] | None = None, limits: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """`on="n1,n2"`: only there."""
    spec: dict[str, Any] = {"schedulerName": "gpu-scheduler"}
    if on:
        terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": on.split(",")}]}]
        spec["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        }
    manifest = pod(name, limits=limits, **spec)
    manifest["metadata"]["annotations"] = dict(annotations or {})
    return manifest


def gpu_mem(mib: int) -> dict[str, str]:
    return {"aliyun.com/gpu-mem": str(mib)}


def a_claim(cluster: CarrelCluster, namespace: str, name: str, **spec: Any) -> None:
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": name}, "spec": spec}
    cluster.api.call("POST", f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims", body)


def run(cluster: CarrelCluster, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
    create(cluster.api, namespace, manifest)
    return wait_for_phase(cluster.api, namespace, manifest["metadata"]["name"], "Running")


def all_run(cluster: CarrelCluster, namespace: str, count: int) -> bool:
    running = [each for each in cluster.pods(namespace).values() if each["status"]["phase"] == "Running"]
    return len(running) == count


def say_why(cluster: CarrelCluster, namespace: str, name: str) -> str:
    words = ["why", f"pod/{name}", "--namespace", namespace, "--kubeconfig", str(cluster.api.kubeconfig)]
    return subprocess.check_output([sys.executable, "-m", "carrel", *words], text=True)


def check_leases(cluster: CarrelCluster, namespace: str) -> None:
    """Recomputed from Leases and Pods alone: no GPU oversubscribed, every pod has just the GPUs it was told."""
    memory = {gpu.uuid: gpu.memory for node in (*EXAMPLES, *FOUR, *GANG, *MIXED) for gpu in node.gpus}
    held = cluster.held()
    for place, shares in held.items():
        total = memory[GpuUuid(f"GPU-{place}")]
        assert sum(total if mib is None else mib for mib in shares.values()) <= total, (place, shares)
    for name, each in cluster.pods(namespace).items():
        told = each["metadata"].get("annotations", {}).get("carrel.dev/devices", "")
        has = {f"GPU-{place}" for place, shares in held.items() if each["metadata"]["uid"] in shares}
        assert set(told.split(",") if told else ()) == has, name


def test_three_nodes_and_gpu_mem_8138_only_n3_has_it_on_one_gpu(cluster_of_carrel: CarrelCluster) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        for number, (node, mib) in enumerate(
            [("n1", 16276), ("n1", 12207), ("n2", 12207), ("n2", 12207), ("n3", 8138), ("n3", 16276)]
        ):
            run(cluster, ours, a_pod(f"tenant-{number}", node, limits=gpu_mem(mib)))

        placed = run(cluster, ours, a_pod("asks", "n1,n2,n3", limits=gpu_mem(8138)))

        assert placed["spec"]["nodeName"] == "n3"
        notes = placed["metadata"]["annotations"]
        assert {key: value for key, value in notes.items() if "ASSUME_TIME" not in key} == {
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_DEV": "16276",
            "ALIYUN_COM_GPU_MEM_POD": "8138",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_GPU_ID": "0",
            "carrel.dev/devices": "GPU-n3-0",
            "carrel.dev/cgpu-disable": "false",
        }
        check_leases(cluster, ours)


def test_of_four_gpus_with_12207_8138_4069_16276_free_the_fullest_that_fits_is_chosen(
    cluster_of_carrel: CarrelCluster,
) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        for index, used in enumerate((4069, 8138, 12207)):
            devices = {"count": 1, "exclusivity": "Shared", "memoryMiB": used, "policy": "preferIds"}
            a_claim(cluster, ours, f"claim-{index}", devices={**devices, "preferIds": [index]})
            run(cluster, ours, a_pod(f"tenant-{index}", "four", {"gpu.scheduling/claim": f"claim-{index}"}))

        placed = run(cluster, ours, a_pod("asks", "four", limits=gpu_mem(8138)))

        assert placed["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"


def test_a_waiting_pod_has_the_reason_and_is_placed_when_the_gpu_is_free(cluster_of_carrel: CarrelCluster) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        for name in ("a", "b"):
            run(cluster, ours, a_pod(name, "n1", limits=gpu_mem(16276)))
        create(cluster.api, ours, a_pod("waits", "n1", {"gpu-fraction": "0.5"}))

        # kube-scheduler counts equal reasons together, and shows them in the pod's condition and Event.
        why = "1 room on 0 of 2 GPUs"
        eventually(lambda: why in json.dumps(cluster.pods(ours)["waits"]["status"]))
        cluster.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/a")

        wait_for_phase(cluster.api, ours, "waits", "Running")
        check_leases(cluster, ours)


def test_a_pod_without_a_booking_takes_no_gpu_that_a_booked_pod_waits_for(
    cluster_of_carrel: CarrelCluster,
) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        # There is a GPU for it, but nowhere so many processors: so it waits, and nothing must be taken from under it.
        needs = {"nvidia.com/gpu": "1", "cpu": "100000"}
        cluster.book("urgent", "ada@lab.example")
        whose = {"carrel.dev/tier": "booked", "carrel.dev/user": "ada@lab.example"}
        create(cluster.api, ours, a_pod("urgent", "n2", whose, needs))
        eventually(lambda: "Insufficient cpu" in json.dumps(cluster.pods(ours)["urgent"]["status"]))
        greedy = a_pod("greedy", "n2", {"carrel.dev/tier": "opportunistic"}, {"nvidia.com/gpu": "2"})
        create(cluster.api, ours, greedy)
        modest = a_pod("modest", "n2", {"carrel.dev/tier": "opportunistic"}, {"nvidia.com/gpu": "1"})

        why = "room, but a booked pod waits for it"
        eventually(lambda: why in json.dumps(cluster.pods(ours)["greedy"]["status"]))
        run(cluster, ours, modest)
        for name in ("urgent", "modest"):
            cluster.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/{name}")

        # kube-scheduler learns of neither: the controller wakes the pod.
        eventually(lambda: cluster.pods(ours)["greedy"]["status"]["phase"] == "Running", limit_s=120)
        check_leases(cluster, ours)


def test_a_gang_waits_until_the_scheduling_gate_of_a_member_is_removed(
    cluster_of_carrel: CarrelCluster,
) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        together = {"gpu-fraction": "0.5", "pod-group-name": "pair", "carrel.dev/gang-size": "2"}
        gated = a_pod("gated", "n1,n2", together)
        gated["spec"]["schedulingGates"] = [{"name": "example.com/quota"}]
        create(cluster.api, ours, gated)
        create(cluster.api, ours, a_pod("ready", "n1,n2", together))

        here = "1 of 2 are here, 1 held back by scheduling gates"
        eventually(lambda: here in json.dumps(cluster.pods(ours)["ready"]["status"]))
        why = say_why(cluster, ours, "gated")
        assert why.startswith(f"{ours}/gated is held back by the scheduling gate example.com/quota")
        members = {pod["metadata"]["uid"] for pod in cluster.pods(ours).values()}
        assert not [place for place, shares in cluster.held().items() if members & shares.keys()]

        # Who opens the gate may say more about where the pod goes, as Kueue does.
        opened = {"spec": {"schedulingGates": None, "nodeSelector": {"kubernetes.io/hostname": "n2"}}}
        cluster.api.call("PATCH", f"/api/v1/namespaces/{ours}/pods/gated", opened)
        eventually(lambda: all_run(cluster, ours, 2), limit_s=120)
        assert cluster.pods(ours)["gated"]["spec"]["nodeName"] == "n2"
        check_leases(cluster, ours)


def test_a_gang_of_eight_over_four_nodes_is_placed_as_one(cluster_of_carrel: CarrelCluster) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        a_claim(cluster, ours, "job", devices={"count": 2}, gangRef="job", gangSize=8)
        on = ",".join(node.name for node in GANG)
        for number in range(7):
            create(cluster.api, ours, a_pod(f"member-{number}", on, {"gpu.scheduling/claim": "job"}))
        eventually(lambda: "waits for 1 more member" in json.dumps(cluster.pods(ours)))
        assert not any(each["spec"].get("nodeName") for each in cluster.pods(ours).values())

        create(cluster.api, ours, a_pod("member-7", on, {"gpu.scheduling/claim": "job"}))

        eventually(lambda: all_run(cluster, ours, 8), limit_s=180)
        check_leases(cluster, ours)
        claim = f"/apis/gpu.scheduling/v1/namespaces/{ours}/gpuclaims/job"
        eventually(lambda: cluster.api.call("GET", claim).get("status", {}).get("phase") == "Bound")


def mixed_pods(count: int, chance: Random) -> list[dict[str, Any]]:
    on = ",".join(node.name for node in MIXED)
    kinds: list[dict[str, Any]] = [
        {"limits": gpu_mem(8138)},
        {"limits": gpu_mem(12207)},
        {"limits": {"nvidia.com/gpu": "1"}},
        {"annotations": {"gpu-fraction": "0.5"}},
        {"annotations": {"gpu-memory": "4096", "gpu-fraction-num-devices": "2"}},
        {"annotations": {"gpu.scheduling/claim": "pair"}},
        {"annotations": {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-memory-mib": "8138"}},
        {},
    ]
    pods = []
    for number in range(count):
        kind = chance.choice(kinds)
        pods.append(a_pod(f"mixed-{number}", on, **kind))
    return pods


def test_two_hundred_mixed_pods_on_fifty_nodes_are_all_placed_and_no_gpu_is_oversubscribed(
    cluster_of_carrel: CarrelCluster,
) -> None:
    cluster = cluster_of_carrel
    with namespace(cluster.api) as ours:
        a_claim(cluster, ours, "pair", devices={"count": 2}, topology={"mode": "Required"})
        for manifest in mixed_pods(200, Random(1)):
            create(cluster.api, ours, manifest)

        eventually(lambda: all_run(cluster, ours, 200), limit_s=180)

        check_leases(cluster, ours)
        for each in cluster.pods(ours).values():
            if "gpu.scheduling/claim" in each["metadata"].get("annotations", {}):
                node, _, ids = each["metadata"]["annotations"]["gpu.scheduling/allocated"].partition(":")
                assert node == each["spec"]["nodeName"]
                assert ids in ("2,3", "4,5"), "a claim of two GPUs lies in one island"


def test_two_schedulers_with_an_extender_each_share_the_gpus_and_oversubscribe_none(
    cluster_of_carrel: CarrelCluster,
) -> None:
    cluster = cluster_of_carrel
    cluster.start_another_scheduler("gpu-scheduler-b")
    quarters = sum(4 * len(node.gpus) for node in EXAMPLES)
    with namespace(cluster.api) as ours:
        for number in range(2 * quarters):
            manifest = a_pod(f"quarter-{number}", "n1,n2,n3", {"gpu-memory": "4069"})
            manifest["spec"]["schedulerName"] = ("gpu-scheduler", "gpu-scheduler-b")[number % 2]
            create(cluster.api, ours, manifest)

        eventually(lambda: all_run(cluster, ours, quarters), limit_s=180)

        check_leases(cluster, ours)
        gpus = {
            place: shares for place, shares in cluster.held().items() if place.partition("-")[0] in ("n1", "n2", "n3")
        }
        assert [len(shares) for shares in gpus.values()] == [4] * 6, "every GPU is full to the last MiB"


def test_the_ledger_rebuilt_from_the_cluster_is_consistent(cluster_of_carrel: CarrelCluster) -> None:
    async def read() -> ClusterState:
        client = Client(HttpTransport(access_to(cluster_of_carrel.api.kubeconfig, {})))
        try:
            carrel = ClusterState(client)
            await carrel.informers.read_once()
            return carrel
        finally:
            await client.aclose()

    ledger = asyncio.run(read()).cluster_ledger.ledger

    ledger.audit()
    assert len(ledger.nodes) == len(EXAMPLES) + len(FOUR) + len(GANG) + len(MIXED)


# --- who calls -------------------------------------------------------------------------------------------------------

SECRET = "an-e2e-secret-0123456789"


def status_of(url: str, body: Mapping[str, Any], trusted: Path | None = None) -> int:
    """Of a call by somebody who reaches the port and has no credential."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    context = ssl.create_default_context(cafile=trusted) if trusted else None
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_kube_scheduler_knows_the_secret_of_the_extender_and_nobody_else_does(cluster_of_carrel: CarrelCluster) -> None:
    port, names = free_port(), ("secret-in-path", "secret-in-address")
    url = f"http://127.0.0.1:{port}"
    own = own_configuration(cluster_of_carrel.api, "with-secret", {"pods": {"schedulers": list(names)}})
    with given_secrets(CARREL_PATH_SECRET=SECRET):
        cluster_of_carrel.start_extender("extender-with-secret", port, *own)
    (told,) = scheduler_config(Extender(url, secret=SECRET))["extenders"]
    in_path = {**told, "urlPrefix": f"{url}/{SECRET}/carrel"}
    with namespace(cluster_of_carrel.api) as ours:
        for name, extender in zip(names, (in_path, told), strict=True):
            cluster_of_carrel.api.start_scheduler(name, [extender])
            manifest = a_pod(name, limits=gpu_mem(1000))
            manifest["spec"]["schedulerName"] = name
            assert "ALIYUN_COM_GPU_MEM_IDX" in run(cluster_of_carrel, ours, manifest)["metadata"]["annotations"]

        waiting = a_pod("waiting", limits=gpu_mem(1000))
        waiting["spec"]["schedulerName"] = "nobody"
        create(cluster_of_carrel.api, ours, waiting)
        uid = cluster_of_carrel.pods(ours)["waiting"]["metadata"]["uid"]
        stolen = {"PodName": "waiting", "PodNamespace": ours, "PodUID": uid, "Node": "n1"}
        assert status_of(f"{url}/carrel/bind", stolen) == status_of(f"{url}/gpushare-scheduler/bind", stolen) == 403
        assert status_of(f"{url}/{SECRET}/carrel/bind", stolen) == 200, (
            "and is told that the pod is another scheduler's"
        )
        assert "nodeName" not in cluster_of_carrel.pods(ours)["waiting"]["spec"]
    log = cluster_of_carrel.api.run.log("extender-with-secret").read_text()
    assert "unknown_caller" in log and SECRET not in log


def test_kube_scheduler_and_extender_know_each_other_by_certificates(cluster_of_carrel: CarrelCluster) -> None:
    api, port = cluster_of_carrel.api, free_port()
    url, folder = f"https://127.0.0.1:{port}", api.run.data / "extender-tls"
    folder.mkdir()
    served, shown = api.authority.server("extender", [LOOPBACK], ["localhost"]), api.authority.client("kube-scheduler")
    (folder / "tls.crt").write_bytes(served.certificate.read_bytes())
    (folder / "tls.key").write_bytes(served.key.read_bytes())
    own = own_configuration(api, "by-certificate", {"pods": {"schedulers": ["by-certificate"]}})
    options = ("--tls-folder", folder, "--client-ca", api.authority.certificate)
    cluster_of_carrel.start_extender("extender-with-tls", port, *options, *own)
    files = {"caFile": api.authority.certificate, "certFile": shown.certificate, "keyFile": shown.key}
    tls = {word: str(path) for word, path in files.items()}
    api.start_scheduler("by-certificate", scheduler_config(Extender(url, tls=tls))["extenders"])
    with namespace(api) as ours:
        manifest = a_pod("known", limits=gpu_mem(1000))
        manifest["spec"]["schedulerName"] = "by-certificate"
        assert "ALIYUN_COM_GPU_MEM_IDX" in run(cluster_of_carrel, ours, manifest)["metadata"]["annotations"]
        stolen = {"PodName": "known", "PodNamespace": ours, "PodUID": "u", "Node": "n1"}
        assert status_of(f"{url}/carrel/bind", stolen, api.authority.certificate) == 403


def test_a_pod_without_a_gpu_goes_where_the_gpus_are_taken_and_needs_no_extender(
    cluster_of_carrel: CarrelCluster,
) -> None:
    cluster = cluster_of_carrel
    (told,) = cpu_scheduler_config(Extender(cluster.extender_url))["extenders"]
    # Its own limit of two seconds is short, so that such pods do not wait; here the machine may be busy.
    cluster.api.start_scheduler("carrel-cpu", [{**told, "httpTimeout": "150s"}])

    def without_a_gpu(name: str) -> dict[str, Any]:
        manifest = a_pod(name, on="n1,n2", limits={"cpu": "100m", "memory": "16Mi"})
        manifest["spec"]["schedulerName"] = "carrel-cpu"
        return run(cluster, ours, manifest)

    with namespace(cluster.api) as ours:
        for number in range(2):  # kube-scheduler alone would prefer n1, where nothing runs
            run(cluster, ours, a_pod(f"takes-{number}", on="n2", limits=gpu_mem(16276)))
        assert without_a_gpu("ranked")["spec"]["nodeName"] == "n2"

        cluster.extender.program.kill()
        cluster.extender.program.wait()
        try:
            assert without_a_gpu("alone")["status"]["phase"] == "Running"
        finally:
            cluster.extender = cluster.start_extender()
