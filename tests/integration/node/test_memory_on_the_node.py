"""The agent where memory is a number on the Node: how much it says, what it puts back, when the way changes."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from carrel.configuration.gpu_memory import MemoryResource
from carrel.dialects import gpushare, visible_devices
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.node.interfaces import AllocatedDevices
from tests.kit.agent import an_agent, becomes
from tests.kit.eventually import eventually
from tests.kit.gpus import N1
from tests.kit.kubelet import a_kubelet
from tests.kit.lab import Lab, a_lab
from tests.kit.objects import pod

MEM = "aliyun.com/gpu-mem"
GPU = {"model": "Tesla-V100", "memoryMiB": 16276}
EIGHT_LARGE = [{"count": 8, "model": "NVIDIA-H100-80GB-HBM3", "memoryMiB": 81920}]
ON_NODE: dict[str, Any] = {"memory_resource": MemoryResource.NODE}
AUTO: dict[str, Any] = {"memory_resource": MemoryResource.AUTO}
REMEMBERED = '{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {"aliyun.com/gpu-mem": []}}, "Checksum": 1}'
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}


async def a_node_object(lab: Lab, version: str = "v1.37.1") -> None:
    await lab.client.create(NODES, NODE)
    info = MergePatch({"status": {"nodeInfo": {"kubeletVersion": version}, "capacity": {}, "allocatable": {}}})
    await lab.client.patch(NODES, "n1", info, subresource="status")


def shown(lab: Lab) -> Callable[[], Awaitable[object]]:
    async def read_state() -> object:
        status = (await lab.client.get(NODES, "n1"))["status"]
        return [status.get(where, {}).get(MEM) for where in ("capacity", "allocatable")]

    return read_state


async def write(lab: Lab, amount: str | None) -> None:
    amounts = {where: {MEM: amount} for where in ("capacity", "allocatable")}
    await lab.client.patch(NODES, "n1", MergePatch({"status": amounts}), subresource="status")


@pytest.mark.parametrize(
    ("version", "gpus", "mode"),
    [
        pytest.param("v1.37.1", [GPU], "node", id="too many devices for this kubelet"),
        pytest.param("v1.35.4", [GPU], "plugin", id="an older one takes them"),
        pytest.param("v1.37.1", [{**GPU, "memoryMiB": 1016}], "plugin", id="few devices"),
        pytest.param("v1.35.4", EIGHT_LARGE, "node", id="more than one message takes"),
    ],
)
async def test_auto_chooses_the_mode_that_is_safe_for_the_kubelet(
    version: str, gpus: list[dict[str, Any]], mode: str
) -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab, version)
        async with an_agent(lab, gpus=gpus, **AUTO) as running:

            async def advertised() -> object:
                status = await running.status()
                return status.get("memoryResource"), status.get("memoryUnit")

            await becomes(advertised, (mode, "MiB"))
            await eventually(lambda: running.agent.whole_gpus.is_registered)
            assert (MEM in {each.resource_name for each in running.kubelet.registered}) is (mode == "plugin")


async def test_the_number_stays_on_the_node_and_eight_large_gpus_fit() -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab)
        async with an_agent(lab, gpus=EIGHT_LARGE, **ON_NODE):
            await becomes(shown(lab), ["655360", "655360"])
            await write(lab, "0")  # as a kubelet does that has lost its checkpoint
            await becomes(shown(lab), ["655360", "655360"])
        assert await shown(lab)() == ["655360", "655360"], "an agent that ends leaves it to the pods that run"


async def test_an_unhealthy_gpu_is_subtracted_but_not_what_pods_hold_of_it() -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab)
        async with an_agent(lab, **ON_NODE) as running, lab.replica() as extender:
            await eventually(lambda: extender.ledger.entries(N1))
            for name in ("a", "b"):
                container = {"name": "main", "image": "work", "resources": {"limits": {MEM: "12207"}}}
                told = gpushare.variables(pod(limits=[{MEM: "12207"}]), {**container, "name": "c0"})
                admitted = visible_devices.shown(
                    container, visible_devices.Sight("carrel.dev/devices", "carrel.dev/devices"), told
                )
                assert await extender.bind(await lab.pod(name, containers=[admitted]), "n1") is None
            running.simulate([GPU, {**GPU, "unusable": "XID 79"}])
            await becomes(shown(lab), ["28483", "28483"])  # 16276 of the healthy GPU, 12207 held of the other
            running.simulate([{**GPU, "unusable": "XID 79"}] * 2)
            await becomes(shown(lab), ["24414", "24414"])
            running.simulate([GPU, GPU])
            await becomes(shown(lab), ["32552", "32552"])


async def test_nothing_is_advertised_while_the_kubelet_remembers_a_plugin_and_would_refuse_pods() -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab)
        async with an_agent(lab, **ON_NODE) as running:
            await becomes(shown(lab), ["32552", "32552"])
            checkpoint = running.kubelet.folder / "kubelet_internal_checkpoint"
            checkpoint.write_text(REMEMBERED)  # as if gpushare's own plugin had been installed
            await write(lab, "7")

            async def is_withheld() -> object:
                return "the kubelet remembers a device plugin" in (await running.status()).get("message", "")

            await becomes(is_withheld, True)
            assert await shown(lab)() == ["7", "7"]
            checkpoint.unlink()
            await write(lab, "0")
            await becomes(shown(lab), ["32552", "32552"])
            await becomes(is_withheld, False)


async def test_an_unreadable_checkpoint_is_reported_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab)
        async with an_agent(lab, **ON_NODE) as running:
            await becomes(shown(lab), ["32552", "32552"])
            (running.kubelet.folder / "kubelet_internal_checkpoint").write_text("of another form")
            await write(lab, "0")
            await becomes(shown(lab), ["32552", "32552"])
    assert "trouble about=checkpoint" in caplog.text


async def test_the_mode_does_not_change_while_a_pod_holds_memory_and_the_message_says_so() -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab)
        async with an_agent(lab, **ON_NODE), lab.replica() as extender:
            await eventually(lambda: extender.ledger.entries(N1))
            assert await extender.bind(await lab.pod("a", limits={MEM: "8138"}), "n1") is None
        async with an_agent(lab, memory_resource=MemoryResource.AUTO, gpus=[{**GPU, "memoryMiB": 1016}]) as running:

            async def advertised() -> object:
                status = await running.status()
                return status.get("memoryResource"), status.get("message", "")

            words = (
                "aliyun.com/gpu-mem is advertised by 'node', and will be advertised by 'plugin' as soon as no pod of "
                "this node holds any (pods that do: 1)"
            )
            await becomes(advertised, ("node", words))
            assert await shown(lab)() != [None, None]
            await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
            await becomes(advertised, ("plugin", ""))
            await eventually(lambda: running.agent.memory.is_registered)
            await becomes(shown(lab), [None, None])  # the kubelet writes its own


@pytest.mark.parametrize(
    ("rows", "recorded", "mode"),
    [
        pytest.param(True, "", "plugin", id="pods have devices, and no report says anything: an update from before"),
        pytest.param(True, "node", "plugin", id="pods have devices, whatever the report says"),
        pytest.param(False, "plugin", "plugin", id="the report says it"),
        pytest.param(False, "?", "node", id="the report has an unknown mode"),
    ],
)
async def test_after_a_start_the_previous_mode_is_found_out(rows: bool, recorded: str, mode: str) -> None:
    async with a_lab([]) as lab, a_kubelet() as kubelet:
        await a_node_object(lab)
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuNodeStatus", "metadata": {"name": "n1"}}
        await lab.client.create(GPU_NODE_STATUSES, {**body, "spec": {"nodeName": "n1"}})
        if recorded in ("node", "plugin"):
            record = MergePatch({"status": {"memoryResource": recorded}})
            await lab.client.patch(GPU_NODE_STATUSES, "n1", record, subresource="status")
        pod = await lab.pod("a", limits={MEM: "1"})
        await lab.client.bind(BindTarget("lab", "a", pod["metadata"]["uid"], "n1"))
        kubelet.allocated_devices = [AllocatedDevices("lab", "a", "main", MEM, ("x0000",))] if rows else ()
        async with an_agent(lab, kubelet=kubelet, **AUTO) as running:

            async def advertised() -> object:
                return (await running.status()).get("memoryResource")

            await becomes(advertised, mode)


async def test_the_gpus_that_a_pod_sees_which_bypassed_the_scheduler_are_excluded() -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab)
        async with an_agent(lab, **ON_NODE) as running:
            pod = await lab.pod("a", limits={MEM: "100"})
            await lab.client.bind(BindTarget("lab", "a", pod["metadata"]["uid"], "n1"))
            first, second = (gpu["uuid"] for gpu in await running.devices())

            async def reasons() -> object:
                return [gpu.get("reason") for gpu in await running.devices()]

            gpus = ", ".join(sorted((first, second)))
            words = f"lab/a holds aliyun.com/gpu-mem, is promised no GPU by any Lease, and can see {gpus}"
            await becomes(reasons, [words, words])
            await becomes(shown(lab), ["100", "100"])
            await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
            await becomes(reasons, [None, None])


async def test_a_pod_is_marked_as_assigned_when_it_runs() -> None:
    async with a_lab([]) as lab:
        await a_node_object(lab)
        async with an_agent(lab, **ON_NODE), lab.replica() as extender:
            await eventually(lambda: extender.ledger.entries(N1))
            assert await extender.bind(await lab.pod("a", limits={MEM: "8138"}), "n1") is None
            status = MergePatch({"status": {"phase": "Running"}})
            await lab.client.patch(PODS, "a", status, "lab", subresource="status")

            async def assigned() -> object:
                return (await lab.annotations("a"))["ALIYUN_COM_GPU_MEM_ASSIGNED"]

            await becomes(assigned, "true")
