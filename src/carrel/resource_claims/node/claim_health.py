"""Tells the kubelet which GPUs of claims are well (`v1.DRAResourceHealth`); it shows that in the status of their pods.

The kubelet keeps one stream open and reads what changes. What is not told again for a while counts as unknown: so all
GPUs are told when one changes, and at intervals. The time is that of the agent's last look, and not of the message.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import grpc

from carrel.ledger.gpus import Gpu
from carrel.resource_claims import dra
from carrel.resource_claims.node.grpc_stubs import health_pb2 as wire
from carrel.resource_claims.node.grpc_stubs import health_pb2_grpc as calls

OLD_SERVICE = "v1alpha1.DRAResourceHealth"
"""What kubelets before 1.37 call: the same format, without the message."""
REPEAT_S = 10.0
UNKNOWN_AFTER_S = 90
"""As the readiness of an agent that does not report."""

Context = grpc.aio.ServicerContext[Any, Any]


class ClaimHealth(calls.DRAResourceHealthServicer):
    def __init__(self, repeat_s: float = REPEAT_S) -> None:
        self._repeat_s = repeat_s
        self._seen: tuple[tuple[Gpu, ...], datetime] | None = None
        self._changed = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        calls.add_DRAResourceHealthServicer_to_server(self, server)
        old = grpc.unary_stream_rpc_method_handler(
            self.NodeWatchResources,
            wire.NodeWatchResourcesRequest.FromString,
            wire.NodeWatchResourcesResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(OLD_SERVICE, {"NodeWatchResources": old})
        server.add_generic_rpc_handlers((handler,))

    def update(self, gpus: Sequence[Gpu], seen_at: datetime) -> None:
        before, self._seen = self._seen, (tuple(gpus), seen_at)
        if before is None or before[0] != self._seen[0]:
            self._changed.set()  # wakes all streams, each of which waits for the next one
            self._changed = asyncio.Event()

    async def NodeWatchResources(  # noqa: N802 # the format's name
        self, request: wire.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[wire.NodeWatchResourcesResponse]:
        while True:
            changed = self._changed
            if self._seen is not None:
                yield _told(*self._seen)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._repeat_s):
                    await changed.wait()


def _told(gpus: Sequence[Gpu], seen_at: datetime) -> wire.NodeWatchResourcesResponse:
    return wire.NodeWatchResourcesResponse(
        devices=[
            wire.DeviceHealth(
                device=wire.DeviceIdentifier(pool_name=gpu.node, device_name=dra.device_name(gpu.uuid)),
                health=wire.HealthStatus.UNHEALTHY if gpu.unusable else wire.HealthStatus.HEALTHY,
                last_updated_time=int(seen_at.timestamp()),
                health_check_timeout_seconds=UNKNOWN_AFTER_S,
                message=gpu.unusable,
            )
            for gpu in gpus
        ]
    )
