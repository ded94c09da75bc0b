"""A fake of gpushare's device plugin: one device per MiB of each GPU, all of them in the hands of its own extender.

python -m tests.kit.gpushare_plugin <folder of the kubelet's plugins> <control file> <MiB> GPU-a GPU-b …

The real one finds the pod that is being started by its annotations. Here the control file has the index of its GPU: a
test starts one pod after the other.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2_grpc as calls
from tests.kit.nvidia_plugin import serve

SOCKET = "aliyungpushare.sock"


class GpusharePlugin(calls.DevicePluginServicer):
    def __init__(self, gpus: Sequence[str], mib: int, control: Path) -> None:
        self._gpus = gpus
        self._mib = mib
        self._control = control

    async def GetDevicePluginOptions(self, request: object, context: object) -> wire.DevicePluginOptions:  # noqa: N802
        return wire.DevicePluginOptions()

    async def ListAndWatch(self, request: object, context: object) -> AsyncIterator[wire.ListAndWatchResponse]:  # noqa: N802
        names = [f"{gpu}-_-{number}" for gpu in self._gpus for number in range(self._mib)]
        yield wire.ListAndWatchResponse(devices=[wire.Device(ID=name, health="Healthy") for name in names])
        await asyncio.Event().wait()

    async def Allocate(self, request: wire.AllocateRequest, context: object) -> wire.AllocateResponse:  # noqa: N802
        index = self._control.read_text().strip()
        asked = [len(each.devicesIDs) for each in request.container_requests]
        answers = [self._answer(index, each, sum(asked)) for each in asked]
        return wire.AllocateResponse(container_responses=answers)

    def _answer(self, index: str, container: int, pod: int) -> wire.ContainerAllocateResponse:
        told = {
            "NVIDIA_VISIBLE_DEVICES": index,
            "ALIYUN_COM_GPU_MEM_IDX": index,
            "ALIYUN_COM_GPU_MEM_DEV": str(self._mib),
            "ALIYUN_COM_GPU_MEM_POD": str(pod),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(container),
        }
        return wire.ContainerAllocateResponse(envs=told)


if __name__ == "__main__":
    gpushare = GpusharePlugin(sys.argv[4:], int(sys.argv[3]), Path(sys.argv[2]))
    asyncio.run(serve(Path(sys.argv[1]), SOCKET, "aliyun.com/gpu-mem", gpushare))
