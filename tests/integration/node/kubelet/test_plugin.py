"""The device plugin over real gRPC: registration, allocation, restarts, and bad calls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import grpc
import pytest

from carrel.dialects.options import DeviceList
from carrel.ledger.refusals import Refusal
from carrel.node.device_names import PluginDevice
from carrel.node.interfaces import AllocatedDevices, KubeletUnreachable
from carrel.node.kubelet import DevicePlugin, KubeletPodResources
from carrel.node.kubelet import device_plugin as plugin_module
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from tests.kit.eventually import eventually
from tests.kit.kubelet import FakeKubelet, a_kubelet

MEM = "aliyun.com/gpu-mem"
TWO = [PluginDevice("a", True), PluginDevice("b", True)]


class GpuAllocator:
    """Allocates two GPUs to every call."""

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        return ()

    async def allocate(self, resource: str, devices: Sequence[str]) -> Mapping[str, str] | Refusal:
        return {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}


class DeviceAllocator:
    """Allocates `a` to a call for one device, and refuses all others."""

    async def prefer(self, resource: str, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        return sorted(available)[:size]

    async def allocate(self, resource: str, devices: Sequence[str]) -> Mapping[str, str] | Refusal:
        return (
            {"GPU": "a"} if list(devices) == ["a"] else Refusal(f"no container waits for {len(devices)} of {resource}")
        )


@contextlib.asynccontextmanager
async def running(kubelet: FakeKubelet, wanted: list[bool] | None = None) -> AsyncIterator[DevicePlugin]:
    is_wanted = wanted if wanted is not None else [True]
    plugin = DevicePlugin(MEM, kubelet.folder / "ours.sock", DeviceAllocator(), lambda: is_wanted[0])
    await plugin.advertise(TWO)
    task = asyncio.ensure_future(plugin.run())
    try:
        yield plugin
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert not (kubelet.folder / "ours.sock").exists(), "it leaves nothing behind"


async def test_it_registers_and_advertises_its_devices() -> None:
    async with a_kubelet() as kubelet, running(kubelet) as plugin:
        await eventually(lambda: plugin.is_registered)
        (request,) = kubelet.registered
        assert (request.version, request.resource_name, request.endpoint) == ("v1beta1", MEM, "ours.sock")
        assert request.options.get_preferred_allocation_available
        assert await kubelet.healthy(MEM) == ["a", "b"]


async def test_an_unhealthy_device_is_withdrawn_and_returns_when_healthy() -> None:
    async with a_kubelet() as kubelet, running(kubelet) as plugin:
        await eventually(lambda: plugin.is_registered)
        async with kubelet.plugin(MEM) as calls:
            messages = calls.ListAndWatch(wire.Empty(), timeout=60).__aiter__()
            seen = []
            for health in ([True, True], [True, False], [True, True]):
                await plugin.advertise(
                    [PluginDevice(name, is_well) for name, is_well in zip("ab", health, strict=True)]
                )
                seen.append([device.health for device in (await messages.__anext__()).devices])
    assert seen == [["Healthy", "Healthy"], ["Healthy", "Unhealthy"], ["Healthy", "Healthy"]]


async def test_devices_are_allocated_and_preferred_as_the_allocator_says() -> None:
    async with a_kubelet() as kubelet, running(kubelet) as plugin:
        await eventually(lambda: plugin.is_registered)
        assert await kubelet.allocate(MEM, ["a"]) == {"GPU": "a"}
        async with kubelet.plugin(MEM) as calls:
            asked = wire.ContainerPreferredAllocationRequest(available_deviceIDs=["b", "a"], allocation_size=1)
            answer = await calls.GetPreferredAllocation(wire.PreferredAllocationRequest(container_requests=[asked]))
            assert list(answer.container_responses[0].deviceIDs) == ["a"]


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        pytest.param([], "the call names no container", id="no container"),
        pytest.param([[]], f"no container waits for 0 of {MEM}", id="a container without devices"),
        pytest.param([["x", "y"]], f"no container waits for 2 of {MEM}", id="more devices than any container needs"),
        pytest.param([["a"], ["x"]], f"no container waits for 1 of {MEM}", id="one of two containers"),
    ],
)
async def test_a_call_that_matches_no_container_is_an_error(containers: list[list[str]], words: str) -> None:
    asked = [wire.ContainerAllocateRequest(devicesIDs=ids) for ids in containers]
    async with a_kubelet() as kubelet, running(kubelet) as plugin:
        await eventually(lambda: plugin.is_registered)
        async with kubelet.plugin(MEM) as calls:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await calls.Allocate(wire.AllocateRequest(container_requests=asked), timeout=60)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "no container waits for" in (refused.value.details() or "") or "names no container" in (
        refused.value.details() or ""
    )


async def test_it_registers_again_when_the_kubelet_was_restarted() -> None:
    async with a_kubelet() as kubelet, running(kubelet) as plugin:
        for times in (1, 2, 3):
            await eventually(lambda times=times: len(kubelet.registered) >= times and plugin.is_registered)  # type: ignore[misc] # bound now
            assert await kubelet.healthy(MEM) == ["a", "b"]
            await kubelet.stop()
            await kubelet.start()
        await eventually(lambda: len(kubelet.registered) >= 4)


async def test_it_registers_again_when_its_socket_is_removed() -> None:
    async with a_kubelet() as kubelet, running(kubelet) as plugin:
        await eventually(lambda: plugin.is_registered)
        (kubelet.folder / "ours.sock").unlink()
        await eventually(lambda: len(kubelet.registered) == 2)
        assert await kubelet.healthy(MEM) == ["a", "b"]


async def test_it_registers_again_with_a_kubelet_that_never_called_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_module, "NO_LISTENER_S", 0.1)
    async with a_kubelet() as kubelet:
        kubelet.calls_back = False
        async with running(kubelet):
            await eventually(lambda: len(kubelet.registered) >= 2)


async def test_it_waits_for_a_kubelet_that_is_not_there_yet(caplog: pytest.LogCaptureFixture) -> None:
    async with a_kubelet() as kubelet:
        await kubelet.stop()
        async with running(kubelet) as plugin:
            await eventually(lambda: "plugin_not_registered" in caplog.text)
            await kubelet.start()
            await eventually(lambda: plugin.is_registered)
    assert caplog.text.count("plugin_not_registered") <= 2, "the same trouble is logged once"


async def test_it_stops_for_another_plugin_and_starts_again_after_it() -> None:
    async with a_kubelet() as kubelet:
        wanted = [False]
        async with running(kubelet, wanted) as plugin:
            wanted[0] = True
            await eventually(lambda: plugin.is_registered)
            wanted[0] = False
            await eventually(lambda: not plugin.is_registered and not (kubelet.folder / "ours.sock").exists())
            wanted[0] = True
            await eventually(lambda: len(kubelet.registered) == 2)


async def test_the_kubelets_allocations_are_read() -> None:
    async with a_kubelet() as kubelet:
        books = KubeletPodResources(kubelet.pod_resources)
        kubelet.allocated_devices = [
            AllocatedDevices("lab", "a", "main", MEM, tuple(f"device-{i}" for i in range(200_000)))
        ]
        assert await books.allocated_devices() == kubelet.allocated_devices


async def test_a_kubelet_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnreachable, match="UNAVAILABLE"):
        await KubeletPodResources(tmp_path / "no.sock").allocated_devices()


@pytest.mark.parametrize(
    ("device_list", "variable", "mounts", "cdi"),
    [
        pytest.param(DeviceList.VARIABLE, "GPU-1,GPU-2", {}, [], id="by the variable"),
        pytest.param(
            DeviceList.MOUNTS,
            "/var/run/nvidia-container-devices",
            {f"/var/run/nvidia-container-devices/GPU-{n}": "/dev/null" for n in (1, 2)},
            [],
            id="by volume mounts",
        ),
        pytest.param(DeviceList.CDI, "void", {}, ["nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"], id="by CDI"),
    ],
)
async def test_the_container_runtime_learns_the_gpus_in_the_chosen_way(
    device_list: DeviceList, variable: str, mounts: dict[str, str], cdi: list[str]
) -> None:
    async with a_kubelet() as kubelet:
        plugin = DevicePlugin(MEM, kubelet.folder / "ours.sock", GpuAllocator(), device_list=device_list)
        await plugin.advertise(TWO)
        task = asyncio.ensure_future(plugin.run())
        try:
            await eventually(lambda: plugin.is_registered)
            answer = await kubelet.answer(MEM, ["a"])
        finally:
            task.cancel()
            await asyncio.wait([task])
    assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": variable, "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    assert {each.container_path: each.host_path for each in answer.mounts} == mounts
    assert [each.name for each in answer.cdi_devices] == cdi
