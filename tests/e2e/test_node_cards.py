"""The agent on a real kubelet: what the node shows, which container sees which card, and what no restart changes."""

from collections.abc import Iterator

import pytest

from tests.e2e.carrel_node import COUNT, MEM, TWO_CARDS, WHOLE, CarrelNode, a_pod, carrel_node, reading_its_cards
from tests.e2e.pods import create, eventually, namespace, wait_for_phase


@pytest.fixture(scope="module")
def carrel() -> Iterator[CarrelNode]:
    with carrel_node("node-cards") as running:
        yield running


def uuids(carrel: CarrelNode) -> list[str]:
    return [device["uuid"] for device in carrel.devices()]


def test_a_node_with_two_cards_of_16276_mib_shows_32552(carrel: CarrelNode) -> None:
    assert carrel.allocatable(MEM) == 32552
    eventually(lambda: (carrel.allocatable(COUNT), carrel.allocatable(WHOLE)) == (2, 2))
    status = carrel.status()
    assert (status["total"], status["mode"], status["memoryUnit"]) == (2, "native", "MiB")
    assert [(card["id"], card["memoryMiB"], card["health"]) for card in status["devices"]] == [
        (0, 16276, "Healthy"),
        (1, 16276, "Healthy"),
    ]
    header, line = carrel.api.kubectl("get", "gns").splitlines()
    assert header.split() == ["NAME", "CARDS", "MODE", "HEARTBEAT", "MESSAGE", "AGE"]
    assert line.split()[:3] == [carrel.node.name, "2", "native"]


def test_two_pods_of_8138_and_one_of_12207_land_on_the_right_cards_and_are_told_so(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        placed, told = [], []
        for number, mib in enumerate((8138, 8138, 12207)):
            pod, environment = carrel.run(ours, a_pod(f"pod-{number}", {MEM: str(mib)}))
            placed.append(pod)
            told.append(environment)

        cards = uuids(carrel)
        for index, mib, environment in zip((0, 0, 1), (8138, 8138, 12207), told, strict=True):
            assert environment == {
                "NVIDIA_VISIBLE_DEVICES": cards[index],
                "CUDA_VISIBLE_DEVICES": cards[index],
                "ALIYUN_COM_GPU_MEM_IDX": str(index),
                "ALIYUN_COM_GPU_MEM_DEV": "16276",
                "ALIYUN_COM_GPU_MEM_POD": str(mib),
                "ALIYUN_COM_GPU_MEM_CONTAINER": str(mib),
            }
        eventually(
            lambda: all(
                pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
                for pod in carrel.pods(ours).values()
            )
        )
        uids = [pod["metadata"]["uid"] for pod in placed]
        eventually(lambda: [sorted(device["inUseBy"]) for device in carrel.devices()] == [sorted(uids[:2]), uids[2:]])


def test_two_pending_pods_of_equal_size_get_their_own_cards(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        names = ("first", "second")
        for name in names:
            create(carrel.api, ours, reading_its_cards(a_pod(name, {MEM: "12207"})))

        promised = {
            name: wait_for_phase(carrel.api, ours, name, "Running")["metadata"]["annotations"]["carrel.dev/devices"]
            for name in names
        }
        assert sorted(promised.values()) == sorted(uuids(carrel))
        for name in names:
            assert carrel.told(ours, name)["NVIDIA_VISIBLE_DEVICES"] == promised[name]
        assert [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"]


def test_each_container_of_a_pod_is_handed_its_own_part(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        manifest = a_pod("two", {MEM: "4000"})
        manifest["spec"]["containers"].append(
            {**manifest["spec"]["containers"][0], "name": "side", "resources": {"limits": {MEM: "6000"}}}
        )
        carrel.run(ours, manifest)

        parts = {name: carrel.told(ours, "two", name) for name in ("main", "side")}
        assert {name: told["ALIYUN_COM_GPU_MEM_CONTAINER"] for name, told in parts.items()} == {
            "main": "4000",
            "side": "6000",
        }
        assert {told["ALIYUN_COM_GPU_MEM_POD"] for told in parts.values()} == {"10000"}


def test_a_claim_of_two_cards_is_in_the_containers_environment(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        claim = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": "pair"},
            "spec": {"devices": {"count": 2, "policy": "contiguous"}},
        }
        carrel.api.call("POST", f"/apis/gpu.scheduling/v1/namespaces/{ours}/gpuclaims", claim)

        manifest = a_pod("trains", annotations={"gpu.scheduling/claim": "pair"})
        placed, told = carrel.run(ours, reading_its_cards(manifest))

        assert told["CUDA_VISIBLE_DEVICES"] == ",".join(uuids(carrel))
        assert placed["metadata"]["annotations"]["gpu.scheduling/allocated"] == "0,1"


def test_a_whole_card_is_the_one_that_was_promised(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        carrel.run(ours, a_pod("shares", {MEM: "8138"}))
        placed, told = carrel.run(ours, a_pod("whole", {WHOLE: "1"}))

        assert told["NVIDIA_VISIBLE_DEVICES"] == placed["metadata"]["annotations"]["carrel.dev/devices"]
        assert told["NVIDIA_VISIBLE_DEVICES"] == uuids(carrel)[1]


def test_a_pod_that_nobody_promised_a_card_is_refused_by_the_kubelet(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        forged = {
            "carrel.dev/devices": uuids(carrel)[0],
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_DEV": "16276",
            "ALIYUN_COM_GPU_MEM_POD": "1234",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
        }
        create(carrel.api, ours, a_pod("forged", {MEM: "1234"}, forged, nodeName=carrel.node.name))

        eventually(lambda: carrel.pods(ours)["forged"]["status"]["phase"] == "Failed")
        message = carrel.pods(ours)["forged"]["status"]["message"]
        assert f"no Lease gives {ours}/forged its cards" in message


def test_a_container_that_was_given_another_card_than_promised_is_told_of_and_both_are_set_aside(
    carrel: CarrelNode,
) -> None:
    with namespace(carrel.api) as ours:
        carrel.run(ours, a_pod("a", {MEM: "8138"}))
        first, second = uuids(carrel)
        path = f"/api/v1/namespaces/{ours}/pods/a"
        carrel.api.call("PATCH", path, {"metadata": {"annotations": {"carrel.dev/devices": second}}})

        words = f"the kubelet gave {first} to container main of {ours}/a, whose annotation names {second}, but no Lease"
        eventually(lambda: [device.get("reason") for device in carrel.devices()] == [words, words])
        events = carrel.api.call("GET", f"/api/v1/namespaces/{ours}/events")["items"]
        assert f"{words}; delete the pod" in [event["message"] for event in events]
        carrel.api.call("DELETE", path)
        eventually(lambda: [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"])


def test_a_card_that_turns_unhealthy_is_withdrawn_and_returns(carrel: CarrelNode) -> None:
    card = {"model": "Tesla-V100", "memoryMiB": 16276}
    with namespace(carrel.api) as ours:
        carrel.simulate([card, {**card, "unusable": "XID 79"}])
        eventually(lambda: carrel.allocatable(MEM) == 16276 and carrel.allocatable(WHOLE) == 1)
        eventually(lambda: [device["health"] for device in carrel.devices()] == ["Healthy", "Unhealthy"])
        assert carrel.devices()[1]["reason"] == "XID 79"
        create(carrel.api, ours, a_pod("wants-two", annotations={"carrel.dev/gpu-cards": "2"}))
        _, told = carrel.run(ours, a_pod("fits", {MEM: "8138"}))
        assert told["ALIYUN_COM_GPU_MEM_IDX"] == "0"
        carrel.api.call("DELETE", f"/api/v1/namespaces/{ours}/pods/fits")

        carrel.simulate([card, card])

        eventually(lambda: carrel.allocatable(MEM) == 32552)
        wait_for_phase(carrel.api, ours, "wants-two", "Running")


def test_eight_cards_of_80_gib_fit_in_units_of_4_mib_and_a_scheduler_with_another_unit_keeps_away(
    carrel: CarrelNode,
) -> None:
    with namespace(carrel.api) as ours:
        carrel.simulate([{"count": 8, "model": "NVIDIA-H100-80GB-HBM3", "memoryMiB": 81920}])
        eventually(lambda: "give every door of the cluster --memory-unit 4MiB" in carrel.status().get("message", ""))
        eventually(lambda: (carrel.allocatable(MEM), carrel.allocatable(COUNT)) == (0, 8))

        carrel.kill_agent()
        carrel.agent = carrel.start_agent("--memory-unit", "4MiB")
        eventually(lambda: carrel.allocatable(MEM) == 163840)
        create(carrel.api, ours, a_pod("waits", {MEM: "2048"}))
        why = "its agent counts memory in 4MiB, the scheduler in MiB; give all doors the same --memory-unit"
        eventually(lambda: why in str(carrel.pods(ours)["waits"]["status"]))

        carrel.kill_agent()
        carrel.simulate(TWO_CARDS)
        carrel.agent = carrel.start_agent()
        eventually(lambda: carrel.allocatable(MEM) == 32552)
        wait_for_phase(carrel.api, ours, "waits", "Running")


def test_a_restarted_kubelet_and_a_killed_agent_change_nothing_for_pods_that_run(carrel: CarrelNode) -> None:
    with namespace(carrel.api) as ours:
        before = {name: carrel.run(ours, a_pod(name, {MEM: mib})) for name, mib in (("a", "8138"), ("b", "12207"))}

        carrel.kill_agent()
        carrel.node.restart_kubelet()
        times = carrel.registrations()
        carrel.agent = carrel.start_agent()
        eventually(lambda: carrel.registrations() > times)
        times = carrel.registrations()
        carrel.node.restart_kubelet()  # this time the agent sees it
        eventually(lambda: carrel.registrations() > times)
        eventually(lambda: carrel.allocatable(MEM) == 32552 and carrel.allocatable(COUNT) == 2)

        for name, (pod, environment) in before.items():
            now = carrel.pods(ours)[name]
            assert now["status"]["phase"] == "Running"
            assert now["status"]["containerStatuses"][0]["restartCount"] == 0
            assert now["metadata"]["uid"] == pod["metadata"]["uid"]
            assert carrel.told(ours, name) == environment
        assert [device["health"] for device in carrel.devices()] == ["Healthy", "Healthy"]
        _, told = carrel.run(ours, a_pod("new", {MEM: "8138"}))
        assert told["ALIYUN_COM_GPU_MEM_IDX"] == "0"
