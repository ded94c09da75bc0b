"""The agent on a real kubelet: what the node shows, which container sees which GPU, and what no restart changes."""

from collections.abc import Iterator

import pytest

from tests.e2e.carrel_node import COUNT, MEM, WHOLE, CarrelNode, a_pod, carrel_node, reading_own_gpus
from tests.e2e.configuration import own_configuration
from tests.e2e.pods import create, eventually, namespace, wait_for_phase

MODES = ("plugin", "node")
SMALL_GPUS = [{"count": 2, "model": "Tesla-V100", "memoryMiB": 1016, "perIsland": 2, "bandwidthGBps": 300}]
"""So few devices that no kubelet stalls on them, whatever way they are advertised in."""


@pytest.fixture(scope="module", params=MODES)
def carrel(request: pytest.FixtureRequest) -> Iterator[CarrelNode]:
    with carrel_node(f"node-gpus-{request.param}", SMALL_GPUS, {"memory": {"resource": request.param}}) as running:
        yield running


def mode(carrel: CarrelNode) -> str:
    return str(carrel.status()["memoryResource"])


def uuids(carrel: CarrelNode) -> list[str]:
    return [device["uuid"] for device in carrel.devices()]


def reasons_of_events(carrel: CarrelNode, namespace: str, words: str) -> list[str]:
    """Of the Events whose message starts with these words. The agent writes them after its report."""
    events = carrel.api.call("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    return [each["reason"] for each in events if each["message"].startswith(words)]


def test_a_node_with_two_gpus_of_1016_mib_shows_2032(carrel: CarrelNode) -> None:
    eventually(lambda: carrel.allocatable(MEM) == 2032)
    eventually(lambda: (carrel.allocatable(COUNT), carrel.allocatable(WHOLE)) == (2, 2))
    status = carrel.status()
    assert (status["total"], status["mode"], status["memoryUnit"]) == (2, "native", "MiB")
    assert [(gpu["id"], gpu["memoryMiB"], gpu["health"]) for gpu in status["devices"]] == [
        (0, 1016, "Healthy"),
        (1, 1016, "Healthy"),
    ]
    header = carrel.api.kubectl("get", "gns").splitlines()[0]
    assert header.split() == ["NAME", "GPUS", "ACTIVE", "MODE", "HEARTBEAT", "MESSAGE", "AGE"]
    eventually(lambda: carrel.status().get("active") == 0)
    line = carrel.api.kubectl("get", "gns").splitlines()[1]
    assert line.split()[:4] == [carrel.node.name, "2", "0", "native"]
    wide, line = carrel.api.kubectl("get", "gns", "-o", "wide").splitlines()
    assert line.split()[wide.split().index("MEMORY")] in MODES


def test_two_pods_of_half_a_gpu_and_one_of_more_run_on_the_right_gpus_and_are_told_so(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        placed, told = [], []
        for number, mib in enumerate((508, 508, 762)):
            pod, environment = carrel.run(ours, reading_own_gpus(a_pod(f"pod-{number}", {MEM: str(mib)})))
            placed.append(pod)
            told.append(environment)

        gpus = uuids(carrel)
        for index, mib, environment in zip((0, 0, 1), (508, 508, 762), told, strict=True):
            assert environment == {
                "NVIDIA_VISIBLE_DEVICES": gpus[index],
                "CUDA_VISIBLE_DEVICES": gpus[index],
                "ALIYUN_COM_GPU_MEM_IDX": str(index),
                "ALIYUN_COM_GPU_MEM_DEV": "1016",
                "ALIYUN_COM_GPU_MEM_POD": str(mib),
                "ALIYUN_COM_GPU_MEM_CONTAINER": str(mib),
                "CGPU_DISABLE": "false",
            }
        eventually(
            lambda: all(
                pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
                for pod in carrel.pods(ours).values()
            )
        )
        uids = [pod["metadata"]["uid"] for pod in placed]
        eventually(lambda: [sorted(device["inUseBy"]) for device in carrel.devices()] == [sorted(uids[:2]), uids[2:]])


def test_two_pending_pods_of_equal_size_get_their_own_gpus(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        names = ("first", "second")
        for name in names:
            create(carrel.api, ours, reading_own_gpus(a_pod(name, {MEM: "762"})))

        promised = {
            name: wait_for_phase(carrel.api, ours, name, "Running")["metadata"]["annotations"]["carrel.dev/devices"]
            for name in names
        }
        assert sorted(promised.values()) == sorted(uuids(carrel))
        for name in names:
            assert carrel.told(ours, name)["NVIDIA_VISIBLE_DEVICES"] == promised[name]
        assert [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"]


def test_each_container_of_a_pod_gets_its_own_share(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        manifest = a_pod("two", {MEM: "250"})
        manifest["spec"]["containers"].append(
            {**manifest["spec"]["containers"][0], "name": "side", "resources": {"limits": {MEM: "375"}}}
        )
        carrel.run(ours, reading_own_gpus(manifest))

        parts = {name: carrel.told(ours, "two", name) for name in ("main", "side")}
        assert {name: told["ALIYUN_COM_GPU_MEM_CONTAINER"] for name, told in parts.items()} == {
            "main": "250",
            "side": "375",
        }
        assert {told["ALIYUN_COM_GPU_MEM_POD"] for told in parts.values()} == {"625"}


def test_a_claim_of_two_gpus_is_in_the_containers_environment(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        claim = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": "pair"},
            "spec": {"devices": {"count": 2, "policy": "contiguous"}},
        }
        carrel.api.call("POST", f"/apis/gpu.scheduling/v1/namespaces/{ours}/gpuclaims", claim)

        manifest = a_pod("trains", annotations={"gpu.scheduling/claim": "pair"})
        placed, told = carrel.run(ours, reading_own_gpus(manifest))

        assert told["CUDA_VISIBLE_DEVICES"] == ",".join(uuids(carrel))
        assert placed["metadata"]["annotations"]["gpu.scheduling/allocated"] == f"{placed['spec']['nodeName']}:0,1"


def test_a_whole_gpu_is_the_one_that_was_promised(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        carrel.run(ours, reading_own_gpus(a_pod("shares", {MEM: "508"})))
        placed, told = carrel.run(ours, a_pod("whole", {WHOLE: "1"}))

        assert told["NVIDIA_VISIBLE_DEVICES"] == placed["metadata"]["annotations"]["carrel.dev/devices"]
        assert told["NVIDIA_VISIBLE_DEVICES"] == uuids(carrel)[1]


def forged(carrel: CarrelNode) -> dict[str, str]:
    return {
        "carrel.dev/devices": uuids(carrel)[0],
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_DEV": "1016",
        "ALIYUN_COM_GPU_MEM_POD": "77",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
    }


def test_a_pod_without_a_promise_is_refused_or_its_gpu_is_excluded(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        manifest = reading_own_gpus(a_pod("forged", {MEM: "77"}, forged(carrel), nodeName=carrel.node.name))
        create(carrel.api, ours, manifest)
        if mode(carrel) == "plugin":
            eventually(lambda: carrel.pods(ours)["forged"]["status"]["phase"] == "Failed")
            message = carrel.pods(ours)["forged"]["status"]["message"]
            assert f"no Lease gives {ours}/forged its GPUs" in message
            return
        first, _ = uuids(carrel)
        words = f"{ours}/forged holds aliyun.com/gpu-mem, is promised no GPU by any Lease, and can see {first}"
        eventually(lambda: [device.get("reason") for device in carrel.devices()] == [words, None])
        eventually(lambda: reasons_of_events(carrel, ours, words) == ["GPUNotPromised"])
        eventually(lambda: carrel.allocatable(MEM) == 1016 + 77)  # what is held goes on being held
        carrel.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/forged")
        eventually(lambda: [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"])


def test_a_container_with_another_gpu_than_promised_is_reported_and_the_gpu_is_excluded(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        manifest = a_pod("a", {MEM: "508"})
        carrel.run(ours, manifest if mode(carrel) == "plugin" else reading_own_gpus(manifest))
        first, second = uuids(carrel)
        path = f"/api/v1/namespaces/{ours}/pods/a"
        carrel.api.call("PATCH", path, {"metadata": {"annotations": {"carrel.dev/devices": second}}})

        words = f"{ours}/a holds aliyun.com/gpu-mem, is promised {first} only, and can see {second}"
        reasons = [None, words]
        if mode(carrel) == "plugin":
            words = (
                f"the kubelet gave {first} to container main of {ours}/a, whose annotation names {second}, but no Lease"
            )
            reasons = [words, words]
        eventually(lambda: [device.get("reason") for device in carrel.devices()] == reasons)
        eventually(lambda: reasons_of_events(carrel, ours, f"{words}; delete the pod") != [])
        carrel.api.call("DELETE", path)
        eventually(lambda: [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"])


def test_an_unhealthy_gpu_under_load_is_withdrawn_and_returns(carrel: CarrelNode) -> None:
    gpu = {"model": "Tesla-V100", "memoryMiB": 1016}
    with namespace(carrel.api) as ours:
        held = [
            carrel.run(ours, reading_own_gpus(a_pod(name, {MEM: "1016"})))[0] for name in ("sits-on-0", "sits-on-1")
        ]
        carrel.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/sits-on-0")
        carrel.simulate([gpu, {**gpu, "unusable": "XID 79"}])
        eventually(lambda: [device["health"] for device in carrel.devices()] == ["Healthy", "Unhealthy"])
        assert carrel.devices()[1]["reason"] == "XID 79"
        # In the kubelet's own way the pod on the ill GPU is missing to those who ask for the other one.
        left = 1016 if mode(carrel) == "plugin" else 1016 + 1016
        eventually(lambda: carrel.allocatable(MEM) == left and carrel.allocatable(WHOLE) == 1)
        create(carrel.api, ours, a_pod("wants-two", annotations={"carrel.dev/gpu-count": "2"}))
        if mode(carrel) == "node":
            _, told = carrel.run(ours, reading_own_gpus(a_pod("fits", {MEM: "1016"})))
            assert told["ALIYUN_COM_GPU_MEM_IDX"] == "0"
            carrel.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/fits")
        still = carrel.pods(ours)["sits-on-1"]
        assert (still["metadata"]["uid"], still["status"]["phase"]) == (held[1]["metadata"]["uid"], "Running")

        carrel.simulate([gpu, gpu])

        eventually(lambda: carrel.allocatable(MEM) == 2032)
        carrel.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/sits-on-1")
        wait_for_phase(carrel.api, ours, "wants-two", "Running")


def test_eight_gpus_of_80_gib_need_a_coarser_unit_only_as_devices(carrel: CarrelNode) -> None:
    eight = [{"count": 8, "model": "NVIDIA-H100-80GB-HBM3", "memoryMiB": 81920}]
    with namespace(carrel.api) as ours:
        carrel.simulate(eight)
        if mode(carrel) == "node":
            eventually(lambda: carrel.allocatable(MEM) == 655360)
            _, told = carrel.run(ours, reading_own_gpus(a_pod("large", {MEM: "80000"})))
            assert (told["ALIYUN_COM_GPU_MEM_POD"], told["ALIYUN_COM_GPU_MEM_DEV"]) == ("80000", "81920")
        else:
            words = "an admin writes memory.resource: node into the configuration, or memory.unit: 4MiB"
            eventually(lambda: words in carrel.status().get("message", ""))
            eventually(lambda: (carrel.allocatable(MEM), carrel.allocatable(COUNT)) == (0, 8))

            carrel.kill_agent()
            carrel.agent = carrel.start_agent(
                *own_configuration(carrel.api, "in-gib", {"memory": {"unit": "GiB", "resource": "plugin"}})
            )
            eventually(lambda: carrel.allocatable(MEM) == 640)
            create(carrel.api, ours, a_pod("waits", {MEM: "8"}))
            why = "its agent counts memory in GiB, the scheduler in MiB; both follow memory.unit of the configuration"
            eventually(lambda: why in str(carrel.pods(ours)["waits"]["status"]))
            carrel.kill_agent()
            carrel.simulate(SMALL_GPUS)
            carrel.agent = carrel.start_agent()
            wait_for_phase(carrel.api, ours, "waits", "Running")
    carrel.simulate(SMALL_GPUS)
    eventually(lambda: carrel.allocatable(MEM) == 2032)


def test_a_restarted_kubelet_and_a_killed_agent_change_nothing_for_pods_that_run(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        before = {
            name: carrel.run(ours, reading_own_gpus(a_pod(name, {MEM: mib})))
            for name, mib in (("a", "508"), ("b", "762"))
        }

        carrel.kill_agent()
        carrel.node.restart_kubelet()
        heartbeat = carrel.status()["heartbeat"]
        carrel.agent = carrel.start_agent()
        eventually(lambda: carrel.status()["heartbeat"] > heartbeat and carrel.allocatable(MEM) == 2032)
        times = carrel.registrations(WHOLE)
        carrel.node.restart_kubelet()  # this time the agent sees it
        eventually(lambda: carrel.registrations(WHOLE) > times)
        eventually(lambda: carrel.allocatable(MEM) == 2032 and carrel.allocatable(COUNT) == 2)

        for name, (pod, environment) in before.items():
            now = carrel.pods(ours)[name]
            assert now["status"]["phase"] == "Running"
            assert now["status"]["containerStatuses"][0]["restartCount"] == 0
            assert now["metadata"]["uid"] == pod["metadata"]["uid"]
            assert carrel.told(ours, name) == environment
        eventually(lambda: [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"])
        _, told = carrel.run(ours, reading_own_gpus(a_pod("new", {MEM: "508"})))
        assert told["ALIYUN_COM_GPU_MEM_IDX"] == "0"


def test_the_resources_on_the_node_are_restored_outlive_the_agent_and_are_withdrawn(carrel: CarrelNode) -> None:
    """The last one: it ends the agent."""
    with namespace(carrel.api) as ours:
        carrel.run(ours, reading_own_gpus(a_pod("stays", {MEM: "508"})))
        path = f"/api/v1/nodes/{carrel.node.name}/status"
        zero = {COUNT: "0"} if mode(carrel) == "plugin" else {COUNT: "0", MEM: "0"}
        carrel.api.call("PATCH", path, {"status": {"capacity": zero, "allocatable": zero}})
        eventually(lambda: (carrel.allocatable(MEM), carrel.allocatable(COUNT)) == (2032, 2))
        assert "agents of these nodes still run" in carrel.withdraw().stderr
        eventually(lambda: carrel.allocatable(COUNT) == 2)

        carrel.agent.stop()
        assert carrel.allocatable(COUNT) == 2
        outcome = carrel.withdraw()
        assert (outcome.returncode, outcome.stdout) == (0, f"Withdrawn from {carrel.node.name}.\n"), outcome.stderr

        capacity = carrel.api.call("GET", f"/api/v1/nodes/{carrel.node.name}")["status"]["capacity"]
        assert COUNT not in capacity and (MEM in capacity) is (mode(carrel) == "plugin")
        carrel.node.restart_kubelet()
        assert carrel.pods(ours)["stays"]["status"]["phase"] == "Running"
