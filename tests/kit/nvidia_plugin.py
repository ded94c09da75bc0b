"""A fake of NVIDIA's device plugin: offers whole GPUs by their UUIDs, and lets the kubelet choose.

python -m tests.kit.nvidia_plugin <folder of the kubelet's plugins> GPU-a GPU-b …
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc

from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2_grpc as calls

SOCKET = "nvidia-gpu.sock"


class NvidiaPlugin(calls.DevicePluginServicer):
    def __init__(self, cards: Sequence[str]) -> None:
        self._cards = cards

    async def GetDevicePluginOptions(self, request: object, context: object) -> wire.DevicePluginOptions:  # noqa: N802
        return wire.DevicePluginOptions()

    async def ListAndWatch(self, request: object, context: object) -> AsyncIterator[wire.ListAndWatchResponse]:  # noqa: N802
        yield wire.ListAndWatchResponse(devices=[wire.Device(ID=card, health="Healthy") for card in self._cards])
        await asyncio.Event().wait()

    async def Allocate(self, request: wire.AllocateRequest, context: object) -> wire.AllocateResponse:  # noqa: N802
        return wire.AllocateResponse(
            container_responses=[
                wire.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(each.devicesIDs)})
                for each in request.container_requests
            ]
        )


async def serve(folder: Path, cards: Sequence[str]) -> None:
    server = grpc.aio.server()
    calls.add_DevicePluginServicer_to_server(NvidiaPlugin(cards), server)
    (folder / SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{folder / SOCKET}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
        request = wire.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name="nvidia.com/gpu")
        await calls.RegistrationStub(channel).Register(request, timeout=60)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))
