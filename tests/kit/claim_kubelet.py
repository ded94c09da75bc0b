"""The part of a kubelet that prepares claims: it finds the plugin by its socket, and calls it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import grpc

from carrel.kubernetes.cluster import Json
from carrel.resource_claims.node.grpc_stubs import claims_pb2 as wire
from carrel.resource_claims.node.grpc_stubs import claims_pb2_grpc as calls
from carrel.resource_claims.node.grpc_stubs import health_pb2 as health
from carrel.resource_claims.node.grpc_stubs import pluginregistration_pb2 as registration
from carrel.resource_claims.node.grpc_stubs import pluginregistration_pb2_grpc as registration_calls
from tests.kit.eventually import LIMIT_S, eventually


class ClaimKubelet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoint = ""

    @property
    def socket(self) -> Path:
        return self.folder / "plugins_registry" / "gpu.carrel.dev-reg.sock"

    async def register(self) -> registration.PluginInfo:
        await eventually(self.socket.exists, "the socket of the plugin")
        async with grpc.aio.insecure_channel(f"unix:{self.socket}") as channel:
            stub = registration_calls.RegistrationStub(channel)
            info: registration.PluginInfo = await stub.GetInfo(registration.InfoRequest(), timeout=LIMIT_S)
            self.endpoint = info.endpoint
            await stub.NotifyRegistrationStatus(
                registration.RegistrationStatus(plugin_registered=True), timeout=LIMIT_S
            )
        return info

    async def prepare(self, *claims: Json) -> dict[str, wire.NodePrepareResourceResponse]:
        async with grpc.aio.insecure_channel(f"unix:{self.endpoint}") as channel:
            request = wire.NodePrepareResourcesRequest(claims=[_named(each) for each in claims])
            answer = await calls.DRAPluginStub(channel).NodePrepareResources(request, timeout=LIMIT_S)
        return dict(answer.claims)

    async def unprepare(self, *claims: Json) -> dict[str, wire.NodeUnprepareResourceResponse]:
        async with grpc.aio.insecure_channel(f"unix:{self.endpoint}") as channel:
            request = wire.NodeUnprepareResourcesRequest(claims=[_named(each) for each in claims])
            answer = await calls.DRAPluginStub(channel).NodeUnprepareResources(request, timeout=LIMIT_S)
        return dict(answer.claims)

    async def health(self, version: str = "v1") -> AsyncGenerator[dict[str, tuple[str, str]], None]:
        """Device → its health and why, each time it is told."""
        async with grpc.aio.insecure_channel(f"unix:{self.endpoint}") as channel:
            watch = channel.unary_stream(
                f"/{version}.DRAResourceHealth/NodeWatchResources",
                health.NodeWatchResourcesRequest.SerializeToString,
                health.NodeWatchResourcesResponse.FromString,
            )
            async for told in watch(health.NodeWatchResourcesRequest()):
                yield {
                    each.device.device_name: (health.HealthStatus.Name(each.health), each.message)
                    for each in told.devices
                }


def _named(claim: Json) -> wire.Claim:
    metadata = claim["metadata"]
    return wire.Claim(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
