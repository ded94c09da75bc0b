"""A fake of NVIDIA's device plugin: offers whole GPUs by their UUIDs, and lets the kubelet choose.

python -m tests.kit.nvidia_plugin <folder of the kubelet's plugins> <control file> GPU-a GPU-b …

The device ids are UUIDs in every strategy, as those of the real one; the strategy says how the container is told. The
control file is read again and again while the plugin runs: the strategy, then the GPUs that it calls unhealthy.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc

from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2_grpc as calls

SOCKET = "nvidia-gpu.sock"
BY_UUID, BY_INDEX, BY_MOUNTS = "uuid", "index", "volume-mounts"
MOUNTS = "/var/run/nvidia-container-devices"


class NvidiaPlugin(calls.DevicePluginServicer):
    def __init__(self, cards: Sequence[str], control: Path) -> None:
        self._cards = cards
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
                words = {card: "Unhealthy" if card in unhealthy else "Healthy" for card in self._cards}
                devices = [wire.Device(ID=card, health=word) for card, word in words.items()]
                yield wire.ListAndWatchResponse(devices=devices)
            await asyncio.sleep(0.2)

    async def Allocate(self, request: wire.AllocateRequest, context: object) -> wire.AllocateResponse:  # noqa: N802
        answers = [self._answer(list(each.devicesIDs)) for each in request.container_requests]
        return wire.AllocateResponse(container_responses=answers)

    def _answer(self, cards: Sequence[str]) -> wire.ContainerAllocateResponse:
        strategy = self._told()[0]
        if strategy == BY_MOUNTS:
            # The real one mounts a file for each GPU there; what matters here is that the variable names none.
            return wire.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": MOUNTS})
        names = [str(self._cards.index(card)) for card in cards] if strategy == BY_INDEX else cards
        return wire.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(names)})


async def serve(folder: Path, socket: str, resource: str, plugin: calls.DevicePluginServicer) -> None:
    """Registers the plugin with the kubelet, and answers until the process ends."""
    server = grpc.aio.server()
    calls.add_DevicePluginServicer_to_server(plugin, server)
    (folder / socket).unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{folder / socket}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
        request = wire.RegisterRequest(version="v1beta1", endpoint=socket, resource_name=resource)
        await calls.RegistrationStub(channel).Register(request, timeout=60)
    await server.wait_for_termination()


if __name__ == "__main__":
    nvidia = NvidiaPlugin(sys.argv[3:], Path(sys.argv[2]))
    asyncio.run(serve(Path(sys.argv[1]), SOCKET, "nvidia.com/gpu", nvidia))
