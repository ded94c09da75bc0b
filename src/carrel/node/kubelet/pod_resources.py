"""Which devices the kubelet has allocated, from its PodResources API, and which device plugins it remembers, from its
checkpoint file: no API of the kubelet says that."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc

from carrel.node.device_names import CHECKPOINT, remembered_resources
from carrel.node.interfaces import AllocatedDevices, KubeletUnreachable
from carrel.node.kubelet.grpc_stubs import podresources_pb2 as wire
from carrel.node.kubelet.grpc_stubs import podresources_pb2_grpc as calls
from carrel.parsing import Malformed

TIMEOUT_S = 10.0
LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes. Every device is listed; the whole memory of a node in MiB is some of these."""


class KubeletPodResources:
    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def allocated_devices(self) -> Sequence[AllocatedDevices]:
        """Raises `KubeletUnreachable`."""
        options = [("grpc.max_receive_message_length", LARGEST_ANSWER)]
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
                lister = calls.PodResourcesListerStub(channel)
                answer: wire.ListPodResourcesResponse = await lister.List(
                    wire.ListPodResourcesRequest(), timeout=TIMEOUT_S
                )
        except grpc.aio.AioRpcError as error:
            raise KubeletUnreachable(f"{self._socket}: {error.code().name}: {error.details()}") from None
        return [
            AllocatedDevices(pod.namespace, pod.name, container.name, devices.resource_name, tuple(devices.device_ids))
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
        ]


class KubeletCheckpoint:
    def __init__(self, plugin_folder: Path) -> None:
        self._file = plugin_folder / CHECKPOINT

    async def remembered(self) -> frozenset[str]:
        """The resources that the kubelet believes a device plugin manages: it asks a plugin whenever a pod wants some,
        also for minutes after the plugin has ended, and then refuses the pod. Raises `KubeletUnreachable`."""
        try:
            text = await asyncio.to_thread(self._file.read_text)
        except FileNotFoundError:
            return frozenset()  # it has never had a plugin
        except (OSError, UnicodeDecodeError) as error:
            raise KubeletUnreachable(f"{self._file}: {error}") from None
        try:
            return remembered_resources(text, str(self._file))
        except Malformed as malformed:
            raise KubeletUnreachable(str(malformed)) from None
