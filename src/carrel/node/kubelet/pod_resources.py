"""The kubelet's own books: which devices it has given to which container."""

from collections.abc import Sequence
from pathlib import Path

import grpc

from carrel.node.interfaces import HandedOver, Unreachable
from carrel.node.kubelet.grpc_stubs import podresources_pb2 as wire
from carrel.node.kubelet.grpc_stubs import podresources_pb2_grpc as calls

TIMEOUT_S = 10.0
LARGEST_ANSWER = 64 * 1024 * 1024
"""Every device is named; a node's whole memory in MiB is a few of them."""


class KubeletPodResources:
    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def handed_over(self) -> Sequence[HandedOver]:
        options = [("grpc.max_receive_message_length", LARGEST_ANSWER)]
        try:
            async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
                lister = calls.PodResourcesListerStub(channel)
                answer: wire.ListPodResourcesResponse = await lister.List(
                    wire.ListPodResourcesRequest(), timeout=TIMEOUT_S
                )
        except grpc.aio.AioRpcError as error:
            raise Unreachable(f"{self._socket}: {error.code().name}: {error.details()}") from None
        return [
            HandedOver(pod.namespace, pod.name, container.name, devices.resource_name, tuple(devices.device_ids))
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
        ]
