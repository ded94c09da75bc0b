"""The driver of our ResourceClaims, as the kubelet calls it: it prepares claims before a pod starts, and cleans up.

The kubelet finds the socket of the registration in its folder, also after its own restart, and calls the other one.
Calls are repeated, so every answer must be the same the second time. Every claim that is asked about is answered, each
by itself: one that is refused does not hold up the others.

It also tells the kubelet which GPUs of claims are well (`v1.DRAResourceHealth`); it shows that in the status of their
pods. The kubelet keeps one stream open and reads what changes. What is not told again for a while counts as unknown: so
all GPUs are told when one changes, and at intervals. The time is that of the agent's last look, not of the message.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc

from carrel.ids import ResourceClaimUid
from carrel.kubernetes.cluster import ClusterError
from carrel.ledger.gpus import Gpu
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from carrel.resource_claims import dra
from carrel.resource_claims.dra import DRIVER
from carrel.resource_claims.node.claim_preparation import ClaimPreparation, NamedClaim
from carrel.resource_claims.node.grpc_stubs import claims_pb2 as wire
from carrel.resource_claims.node.grpc_stubs import claims_pb2_grpc as calls
from carrel.resource_claims.node.grpc_stubs import health_pb2 as health_wire
from carrel.resource_claims.node.grpc_stubs import health_pb2_grpc as health_calls
from carrel.resource_claims.node.grpc_stubs import pluginregistration_pb2 as registration
from carrel.resource_claims.node.grpc_stubs import pluginregistration_pb2_grpc as registration_calls

OLD_SERVICE = "v1alpha1.DRAResourceHealth"
"""What kubelets before 1.37 call: the same format, without the message."""
REPEAT_S = 10.0
UNKNOWN_AFTER_S = 90
"""As the readiness of an agent that does not report."""

Context = grpc.aio.ServicerContext[Any, Any]


class ClaimHealth(health_calls.DRAResourceHealthServicer):
    def __init__(self, repeat_s: float = REPEAT_S) -> None:
        self._repeat_s = repeat_s
        self._seen: tuple[tuple[Gpu, ...], datetime] | None = None
        self._changed = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        health_calls.add_DRAResourceHealthServicer_to_server(self, server)
        old = grpc.unary_stream_rpc_method_handler(
            self.NodeWatchResources,
            health_wire.NodeWatchResourcesRequest.FromString,
            health_wire.NodeWatchResourcesResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(OLD_SERVICE, {"NodeWatchResources": old})
        server.add_generic_rpc_handlers((handler,))

    def update(self, gpus: Sequence[Gpu], seen_at: datetime) -> None:
        before, self._seen = self._seen, (tuple(gpus), seen_at)
        if before is None or before[0] != self._seen[0]:
            self._changed.set()  # wakes all streams, each of which waits for the next one
            self._changed = asyncio.Event()

    async def NodeWatchResources(  # noqa: N802 # the format's name
        self, request: health_wire.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health_wire.NodeWatchResourcesResponse]:
        while True:
            changed = self._changed
            if self._seen is not None:
                yield _told(*self._seen)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._repeat_s):
                    await changed.wait()


def _told(gpus: Sequence[Gpu], seen_at: datetime) -> health_wire.NodeWatchResourcesResponse:
    return health_wire.NodeWatchResourcesResponse(
        devices=[
            health_wire.DeviceHealth(
                device=health_wire.DeviceIdentifier(pool_name=gpu.node, device_name=dra.device_name(gpu.uuid)),
                health=health_wire.HealthStatus.UNHEALTHY if gpu.unusable else health_wire.HealthStatus.HEALTHY,
                last_updated_time=int(seen_at.timestamp()),
                health_check_timeout_seconds=UNKNOWN_AFTER_S,
                message=gpu.unusable,
            )
            for gpu in gpus
        ]
    )


log = logging.getLogger(__name__)

TYPE = "DRAPlugin"
VERSIONS = ("v1.DRAPlugin", "v1.DRAResourceHealth", OLD_SERVICE)
"""A kubelet skips what it does not know."""
POLL_S = 0.5
"""How often the sockets are checked."""


class ClaimPlugin(calls.DRAPluginServicer, registration_calls.RegistrationServicer):
    def __init__(self, kubelet_folder: Path, preparation: ClaimPreparation, is_wanted: Callable[[], bool]) -> None:
        self.is_registered = False
        self.health = ClaimHealth()
        self._registration = kubelet_folder / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._socket = kubelet_folder / "plugins" / DRIVER / "dra.sock"
        self._preparation = preparation
        self._is_wanted = is_wanted
        self._trouble = ""

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            try:
                if self._is_wanted():
                    async with self._serving():
                        self._log_trouble("")
                        await self._wait_lost()
            except (OSError, RuntimeError) as error:
                # RuntimeError is what gRPC raises for an address it cannot listen on.
                self._log_trouble(str(error))
            finally:
                self.is_registered = False
            await asyncio.sleep(POLL_S)

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("claim_plugin_not_served socket=%s: %s", self._socket, trouble)
        self._trouble = trouble

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """The socket of the calls first: the kubelet calls it as soon as it finds the other one."""
        servers = []
        try:
            for socket in (self._socket, self._registration):
                socket.parent.mkdir(parents=True, exist_ok=True)
                socket.unlink(missing_ok=True)
                server = grpc.aio.server()
                servers.append(server)
                if socket == self._socket:
                    calls.add_DRAPluginServicer_to_server(self, server)
                    self.health.add_to(server)
                else:
                    registration_calls.add_RegistrationServicer_to_server(self, server)
                server.add_insecure_port(f"unix:{socket}")
                await server.start()
            yield
        finally:
            self._registration.unlink(missing_ok=True)
            for server in servers:
                await server.stop(grace=None)
            self._socket.unlink(missing_ok=True)

    async def _wait_lost(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            seen = self._sockets()
            while self._is_wanted() and self._sockets() == seen:  # noqa: ASYNC110 # files send no events
                await asyncio.sleep(POLL_S)

    def _sockets(self) -> list[tuple[int, int]]:
        return [(found.st_ino, found.st_ctime_ns) for found in (self._registration.stat(), self._socket.stat())]

    # --- what the kubelet calls --------------------------------------------------------------------------------------

    async def GetInfo(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:  # noqa: N802 # the format's name
        return registration.PluginInfo(
            type=TYPE, name=DRIVER, endpoint=str(self._socket), supported_versions=list(VERSIONS)
        )

    async def NotifyRegistrationStatus(  # noqa: N802 # the format's name
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        self.is_registered = request.plugin_registered
        if request.plugin_registered:
            log.info("claim_plugin_registered socket=%s", self._socket)
        else:
            log.warning("claim_plugin_not_registered why=%r", request.error)
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(  # noqa: N802 # the format's name
        self, request: wire.NodePrepareResourcesRequest, context: Context
    ) -> wire.NodePrepareResourcesResponse:
        answers = {
            each.uid: await self._prepared(NamedClaim(each.namespace, each.name, ResourceClaimUid(each.uid)))
            for each in request.claims
        }
        return wire.NodePrepareResourcesResponse(claims=answers)

    async def NodeUnprepareResources(  # noqa: N802 # the format's name
        self, request: wire.NodeUnprepareResourcesRequest, context: Context
    ) -> wire.NodeUnprepareResourcesResponse:
        answers = {each.uid: await self._unprepared(ResourceClaimUid(each.uid)) for each in request.claims}
        return wire.NodeUnprepareResourcesResponse(claims=answers)

    async def _prepared(self, claim: NamedClaim) -> wire.NodePrepareResourceResponse:
        try:
            prepared = await self._preparation.prepare(claim)
        except (ClusterError, Malformed, OSError) as error:
            prepared = Refusal(f"it cannot be prepared now: {error}")
        except Exception:
            log.exception("prepare_broke claim=%s/%s", claim.namespace, claim.name)
            prepared = Refusal("Carrel's agent made a mistake; its log says which")
        if isinstance(prepared, Refusal):
            log.warning("claim_not_prepared claim=%s/%s: %s", claim.namespace, claim.name, prepared)
            return wire.NodePrepareResourceResponse(error=str(prepared))
        return wire.NodePrepareResourceResponse(
            devices=[
                wire.Device(
                    request_names=each.requests,
                    pool_name=each.pool,
                    device_name=each.device,
                    cdi_device_ids=each.cdi_ids,
                )
                for each in prepared
            ]
        )

    async def _unprepared(self, uid: ResourceClaimUid) -> wire.NodeUnprepareResourceResponse:
        try:
            await self._preparation.unprepare(uid)
        except ClusterError as error:
            # Its file is gone. Until the next report says so, the claim keeps its GPUs, and nothing is lost by that.
            log.warning("claim_not_reported uid=%s: %s", uid, error)
        except OSError as error:
            log.warning("claim_not_unprepared uid=%s: %s", uid, error)
            return wire.NodeUnprepareResourceResponse(error=str(error))
        return wire.NodeUnprepareResourceResponse()
