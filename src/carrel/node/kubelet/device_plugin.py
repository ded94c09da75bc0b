"""A device plugin for one resource: advertises devices to the kubelet, and answers when the kubelet allocates them.

It registers again when the kubelet was restarted (its socket is another one), when our own socket is missing (the
kubelet removes it when it starts), or when the kubelet does not watch our devices: a kubelet that registered us and
then failed to call back, as happens on a busy machine, does not try again by itself. A failure is logged once and tried
again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc

from carrel.dialects import nvidia
from carrel.dialects.options import DeviceList
from carrel.ids import GpuUuid
from carrel.ledger.refusals import Refusal
from carrel.node.device_names import HEALTHY, KUBELET_SOCKET, LONGEST_MESSAGE, UNHEALTHY, VERSION, PluginDevice
from carrel.node.interfaces import DeviceAllocator
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2 as wire
from carrel.node.kubelet.grpc_stubs import deviceplugin_pb2_grpc as calls

log = logging.getLogger(__name__)

POLL_S = 0.5
"""How often the sockets are checked."""
REGISTER_S = 10.0
NO_LISTENER_S = 20.0
"""How long it may take until the kubelet watches our devices; it needs up to ten seconds to call back."""
OPTIONS = [("grpc.max_receive_message_length", LONGEST_MESSAGE * 4)]
"""The kubelet lists every free device when it asks which we prefer."""

Context = grpc.aio.ServicerContext[Any, Any]


class DevicePlugin(calls.DevicePluginServicer):
    def __init__(
        self,
        resource: str,
        socket: Path,
        allocator: DeviceAllocator,
        is_wanted: Callable[[], bool] = lambda: True,
        device_list: DeviceList = DeviceList.VARIABLE,
    ) -> None:
        self.resource = resource
        self.is_registered = False
        self._socket = socket
        self._kubelet = socket.with_name(KUBELET_SOCKET)
        self.allocator = allocator
        self._is_wanted = is_wanted
        self._device_list = device_list
        self._trouble = ""
        self._advertised: Sequence[PluginDevice] = ()
        self._message = wire.ListAndWatchResponse()
        self._changed = asyncio.Condition()
        self._listeners = 0
        self._no_listener_since = 0.0

    async def advertise(self, devices: Sequence[PluginDevice]) -> None:
        """All devices that there are from now on."""
        if devices == self._advertised:
            return
        words = {True: HEALTHY, False: UNHEALTHY}
        async with self._changed:
            self._advertised = devices
            self._message = wire.ListAndWatchResponse(
                devices=[wire.Device(ID=device.id, health=words[device.is_healthy]) for device in devices]
            )
            self._changed.notify_all()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                if self._is_wanted():
                    async with self._serving():
                        await self._register()
                        self._log_trouble("")
                        log.info("plugin_registered resource=%s socket=%s", self.resource, self._socket.name)
                        await self._wait_lost()
                        log.info("plugin_lost resource=%s", self.resource)
            except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
                # RuntimeError is what gRPC raises for an address it cannot listen on.
                self._log_trouble(_words(error))
            finally:
                self.is_registered = False
            await asyncio.sleep(POLL_S)

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("plugin_not_registered resource=%s kubelet=%s: %s", self.resource, self._kubelet, trouble)
        self._trouble = trouble

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        self._socket.unlink(missing_ok=True)
        server = grpc.aio.server(options=OPTIONS)
        calls.add_DevicePluginServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=None)
            self._socket.unlink(missing_ok=True)

    async def _register(self) -> None:
        """Raises if the kubelet does not accept the registration."""
        self._seen = self._sockets()
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            request = wire.RegisterRequest(
                version=VERSION,
                endpoint=self._socket.name,
                resource_name=self.resource,
                options=wire.DevicePluginOptions(get_preferred_allocation_available=True),
            )
            await calls.RegistrationStub(channel).Register(request, timeout=REGISTER_S)
        self.is_registered, self._no_listener_since = True, time.monotonic()

    async def _wait_lost(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            # Files send no events, so they are polled.
            while self._is_wanted() and self._sockets() == self._seen and self._has_listener():  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    def _has_listener(self) -> bool:
        return self._listeners > 0 or time.monotonic() - self._no_listener_since < NO_LISTENER_S

    def _sockets(self) -> list[tuple[int, int]]:
        """The identities of both files: a socket that was created again has the old name and another identity."""
        return [(found.st_ino, found.st_ctime_ns) for found in (self._kubelet.stat(), self._socket.stat())]

    # --- what the kubelet calls --------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, request: wire.Empty, context: Context) -> wire.DevicePluginOptions:  # noqa: N802 # the format's name
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(  # noqa: N802 # the format's name
        self, request: wire.Empty, context: Context
    ) -> AsyncIterator[wire.ListAndWatchResponse]:
        sent = None
        self._listeners += 1
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda sent=sent: self._message is not sent)  # type: ignore[misc] # bound now
                    sent = self._message
                yield sent
        finally:
            self._listeners -= 1
            self._no_listener_since = time.monotonic()

    async def GetPreferredAllocation(  # noqa: N802 # the format's name
        self, request: wire.PreferredAllocationRequest, context: Context
    ) -> wire.PreferredAllocationResponse:
        answers = []
        for each in request.container_requests:
            ids = await self.allocator.prefer(
                self.resource, each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
            )
            answers.append(wire.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return wire.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request: wire.AllocateRequest, context: Context) -> wire.AllocateResponse:  # noqa: N802 # the format's name
        answers = []
        for each in request.container_requests:
            answer = await self.allocator.allocate(self.resource, each.devicesIDs)
            if isinstance(answer, Refusal):
                await self._refuse(context, answer)
            answers.append(_handed_over(answer, self._device_list))
        if not answers:
            await self._refuse(context, Refusal("the call names no container"))
        return wire.AllocateResponse(container_responses=answers)

    async def _refuse(self, context: Context, refusal: Refusal) -> NoReturn:
        log.warning("allocation_refused resource=%s: %s", self.resource, refusal.reason)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal.reason)
        raise AssertionError("abort raises")


def _handed_over(environment: Mapping[str, str], device_list: DeviceList) -> wire.ContainerAllocateResponse:
    """The answer for one container, in the way in which the runtime of this node learns its GPUs."""
    if device_list is DeviceList.VARIABLE:
        return wire.ContainerAllocateResponse(envs=environment)
    uuids = [GpuUuid(each) for each in environment[nvidia.VISIBLE_DEVICES].split(",")]
    if device_list is DeviceList.CDI:
        devices = [wire.CDIDevice(name=name) for name in nvidia.cdi_names(uuids)]
        # The runtime must not add by the variable what CDI has added.
        envs = {**environment, nvidia.VISIBLE_DEVICES: nvidia.NO_RUNTIME}
        return wire.ContainerAllocateResponse(envs=envs, cdi_devices=devices)
    mounts = [
        wire.Mount(container_path=inside, host_path=outside, read_only=True)
        for inside, outside in nvidia.mounts_for(uuids).items()
    ]
    envs = {**environment, nvidia.VISIBLE_DEVICES: nvidia.MOUNTED_DEVICES}
    return wire.ContainerAllocateResponse(envs=envs, mounts=mounts)


def _words(error: Exception) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
