"""An agent of a node whose GPUs are divided into MIG slices."""

from typing import Any

import pytest

from carrel.dialects.options import CudaDevices, DialectOptions
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.node.interfaces import AllocatedDevices
from carrel.node.settings import AgentMode
from tests.kit.agent import RunningAgent, an_agent, becomes
from tests.kit.eventually import eventually
from tests.kit.gpus import N1
from tests.kit.lab import Lab, a_lab

WHOLE, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
A100: dict[str, Any] = {"model": "NVIDIA-A100-SXM4-80GB", "memoryMiB": 81920}
DIVIDED = [{**A100, "mig": ["1g.10gb", "1g.10gb", "3g.40gb"]}, A100]
ALIKE = [{**A100, "mig": ["1g.10gb"] * 7}]


async def a_labelled_node(lab: Lab, **labels: str) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}}
    await lab.client.create(NODES, body)


async def advertises(running: RunningAgent, resource: str, indices: list[int]) -> None:
    async def advertised() -> object:
        ids = {gpu["uuid"]: gpu["id"] for gpu in await running.devices()}
        known = any(each.resource_name == resource for each in running.kubelet.registered)
        return [ids.get(each) for each in await running.kubelet.healthy(resource)] if known else []

    await becomes(advertised, indices)


async def test_slices_are_reported_and_advertised_by_their_profile() -> None:
    async with a_lab([]) as lab, an_agent(lab, gpus=DIVIDED) as running:
        devices = sorted(await running.devices(), key=lambda gpu: int(gpu["id"]))
        assert [(gpu["id"], gpu.get("mig", {}).get("profile")) for gpu in devices] == [
            *((1, None), (1000, "1g.10gb"), (1001, "1g.10gb"), (1002, "3g.40gb")),
        ]
        assert devices[1]["model"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
        await advertises(running, WHOLE, [1])
        await advertises(running, SMALL, [1000, 1001])
        await advertises(running, LARGE, [1002])


async def test_slices_of_one_profile_are_plain_gpus_where_the_node_says_so() -> None:
    async with a_lab([]) as lab:
        await a_labelled_node(lab, **{"nvidia.com/mig.strategy": "single"})
        async with an_agent(lab, gpus=ALIKE) as running:
            await advertises(running, WHOLE, list(range(1000, 1007)))
            label = {"metadata": {"labels": {"nvidia.com/mig.strategy": "mixed"}}}
            await lab.client.patch(NODES, "n1", MergePatch(label))
            running.simulate([*ALIKE, A100])
            await advertises(running, SMALL, list(range(1000, 1007)))
            await advertises(running, WHOLE, [1])


@pytest.mark.parametrize("cuda", ["uuid", "index"])
async def test_a_container_gets_the_slice_that_its_pod_was_promised(cuda: str) -> None:
    names = CudaDevices(cuda)
    async with a_lab([]) as lab:
        await a_labelled_node(lab)
        options = DialectOptions(cuda_devices=names)
        async with (
            an_agent(lab, gpus=DIVIDED, cuda_devices=names) as running,
            lab.replica(dialect_options=options) as extender,
        ):
            await eventually(lambda: extender.ledger.entries(N1))
            pod = await lab.pod("a", limits={LARGE: "1"})
            assert await extender.bind(pod, "n1") is None
            await advertises(running, LARGE, [1002])

            environment = await running.kubelet.allocate(LARGE, await running.kubelet.healthy(LARGE))

            uuid = next(gpu["uuid"] for gpu in await running.devices() if gpu["id"] == 1002)
            assert uuid.startswith("MIG-")
            assert environment == {"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_VISIBLE_DEVICES": uuid}


async def test_a_gpu_that_is_divided_anew_is_advertised_anew() -> None:
    async with a_lab([]) as lab, an_agent(lab, gpus=DIVIDED) as running:
        await advertises(running, LARGE, [1002])
        running.simulate([A100, A100])
        await advertises(running, WHOLE, [0, 1])
        await advertises(running, SMALL, [])
        await advertises(running, LARGE, [])
        running.simulate([A100, {**A100, "mig": ["3g.40gb"]}])
        await advertises(running, LARGE, [1010])


async def test_beside_nvidias_plugin_slices_are_reported_and_not_advertised() -> None:
    async with a_lab([]) as lab, an_agent(lab, gpus=DIVIDED, mode=AgentMode.COEXIST) as running:
        assert {gpu["id"] for gpu in await running.devices()} == {1, 1000, 1001, 1002}
        assert not [each for each in running.kubelet.registered if each.resource_name.startswith("nvidia.com/")]


async def test_beside_nvidias_plugin_the_agent_reports_who_has_which_slice() -> None:
    async with a_lab([]) as lab, an_agent(lab, gpus=DIVIDED, mode=AgentMode.COEXIST) as running:
        uuid = next(gpu["uuid"] for gpu in await running.devices() if gpu["id"] == 1001)
        container = {"name": "main", "image": "work", "resources": {"limits": {SMALL: "1"}}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        pod = await lab.client.create(PODS, {**body, "spec": {"nodeName": "n1", "containers": [container]}}, "lab")
        running.kubelet.allocated_devices = [AllocatedDevices("lab", "a", "main", SMALL, (uuid,))]

        async def users() -> object:
            return {gpu["id"]: gpu["inUseBy"] for gpu in await running.devices() if gpu["inUseBy"]}

        await becomes(users, {1001: [pod["metadata"]["uid"]]})
