"""By which names a container is told its GPUs: UUIDs; indices for CUDA, by a setting, or where no UUID is known."""

from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.options import CudaDevices, DialectOptions
from carrel.ids import GpuUuid
from carrel.kubernetes.cluster import DeleteOptions, MergePatch
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.node.allocation import DeviceAllocation
from carrel.node.comparison import AllocationMode, Comparison
from carrel.node.device_names import DeviceInventory
from carrel.node.interfaces import AllocatedDevices
from carrel.node.lease_check import LeaseCheck
from carrel.node.settings import AgentOptions
from tests.kit.coexist_node import HALF, a_coexist_node
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.reviews import GPU, Json, ReviewedCluster, a_pod

BY_INDEX = DialectOptions(cuda_devices=CudaDevices.INDEX)
WHOLE = "nvidia.com/gpu"
TWO_CONTAINERS = [{"name": name, "image": "work", "resources": {"limits": GPU}} for name in "ab"]


# --- CUDA_VISIBLE_DEVICES as indices, by a setting -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "container", "seen"),
    [
        pytest.param(a_pod(GPU), "main", ("<carrel.dev/devices>", "<carrel.dev/indices>"), id="one container"),
        pytest.param(
            a_pod(containers=TWO_CONTAINERS),
            "b",
            ("<devices.carrel.dev/b>", "<indices.carrel.dev/b>"),
            id="containers with GPUs of their own",
        ),
    ],
)
async def test_by_the_setting_cuda_reads_indices_and_the_runtime_reads_uuids(
    pod: Json, container: str, seen: tuple[str, str]
) -> None:
    reviewed = await ReviewedCluster(dialect_options=BY_INDEX).create(pod)

    env = reviewed.env(container)
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_VISIBLE_DEVICES"]) == seen


async def test_by_the_setting_a_bind_writes_the_indices_of_the_pods_gpus_and_of_each_container() -> None:
    async with a_lab([a_node("n1", 3)]) as lab, lab.replica(dialect_options=BY_INDEX) as replica:
        assert await replica.bind(await lab.pod("first", limits=GPU), "n1") is None
        assert await replica.bind(await lab.pod("pair", containers=TWO_CONTAINERS), "n1") is None

        assert (await lab.annotations("first"))["carrel.dev/indices"] == "0"
        told = await lab.annotations("pair")
        assert told["carrel.dev/indices"] == "1,2"
        assert [told[f"indices.carrel.dev/{name}"] for name in "ab"] == ["1", "2"]
        assert [told[f"devices.carrel.dev/{name}"] for name in "ab"] == ["GPU-n1-1", "GPU-n1-2"]


async def test_without_the_setting_no_index_is_written() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("a", limits=GPU), "n1") is None

        assert await lab.annotations("a") == {"carrel.dev/devices": "GPU-n1-0"}


async def test_where_the_kubelet_chooses_it_is_the_index_of_the_gpu_and_not_of_the_slot() -> None:
    async with a_coexist_node(dialect_options=BY_INDEX) as node_lab:
        await node_lab.run_pod("a", annotations=HALF)

        told = await node_lab.lab.annotations("a")
        assert (told["carrel.dev/indices"], told["carrel.dev/slots"]) == ("1", "n1/0")


def _indices_of(cuda: str) -> list[dict[str, Any]]:
    sources = {"NVIDIA_VISIBLE_DEVICES": "carrel.dev/devices", "CUDA_VISIBLE_DEVICES": cuda}
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}
        for name, key in sources.items()
    ]


async def test_the_agent_accepts_a_container_that_reads_indices_and_answers_with_indices_itself() -> None:
    inventory = DeviceInventory(a_node("n1").gpus)
    async with a_lab([a_node("n1")]) as lab, lab.replica(dialect_options=BY_INDEX) as replica:
        assert await replica.bind(await lab.pod("first", limits=GPU), "n1") is None
        container = {
            "name": "main",
            "image": "work",
            "env": _indices_of("carrel.dev/indices"),
            "resources": {"limits": GPU},
        }
        assert await replica.bind(await lab.pod("a", containers=[container]), "n1") is None
        pod = await replica.sees(await lab.client.get(PODS, "a", "lab"))
        settings = AgentOptions(node_name=N1, cuda_devices=CudaDevices.INDEX)
        check = LeaseCheck(lab.client, N1, "carrel")
        allocation = DeviceAllocation(lab.client, settings, check, (pod,), lab.clock, clock=lab.clock.seconds)
        allocation.update(inventory, ())
        told = {"NVIDIA_VISIBLE_DEVICES": "GPU-n1-1", "CUDA_VISIBLE_DEVICES": "1"}
        assert await allocation.allocate(WHOLE, ["GPU-n1-1"]) == told

        comparison = Comparison(lab.client, check, lab.clock)
        # The kubelet's device is that of another pod of equal size; the container still sees its own.
        rows = [AllocatedDevices("lab", "a", "main", WHOLE, ("GPU-n1-0",))]
        result = await comparison.compare([pod], rows, inventory, AllocationMode())
        assert result.mismatches == ()
        assert result.in_use_by[GpuUuid("GPU-n1-1")] == [pod.metadata.uid]


# --- a GpuNodeStatus that reports no UUID ----------------------------------------------------------------------------


async def without_uuids(lab: Lab) -> None:
    """As the GpuClaim scheduler's own agent reports a node."""
    devices = [{"id": index, "health": "Healthy", "inUseBy": []} for index in range(3)]
    patch = MergePatch({"status": {"devices": devices, "total": 3}})
    await lab.client.patch(GPU_NODE_STATUSES, "n1", patch, subresource="status")


async def test_where_no_uuid_is_reported_the_container_is_told_the_index_which_nvidias_runtime_understands() -> None:
    async with a_lab([a_node("n1", 3)]) as lab:
        await without_uuids(lab)
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("first", limits=GPU), "n1")
            pod = await lab.pod("pair", containers=TWO_CONTAINERS)
            assert await replica.bind(pod, "n1") is None

        assert await lab.annotations("pair") == {
            "carrel.dev/devices": "1,2",
            "devices.carrel.dev/a": "1",
            "devices.carrel.dev/b": "2",
            "carrel.dev/slots": "n1/1,n1/2",
        }
        assert list(await lab.held()) == ["gpu-n1-0", "gpu-n1-1", "gpu-n1-2"]


async def test_a_pod_of_such_a_node_holds_its_gpu_also_when_its_lease_is_gone_and_frees_it_when_it_ends() -> None:
    async with a_lab([a_node("n1", 3)]) as lab:
        await without_uuids(lab)
        async with lab.replica() as replica:
            for name in ("first", "second"):
                assert await replica.bind(await lab.pod(name, limits=GPU), "n1") is None
            await lab.client.delete(LEASES, "gpu-n1-1", "carrel")
            await eventually(lambda: replica.cluster_ledger.lease("gpu-n1-1") is None)
            await replica.sees(await lab.client.get(PODS, "second", "lab"))
            assert [entry.gpu.index for entry in replica.ledger.entries(N1) if not entry.shares] == [2]

            await lab.client.delete(PODS, "first", "lab", how=DeleteOptions(grace_seconds=0))
            await eventually(lambda: replica.pods.store.get("first", "lab") is None)
            await replica.collector.collect()
            assert await lab.held() == {}
