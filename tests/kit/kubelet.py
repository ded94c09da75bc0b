"""A fake kubelet for device plugins: it registers them, watches their devices and allocates some."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc

from carrel.node.interfaces import AllocatedDevices
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as devices
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2_grpc as plugin_calls
from carrel.node.kubelet.grpc_stubs import podresources_pb2 as resources
from carrel.node.kubelet.grpc_stubs import podresources_pb2_grpc as resource_calls


class FakeKubelet(plugin_calls.RegistrationServicer, resource_calls.PodResourcesListerServicer):
    """It can be stopped and started again, as a real one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "device-plugins"
        """Of the sockets of plugins."""
        self.registered: list[devices.RegisterRequest] = []
        self.calls_back = True
        """Whether it calls a plugin after its registration; a busy kubelet may fail to."""
        self._listening: set[asyncio.Task[None]] = set()
        self.allocated_devices: Sequence[AllocatedDevices] = ()
        self._server: grpc.aio.Server | None = None

    @property
    def pod_resources(self) -> Path:
        return self.root / "pod-resources" / "kubelet.sock"

    async def start(self) -> None:
        """Like the real one, it removes all sockets that it finds."""
        for folder in (self.folder, self.pod_resources.parent):
            folder.mkdir(exist_ok=True)
        for old in (*self.folder.glob("*.sock"), self.pod_resources):
            old.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        plugin_calls.add_RegistrationServicer_to_server(self, self._server)
        resource_calls.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        self._server.add_insecure_port(f"unix:{self.pod_resources}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await self._server.stop(grace=None)

    async def Register(self, request: devices.RegisterRequest, context: object) -> devices.Empty:  # noqa: N802
        self.registered.append(request)
        if self.calls_back:
            task = asyncio.ensure_future(self._wait_event(request.endpoint))
            self._listening.add(task)
            task.add_done_callback(self._listening.discard)
        return devices.Empty()

    async def _wait_event(self, endpoint: str) -> None:
        """As long as the plugin sends."""
        async with grpc.aio.insecure_channel(f"unix:{self.folder / endpoint}") as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in plugin_calls.DevicePluginStub(channel).ListAndWatch(devices.Empty()):
                    pass

    async def List(self, request: object, context: object) -> resources.ListPodResourcesResponse:  # noqa: N802
        pods = [
            resources.PodResources(
                name=each.pod,
                namespace=each.namespace,
                containers=[
                    resources.ContainerResources(
                        name=each.container,
                        devices=[resources.ContainerDevices(resource_name=each.resource, device_ids=each.devices)],
                    )
                ],
            )
            for each in self.allocated_devices
        ]
        return resources.ListPodResourcesResponse(pod_resources=pods)

    # --- its calls to a plugin ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def plugin(self, resource: str) -> AsyncIterator[plugin_calls.DevicePluginStub]:
        endpoint = next(each.endpoint for each in reversed(self.registered) if each.resource_name == resource)
        async with grpc.aio.insecure_channel(f"unix:{self.folder / endpoint}") as channel:
            yield plugin_calls.DevicePluginStub(channel)

    async def answer(self, resource: str, ids: Sequence[str]) -> devices.ContainerAllocateResponse:
        """Raises `grpc.aio.AioRpcError` if the plugin refuses."""
        async with self.plugin(resource) as plugin:
            request = devices.AllocateRequest(container_requests=[devices.ContainerAllocateRequest(devicesIDs=ids)])
            answer: devices.AllocateResponse = await plugin.Allocate(request, timeout=60)
            return answer.container_responses[0]

    async def allocate(self, resource: str, ids: Sequence[str]) -> dict[str, str]:
        """What the container is told in its environment."""
        return dict((await self.answer(resource, ids)).envs)

    async def healthy(self, resource: str) -> list[str]:
        """The devices that can be allocated now."""
        async with self.plugin(resource) as plugin:
            async for message in plugin.ListAndWatch(devices.Empty(), timeout=60):
                return [device.ID for device in message.devices if device.health == "Healthy"]
        raise AssertionError("the plugin said nothing")


@contextlib.asynccontextmanager
async def a_kubelet() -> AsyncIterator[FakeKubelet]:
    # Not pytest's own folder: the path of a socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        kubelet = FakeKubelet(Path(folder))
        await kubelet.start()
        try:
            yield kubelet
        finally:
            await asyncio.shield(kubelet.stop())
