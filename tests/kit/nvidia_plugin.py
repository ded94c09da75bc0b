"""A fake of NVIDIA's device plugin: advertises whole GPUs by their UUIDs, and lets the kubelet choose.

python -m tests.kit.nvidia_plugin <folder of the kubelet's plugins> <control file> GPU-a GPU-b …

The device ids are UUIDs in every strategy, as those of the real one; the strategy says how the container is told: its
DEVICE_LIST_STRATEGY, then its DEVICE_ID_STRATEGY. The control file is read again and again while the plugin runs: the
strategy, then the GPUs that it calls unhealthy.

    envvar            NVIDIA_VISIBLE_DEVICES names the GPUs
    volume-mounts     the variable names a folder, in which /dev/null is mounted under the name of each GPU
    cdi-annotations   an annotation of the container names the devices of a CDI specification
    cdi-cri           the kubelet passes these devices on to the container runtime
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import yaml

from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2_grpc as calls

SOCKET = "nvidia-gpu.sock"
BY_UUID, BY_INDEX = "envvar:uuid", "envvar:index"
BY_MOUNTS, BY_MOUNTED_INDEX = "volume-mounts:uuid", "volume-mounts:index"
BY_CDI, BY_CDI_INDEX, BY_CDI_ANNOTATION = "cdi-cri:uuid", "cdi-cri:index", "cdi-annotations:uuid"
STRATEGIES = (BY_UUID, BY_INDEX, BY_MOUNTS, BY_MOUNTED_INDEX, BY_CDI, BY_CDI_INDEX, BY_CDI_ANNOTATION)
MOUNTS = "/var/run/nvidia-container-devices"
CDI_KIND = "k8s.device-plugin.nvidia.com/gpu"
VARIABLE = "NVIDIA_VISIBLE_DEVICES"


class NvidiaPlugin(calls.DevicePluginServicer):
    def __init__(self, gpus: Sequence[str], control: Path) -> None:
        self._gpus = gpus
        self._control = control

    def _told(self) -> list[str]:
        return self._control.read_text().split() if self._control.exists() else [BY_UUID]

    async def GetDevicePluginOptions(self, request: object, context: object) -> wire.DevicePluginOptions:  # noqa: N802
        return wire.DevicePluginOptions()

    async def ListAndWatch(self, request: object, context: object) -> AsyncIterator[wire.ListAndWatchResponse]:  # noqa: N802
        sent = None
        while True:
            unhealthy = self._told()[1:]
            if unhealthy != sent:
                sent = unhealthy
                words = {gpu: "Unhealthy" if gpu in unhealthy else "Healthy" for gpu in self._gpus}
                devices = [wire.Device(ID=gpu, health=word) for gpu, word in words.items()]
                yield wire.ListAndWatchResponse(devices=devices)
            await asyncio.sleep(0.2)

    async def Allocate(self, request: wire.AllocateRequest, context: object) -> wire.AllocateResponse:  # noqa: N802
        answers = [self._answer(list(each.devicesIDs)) for each in request.container_requests]
        return wire.AllocateResponse(container_responses=answers)

    def _answer(self, gpus: Sequence[str]) -> wire.ContainerAllocateResponse:
        how, _, ids = self._told()[0].partition(":")
        names = [str(self._gpus.index(gpu)) if ids == "index" else gpu for gpu in gpus]
        if how == "volume-mounts":
            mounts = [wire.Mount(host_path="/dev/null", container_path=f"{MOUNTS}/{name}") for name in names]
            return wire.ContainerAllocateResponse(envs={VARIABLE: MOUNTS}, mounts=mounts)
        devices = [f"{CDI_KIND}={name}" for name in names]
        if how == "cdi-annotations":
            return wire.ContainerAllocateResponse(annotations={"cdi.k8s.io/nvidia-device-plugin": ",".join(devices)})
        if how == "cdi-cri":
            return wire.ContainerAllocateResponse(cdi_devices=[wire.CDIDevice(name=device) for device in devices])
        return wire.ContainerAllocateResponse(envs={VARIABLE: ",".join(names)})


def cdi_specification(gpus: Sequence[str]) -> dict[str, Any]:
    """Of the devices of both DEVICE_ID_STRATEGYs, for a container runtime. What a container would see is not faked:
    that it got a device is told by a variable."""
    named = [*gpus, *map(str, range(len(gpus)))]
    devices = [{"name": name, "containerEdits": {"env": [f"CDI_DEVICE={name}"]}} for name in named]
    return {"cdiVersion": "0.6.0", "kind": CDI_KIND, "devices": devices}


@contextlib.asynccontextmanager
async def registered(
    folder: Path, socket: str, resource: str, plugin: calls.DevicePluginServicer
) -> AsyncIterator[grpc.aio.Server]:
    """Serves the plugin of any system, and registers it with the kubelet of that folder."""
    server = grpc.aio.server()
    calls.add_DevicePluginServicer_to_server(plugin, server)
    (folder / socket).unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{folder / socket}")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
            request = wire.RegisterRequest(version="v1beta1", endpoint=socket, resource_name=resource)
            await calls.RegistrationStub(channel).Register(request, timeout=60)
        yield server
    finally:
        await server.stop(grace=None)


async def serve(folder: Path, socket: str, resource: str, plugin: calls.DevicePluginServicer) -> None:
    """Until the process ends."""
    async with registered(folder, socket, resource, plugin) as server:
        await server.wait_for_termination()


@contextlib.asynccontextmanager
async def a_plugin(folder: Path, control: Path, gpus: Sequence[str]) -> AsyncIterator[grpc.aio.Server]:
    """NVIDIA's, registered with the kubelet of that folder."""
    async with registered(folder, SOCKET, "nvidia.com/gpu", NvidiaPlugin(gpus, control)) as server:
        yield server


def write_cdi_specification(gpus: Sequence[str]) -> None:
    """Where the container runtime of this node looks."""
    folder = Path("/etc/cdi")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "nvidia-plugin-of-tests.yaml").write_text(yaml.safe_dump(cdi_specification(gpus)))


if __name__ == "__main__":
    write_cdi_specification(sys.argv[3:])
    nvidia = NvidiaPlugin(sys.argv[3:], Path(sys.argv[2]))
    asyncio.run(serve(Path(sys.argv[1]), SOCKET, "nvidia.com/gpu", nvidia))
