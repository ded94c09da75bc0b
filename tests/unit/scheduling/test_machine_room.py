"""What a pod requests of its machine, and what is counted as used there."""

from typing import Any

import msgspec
import pytest

from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.machines import MachineRoom, Machines
from carrel.scheduling.machine_room import MachineWatch, machine_of
from tests.kit.gpus import N1


def a_pod(node: str = "", **spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "a", "uid": "uid-a"}, "spec": {"nodeName": node, **spec}}, Pod)


def container(cpu: str, memory: str = "1Gi", name: str = "main", **more: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


TWO = [container("1"), container("2", name="side")]
REQUESTS = [
    pytest.param({"containers": [container("1500m")]}, (1500, 1024), id="one container"),
    pytest.param({"containers": TWO}, (3000, 2048), id="containers run together"),
    pytest.param(
        {"containers": TWO, "resources": {"requests": {"cpu": "8", "memory": "8Gi"}}},
        (8000, 8192),
        id="what is requested for the pod replaces the sum",
    ),
    pytest.param(
        {"containers": TWO, "resources": {"requests": {"cpu": "8"}}}, (8000, 2048), id="each resource by itself"
    ),
    pytest.param(
        {"containers": [{"name": "main"}], "resources": {"limits": {"cpu": "8"}, "requests": {"cpu": "4"}}},
        (4000, 0),
        id="the request of a pod counts, not its limit",
    ),
    pytest.param({"containers": TWO, "overhead": {"cpu": "250m", "memory": "120Mi"}}, (3250, 2168), id="overhead"),
    pytest.param(
        {"containers": TWO, "resources": {"requests": {"cpu": "8"}}, "overhead": {"cpu": "1"}},
        (9000, 2048),
        id="overhead comes on top of what is requested for the pod",
    ),
    pytest.param({"containers": TWO, "overhead": {"cpu": "much"}}, (3000, 2048), id="nobody can read it"),
]


@pytest.mark.parametrize(("spec", "expected"), REQUESTS)
def test_a_pod_requests_what_kube_scheduler_counts(spec: dict[str, Any], expected: tuple[int, int]) -> None:
    assert machine_of(a_pod(**spec)) == expected


RESIZES = [
    pytest.param({"containers": [container("32")]}, id="a container"),
    pytest.param(
        {"containers": [container("1")], "initContainers": [container("31", name="side", restartPolicy="Always")]},
        id="a sidecar",
    ),
    pytest.param({"containers": [container("1")], "resources": {"requests": {"cpu": "32"}}}, id="the pod as a whole"),
]


@pytest.mark.parametrize("resized", RESIZES)
def test_a_running_pod_that_is_resized_counts_with_its_new_size(resized: dict[str, Any]) -> None:
    machines = Machines()
    machines.set_node(N1, MachineRoom(64_000, 1 << 20))
    watch, before, after = MachineWatch(machines), a_pod("n1", containers=[container("1")]), a_pod("n1", **resized)
    watch.on_pod(None, before)
    assert machines.free[N1].cpu_milli == 63_000

    watch.on_pod(before, after)
    assert machines.free[N1].cpu_milli == 32_000

    watch.on_pod(after, before)
    assert machines.free[N1].cpu_milli == 63_000
    watch.on_pod(before, None)
    assert machines.free[N1].cpu_milli == 64_000


def test_a_pod_that_is_told_again_unchanged_is_not_a_change() -> None:
    machines = Machines()
    machines.set_node(N1, MachineRoom(64_000, 1 << 20))
    watch, pod = MachineWatch(machines), a_pod("n1", containers=TWO)
    watch.on_pod(None, pod)
    before = machines.free[N1]

    watch.on_pod(pod, a_pod("n1", containers=TWO))
    watch.on_pod(None, a_pod("n1", containers=TWO))

    assert machines.free[N1] is before
