"""Which devices the kubelet has allocated to which container, from its PodResources API."""

from collections.abc import Sequence
from pathlib import Path

import grpc

from carrel.node.interfaces import AllocatedDevices, KubeletUnreachable
from carrel.node.kubelet.grpc_stubs import podresources_pb2 as wire
from carrel.node.kubelet.grpc_stubs import podresources_pb2_grpc as calls

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
