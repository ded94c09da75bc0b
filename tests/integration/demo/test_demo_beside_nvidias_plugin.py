"""`carrel demo --mode coexist` while it runs. One demo is for all tests; the last one ends it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.demo.demo_process import DemoProcess, a_demo, eventually
from tests.kit.eventually import LIMIT_S


@pytest.fixture(scope="module")
def coexisting() -> Iterator[DemoProcess]:
    with a_demo("--mode", "coexist") as running:
        yield running


def test_beside_nvidias_plugin_two_pods_share_the_gpu_that_a_reservation_pod_reports(coexisting: DemoProcess) -> None:
    coexisting.lines_until(r"reservation pod \S+ was given GPU \d of \S+ and holds it for ivy/half, tom/half$")


def test_beside_nvidias_plugin_a_pod_gets_the_gpu_that_the_kubelet_gave_to_its_reservation_pod(
    coexisting: DemoProcess,
) -> None:
    def shared() -> str:
        """A GPU that a pod was told and a reservation pod has: by what it reports, and by the kubelet's list."""
        pods = coexisting.objects("api/v1/pods")
        reports = coexisting.objects("apis/gpu.scheduling/v1/gpunodestatuses")
        notes = [pod["metadata"].get("annotations", {}) for pod in pods]
        reserved = {
            pod["metadata"]["annotations"].get("run.ai/reserve_for_gpu_index", ""): pod["metadata"]["uid"]
            for pod in pods
            if pod["metadata"]["namespace"] == "kai-resource-reservation"
        }
        users = {device["uuid"]: device["inUseBy"] for each in reports for device in each["status"]["devices"]}
        told = (each.get("carrel.dev/devices", "") for each in notes)
        return next((uuid for uuid in told if uuid in reserved and users[uuid] == [reserved[uuid]]), "")

    assert eventually(shared, "a shared GPU")


def test_its_processes_end_with_it_even_if_it_is_killed(coexisting: DemoProcess) -> None:
    coexisting.lines_until("book at http")
    processes = children(coexisting.process.pid)
    assert len(processes) == 3

    coexisting.process.kill()

    deadline = time.monotonic() + LIMIT_S
    while any(is_running(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [process for process in processes if is_running(process)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """False for a zombie: it has ended, and its parent has not read its exit code yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
