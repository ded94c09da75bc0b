"""The simulated kubelets: what they write at the start and at each beat, and what comes back after it was deleted."""

import asyncio
import time
from datetime import timedelta

import pytest

from carrel.dialects import nvidia
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import BindTarget, Json, NotFound
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS
from carrel.kubernetes.reflector import Informers
from carrel.ledger.gpus import Node
from testbed.kubelets import LEASES_NAMESPACE, REPORT_EVERY, STATUS_EVERY, SimulatedKubelets
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab


def kubelets_of(lab: Lab, *nodes: Node) -> SimulatedKubelets:
    return SimulatedKubelets(lab.client, nodes, Informers(lab.client).watch(PODS), lab.clock)


async def versions(lab: Lab) -> list[str]:
    """Of the Node, its Lease and its GpuNodeStatus."""
    found = (
        await lab.client.get(NODES, "n1"),
        await lab.client.get(LEASES, "n1", LEASES_NAMESPACE),
        await lab.client.get(GPU_NODE_STATUSES, "n1"),
    )
    return [each["metadata"]["resourceVersion"] for each in found]


async def test_a_deleted_node_comes_back_with_the_next_beat() -> None:
    async with a_lab([]) as lab:
        kubelets = kubelets_of(lab, a_node("n1", gpus=2))
        await kubelets.announce()
        await lab.client.delete(NODES, "n1")
        with pytest.raises(NotFound):
            await lab.client.get(NODES, "n1")

        await kubelets.announce()

        node = await lab.client.get(NODES, "n1")
        lease = await lab.client.get(LEASES, "n1", LEASES_NAMESPACE)
        assert node["status"]["capacity"][nvidia.GPU] == "2"
        assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]


async def test_after_a_restart_with_other_gpus_the_node_says_so() -> None:
    async with a_lab([]) as lab:
        await kubelets_of(lab, a_node("n1", gpus=2)).announce()
        uid = (await lab.client.get(NODES, "n1"))["metadata"]["uid"]
        mixed = Node(N1, (*a_node("n1", gpus=3).gpus, *a_node("n1", gpus=1, model="other").gpus), {"zone": "lab"})

        await kubelets_of(lab, mixed).announce()

        node = await lab.client.get(NODES, "n1")
        assert node["metadata"]["uid"] == uid
        assert node["status"]["capacity"][nvidia.GPU] == node["status"]["allocatable"][nvidia.GPU] == "4"
        assert node["metadata"]["labels"]["zone"] == "lab"
        assert nvidia.PRODUCT not in node["metadata"]["labels"]


async def test_where_nothing_changes_a_beat_writes_only_the_lease() -> None:
    async with a_lab([]) as lab:
        kubelets = kubelets_of(lab, a_node("n1", gpus=2))
        await kubelets.announce()
        node, lease, report = await versions(lab)

        lab.clock.now += timedelta(seconds=10)
        await kubelets.announce()
        again = await versions(lab)
        lab.clock.now += REPORT_EVERY
        await kubelets.announce()
        later = await versions(lab)
        lab.clock.now += STATUS_EVERY
        await kubelets.announce()
        refreshed = await versions(lab)

        assert (again[0], again[2]) == (node, report)
        assert again[1] != lease
        assert later[0] == node
        assert later[2] != report
        assert refreshed[0] != node


async def test_a_bound_pod_runs_at_an_address_of_its_own() -> None:
    async with a_lab([]) as lab:
        informers = Informers(lab.client)
        kubelets = SimulatedKubelets(lab.client, [a_node("n1", gpus=2)], informers.watch(PODS), lab.clock)
        await kubelets.announce()
        for name in ("one", "two"):
            pod = await lab.pod(name)
            await lab.client.bind(BindTarget("lab", name, pod["metadata"]["uid"], "n1"))
        running = [asyncio.ensure_future(informers.run()), asyncio.ensure_future(kubelets.run())]
        try:
            found = [await wait_running(lab, name) for name in ("one", "two")]
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

        addresses = {status["podIP"] for status in found}
        assert len(addresses) == 2
        assert [status["podIPs"] for status in found] == [[{"ip": status["podIP"]}] for status in found]
        assert all(each["ready"] and each["started"] for status in found for each in status["containerStatuses"])


async def wait_running(lab: Lab, name: str) -> Json:
    give_up = time.monotonic() + LIMIT_S
    while True:
        status: Json = (await lab.client.get(PODS, name, "lab"))["status"]
        if status.get("phase") == "Running":
            return status
        assert time.monotonic() < give_up, status
        await asyncio.sleep(0.01)
