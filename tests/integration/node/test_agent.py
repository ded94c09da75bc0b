"""The whole agent: what it reports, advertises, allocates and excludes."""

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from carrel.configuration.gpu_memory import MemoryResource
from carrel.dialects.options import Unit
from carrel.kubernetes.cluster import EVERYTHING, BindTarget, DeleteOptions, FieldValidation, Forbidden, MergePatch
from carrel.kubernetes.objects.resources import CONFIG_MAPS, EVENTS, NODES, PODS
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from carrel.node.interfaces import AllocatedDevices
from carrel.node.nvidia_socket import NvidiaPluginSocket
from carrel.node.settings import AgentMode
from tests.kit.agent import RunningAgent, an_agent, becomes
from tests.kit.definitions import define_anew, forget_field
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import a_lab

MEM, WHOLE = "aliyun.com/gpu-mem", "nvidia.com/gpu"
GPU = {"model": "Tesla-V100", "memoryMiB": 16276}
EIGHT_LARGE = [{"count": 8, "model": "NVIDIA-H100-80GB-HBM3", "memoryMiB": 81920}]


async def test_it_reports_and_advertises_its_gpus() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, an_agent(lab) as running:
        status = await running.status()
        assert (status["total"], status["memoryUnit"], status["mode"]) == (2, "MiB", "native")
        assert len(await running.kubelet.healthy(MEM)) == 32552
        await eventually(lambda: running.agent.whole_gpus.is_registered)
        assert await running.kubelet.healthy(WHOLE) == [gpu["uuid"] for gpu in status["devices"]]

        async def counted() -> object:
            node = await lab.client.get(NODES, "n1")
            return [node["status"][where]["aliyun.com/gpu-count"] for where in ("capacity", "allocatable")]

        await becomes(counted, ["2", "2"])
        assert running.agent.trouble() == ""


async def test_a_container_gets_the_gpu_that_the_extender_promised_its_pod() -> None:
    async with a_lab([]) as lab:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        await lab.client.create(NODES, node)
        async with an_agent(lab) as running, lab.replica() as extender:
            await eventually(lambda: extender.ledger.entries(N1))
            pod = await lab.pod("a", limits={MEM: "8138"})
            assert await extender.bind(pod, "n1") is None
            ids = (await running.kubelet.healthy(MEM))[:8138]

            environment = await running.kubelet.allocate(MEM, ids)

            notes = await lab.annotations("a")
            assert environment["NVIDIA_VISIBLE_DEVICES"] == notes["carrel.dev/devices"]

            async def assigned() -> object:
                return (await lab.annotations("a"))["ALIYUN_COM_GPU_MEM_ASSIGNED"]

            await becomes(assigned, "true")
            running.kubelet.allocated_devices = [AllocatedDevices("lab", "a", "main", MEM, tuple(ids))]
            status = MergePatch({"status": {"phase": "Running"}})
            await lab.client.patch(PODS, "a", status, "lab", subresource="status")

            async def users() -> object:
                return [entry["inUseBy"] for entry in await running.devices()]

            await becomes(users, [[pod["metadata"]["uid"]], []])
            with pytest.raises(grpc.aio.AioRpcError, match="no pod of this node waits for so many"):
                await running.kubelet.allocate(MEM, ids)


KEEPS = [{**GPU, "keptMiB": 450}]
"""A GPU whose driver keeps some of its memory."""


async def test_it_reports_what_pods_may_share_and_advertises_all_memory() -> None:
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        async with an_agent(lab, gpus=KEEPS) as running, lab.replica() as extender:
            (device,) = await running.devices()
            assert (device["memoryMiB"], device["usableMiB"]) == (16276, 15826)
            assert len(await running.kubelet.healthy(MEM)) == 16276
            await eventually(lambda: extender.ledger.entries(N1))

            pod = await lab.pod("a", limits={MEM: "16276"})  # what the whole GPU has: this pod gets it alone
            assert await extender.bind(pod, "n1") is None
            environment = await running.kubelet.allocate(MEM, (await running.kubelet.healthy(MEM))[:16276])

            notes = await lab.annotations("a")
            assert environment["NVIDIA_VISIBLE_DEVICES"] == notes["carrel.dev/devices"]
            assert (notes["ALIYUN_COM_GPU_MEM_POD"], notes["ALIYUN_COM_GPU_MEM_DEV"]) == ("16276", "16276")
            assert [entry.free for entry in extender.ledger.entries(N1)] == [0]


async def test_it_reports_whether_its_driver_can_limit_memory(tmp_path: Path) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    (tmp_path / "cgroup.controllers").touch()
    new, old = {**GPU, "driver": "615.20"}, {**GPU, "driver": "570.86"}
    async with a_lab([]) as lab, an_agent(lab, gpus=[new], cgroups=tmp_path) as running:

        async def said() -> object:
            return (await running.status()).get("memoryLimits")

        await becomes(said, "possible")
        running.simulate([new, old])
        await becomes(said, "its driver 570.86 is older than 615")


async def test_where_gpushare_takes_part_all_memory_counts() -> None:
    async with a_lab([]) as lab:
        labelled = {"name": "n1", "labels": {"gpushare": "true"}}
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": labelled})
        async with an_agent(lab, gpus=KEEPS) as running:
            await becomes(lambda: _usable(running), [None])
            await lab.client.patch(NODES, "n1", MergePatch({"metadata": {"labels": {"gpushare": None}}}))
            await becomes(lambda: _usable(running), [15826])


async def _usable(running: RunningAgent) -> object:
    return [device.get("usableMiB") for device in await running.devices()]


async def test_an_unhealthy_gpu_is_withdrawn_and_returns_when_healthy() -> None:
    async with a_lab([]) as lab, an_agent(lab) as running:

        async def seen() -> object:
            devices = [(gpu["health"], gpu.get("reason")) for gpu in await running.devices()]
            return devices, len(await running.kubelet.healthy(MEM))

        well, failed = ("Healthy", None), ("Unhealthy", "XID 79")
        await becomes(seen, ([well, well], 32552))
        running.simulate([GPU, {**GPU, "unusable": "XID 79"}])
        await becomes(seen, ([well, failed], 16276))
        running.simulate([GPU, GPU])
        await becomes(seen, ([well, well], 32552))


async def test_memory_that_is_too_much_in_mib_is_not_advertised_and_the_right_unit_is_named() -> None:
    async with a_lab([]) as lab, an_agent(lab, gpus=EIGHT_LARGE) as running:
        status = await running.status()
        assert status["memoryUnit"] == "MiB", "what a number on a pod means, whether it is advertised or not"
        assert status["message"] == (
            "aliyun.com/gpu-mem is not advertised: so much memory in MiB is more than the kubelet accepts in one "
            "message; an admin writes memory.resource: node into the configuration, or memory.unit: 4MiB"
        )
        assert await running.kubelet.healthy(MEM) == []
        await eventually(lambda: running.agent.whole_gpus.is_registered)
        assert len(await running.kubelet.healthy(WHOLE)) == 8


async def test_in_the_named_unit_all_memory_is_advertised() -> None:
    async with a_lab([]) as lab, an_agent(lab, gpus=EIGHT_LARGE, memory_unit=Unit.MIB_4) as running:
        assert (await running.status())["memoryUnit"] == "4MiB"
        assert len(await running.kubelet.healthy(MEM)) == 8 * 81920 // 4


async def told(running: RunningAgent, words: str) -> bool:
    return words in (await running.status()).get("message", "")


async def test_it_stops_for_nvidias_plugin_and_starts_again_after_it() -> None:
    async with a_lab([]) as lab, an_agent(lab) as running:
        await eventually(lambda: running.agent.whole_gpus.is_registered)
        theirs = running.kubelet.folder / "nvidia-gpu.sock"
        theirs.touch()
        await eventually(lambda: not running.agent.whole_gpus.is_registered)
        theirs.unlink()
        with socket.socket(socket.AF_UNIX) as plugin:
            plugin.bind(str(theirs))
            plugin.listen()
            await becomes(lambda: told(running, "set nodes.plugin: coexist, or remove that plugin"), True)
        theirs.unlink()
        await eventually(lambda: running.agent.whole_gpus.is_registered)


async def test_beside_nvidias_plugin_whole_gpus_are_not_advertised() -> None:
    async with a_lab([]) as lab, an_agent(lab, mode=AgentMode.COEXIST) as running:
        assert (await running.status())["mode"] == "coexist"
        assert {each.resource_name for each in running.kubelet.registered} == {MEM}


async def test_both_gpus_of_a_pod_with_a_wrong_device_are_excluded_until_it_is_deleted() -> None:
    async with a_lab([]) as lab, an_agent(lab) as running:
        first, second = (gpu["uuid"] for gpu in await running.devices())
        pod = await lab.pod("a", limits={MEM: "1"}, annotations={"carrel.dev/devices": second})
        ids = (await running.kubelet.healthy(MEM))[:1]
        running.kubelet.allocated_devices = [AllocatedDevices("lab", "a", "main", MEM, tuple(ids))]
        await lab.client.bind(BindTarget("lab", "a", pod["metadata"]["uid"], "n1"))

        async def reasons() -> object:
            return [gpu.get("reason") for gpu in await running.devices()]

        words = f"the kubelet gave {first} to container main of lab/a, whose annotation names {second}, but no Lease"
        await becomes(reasons, [words, words])
        events = (await lab.client.list(EVENTS, EVERYTHING)).items
        assert [(event.reason, event.involved_object.name) for event in events] == [("OtherGPUHandedOver", "a")]

        running.kubelet.allocated_devices = ()
        await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))
        await becomes(reasons, [None, None])


async def test_a_gpu_that_an_admin_excludes_as_in_gpushare_is_withdrawn(caplog: pytest.LogCaptureFixture) -> None:
    async with a_lab([]) as lab, an_agent(lab) as running:
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "unhealthy-gpu-n1"}}

        async def reasons() -> object:
            return [gpu.get("reason") for gpu in await running.devices()]

        await lab.client.create(CONFIG_MAPS, {**config_map, "data": {"gpus": "1"}}, "kube-system")
        aside = [None, "excluded by ConfigMap kube-system/unhealthy-gpu-n1"]
        await becomes(reasons, aside)
        slip = MergePatch({"data": {"gpus": "1;"}})
        await lab.client.patch(CONFIG_MAPS, "unhealthy-gpu-n1", slip, "kube-system")
        await eventually(lambda: "data.gpus" in caplog.text)
        running.simulate([{**GPU, "unusable": "XID 79"}, GPU])
        await becomes(reasons, ["XID 79", aside[1]])  # a typing error repairs no GPU
        running.simulate([GPU, GPU])
        await lab.client.delete(CONFIG_MAPS, "unhealthy-gpu-n1", "kube-system")
        await becomes(reasons, [None, None])


async def test_an_agent_without_permissions_says_so_and_recovers_with_them(caplog: pytest.LogCaptureFixture) -> None:
    class Gate:
        """An API server that may refuse every write."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.is_open = inner, False

        async def send(self, request: ApiRequest) -> ApiResponse:
            if not self.is_open and request.method != "GET":
                raise Forbidden(403, "Forbidden", "gpunodestatuses is forbidden: carrel-agent cannot create it")
            answer: ApiResponse = await self.inner.send(request)
            return answer

        async def aclose(self) -> None:
            """Nothing to close: the API belongs to the test."""

    async with a_lab([]) as lab:
        gate = Gate(lab.api)
        async with an_agent(lab, gate) as running:
            assert "carrel-agent cannot create it" in running.agent.trouble()
            assert len(await running.kubelet.healthy(MEM)) == 32552, "pods that were promised GPUs still get them"
            gate.is_open = True
            running.simulate([GPU, GPU])  # something to report, so that the test need not wait for the next round
            await eventually(lambda: running.agent.trouble() == "")
    assert caplog.text.count("trouble about=report") == 1


async def test_a_node_name_that_the_cluster_does_not_have_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with a_lab([]) as lab, an_agent(lab):
        await eventually(lambda: "trouble about=node: the cluster has no node n1: is --node-name right?" in caplog.text)
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        await eventually(lambda: "trouble_over about=node" in caplog.text)


async def test_gpus_are_reported_while_the_kubelet_is_down() -> None:
    async with a_lab([]) as lab, an_agent(lab) as running:
        await running.kubelet.stop()
        running.simulate([GPU])

        async def total() -> object:
            return (await running.status())["total"]

        await becomes(total, 1)
        await running.kubelet.start()
        await eventually(lambda: len(running.kubelet.registered) >= 3)


async def test_an_agent_that_is_newer_than_the_cluster_reports_and_says_what_is_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_lab([]) as lab:
        await forget_field(lab.client, "mode")
        async with an_agent(lab, fields=FieldValidation.WARN) as running:

            async def told() -> tuple[str | None, str | None, int]:
                lab.clock.now += timedelta(seconds=20)
                await running.agent.run_once()
                status = await running.status()
                return status.get("message"), status.get("mode"), len(status["devices"])

            why = (
                "the cluster's GpuNodeStatus definition is older than this agent "
                "(unknown: status.mode); apply Carrel's crds.yaml again"
            )
            await becomes(told, (why, None, 2))
            await define_anew(lab.client)
            await becomes(told, (None, "native", 2))

    warnings = [record.getMessage() for record in caplog.records if "api_server_warns" in record.getMessage()]
    assert len(warnings) == 1 and "status.mode" in warnings[0], "each text is logged once"


async def test_an_agent_that_only_reports_registers_nothing_and_writes_nothing_on_the_node() -> None:
    """Another product's plugins and scheduler serve the node."""
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        mode, unit = AgentMode.REPORT_ONLY, Unit.GIB
        async with an_agent(lab, mode=mode, memory_resource=MemoryResource.AUTO, memory_unit=unit) as running:
            theirs = await lab.pod("theirs", limits={WHOLE: "1"})
            target = BindTarget("lab", "theirs", theirs["metadata"]["uid"], "n1")
            await lab.client.bind(target)
            second = (await running.devices())[1]["uuid"]
            running.kubelet.allocated_devices = [AllocatedDevices("lab", "theirs", "main", WHOLE, (second,))]

            async def users() -> object:
                await running.agent.run_once()
                return [(gpu["inUseBy"], gpu["health"]) for gpu in await running.devices()]

            await becomes(users, [([], "Healthy"), ([theirs["metadata"]["uid"]], "Healthy")])
            assert (await running.status())["memoryUnit"] == "GiB", "without it a number on a pod means nothing"
            assert running.agent.trouble() == ""
            assert running.kubelet.registered == []
            status = (await lab.client.get(NODES, "n1")).get("status", {})
            assert "aliyun.com/gpu-count" not in status.get("capacity", {})
            assert (await lab.client.list(EVENTS, EVERYTHING)).items == []


async def test_a_definition_that_drops_fields_is_named_on_the_node_and_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another product's definition: it knows no UUIDs."""
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        await forget_field(lab.client, "devices", "items", "uuid")
        async with an_agent(lab, fields=FieldValidation.WARN) as running:

            async def told() -> object:
                await running.agent.run_once()
                events = (await lab.client.list(EVENTS, EVERYTHING)).items
                return [(event.reason, event.involved_object.kind, event.involved_object.name) for event in events]

            await becomes(told, [("GPUFieldsDropped", "Node", "n1")])
            (event,) = (await lab.client.list(EVENTS, EVERYTHING)).items
    assert "status.devices[].uuid" in event.message
    assert event.message.endswith("apply Carrel's crds.yaml again")
    assert any("about=definition" in record.getMessage() for record in caplog.records)


async def test_a_whole_gpu_is_handed_over_also_where_a_definition_drops_its_uuid() -> None:
    """The Lease names the place of the GPU then, and the pod its index; the agent knows which GPU that is."""
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        await forget_field(lab.client, "devices", "items", "uuid")
        async with an_agent(lab, fields=FieldValidation.WARN) as running, lab.replica() as extender:
            await eventually(lambda: extender.ledger.entries(N1))
            await eventually(lambda: running.agent.whole_gpus.is_registered)
            first, second = await running.kubelet.healthy(WHOLE)
            for name, gpu in (("a", first), ("b", second)):
                pod = await lab.pod(name, limits={WHOLE: "1"})
                assert await extender.bind(pod, "n1") is None
                told = {"NVIDIA_VISIBLE_DEVICES": gpu, "CUDA_VISIBLE_DEVICES": gpu}
                assert await running.kubelet.allocate(WHOLE, [gpu]) == told
                running.kubelet.allocated_devices = [
                    *running.kubelet.allocated_devices,
                    AllocatedDevices("lab", name, "main", WHOLE, (gpu,)),
                ]
                status = MergePatch({"status": {"phase": "Running"}})
                await lab.client.patch(PODS, name, status, "lab", subresource="status")

                async def users() -> object:
                    return [len(entry["inUseBy"]) for entry in await running.devices()]

                await becomes(users, [1, int(name == "b")])
            assert all(entry["health"] == "Healthy" for entry in await running.devices())


async def test_the_refusal_of_a_pod_that_another_scheduler_placed_says_so() -> None:
    async with a_lab([]) as lab:
        await lab.client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        async with an_agent(lab) as running:
            theirs = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}
            pod = await lab.pod("theirs", limits={MEM: "2"}, annotations=theirs)
            await lab.client.bind(BindTarget("lab", "theirs", pod["metadata"]["uid"], "n1"))
            ids = (await running.kubelet.healthy(MEM))[:2]
            words = r"lab/theirs was placed by another scheduler \(gpu-scheduler\): no Lease promises it GPU 0"
            with pytest.raises(grpc.aio.AioRpcError, match=words):
                await running.kubelet.allocate(MEM, ids)


async def test_a_socket_that_nvidias_plugin_left_behind_does_not_keep_whole_gpus_from_being_advertised(
    tmp_path: Path,
) -> None:
    now = 0.0
    served = NvidiaPluginSocket(tmp_path, lambda: now)
    assert not served.is_served()

    path = tmp_path / "nvidia-gpu.sock"
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(path))
        plugin.listen()
        assert served.is_served()
        now = 1000.0
        assert served.is_served()
        assert served.trouble().startswith("NVIDIA's device plugin serves this node, and nodes.plugin is native")
    now = 1010.0
    assert served.is_served(), "it may be restarting"
    assert "nobody listens on nvidia-gpu.sock" in served.trouble()
    now = 1100.0
    assert not served.is_served()
    path.unlink()
    assert not served.is_served()
    assert served.trouble() == ""
