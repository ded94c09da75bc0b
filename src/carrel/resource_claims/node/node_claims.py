"""An agent as the driver of ResourceClaims: the plugin that prepares claims, and the slice that advertises its GPUs.

Nothing is advertised where another plugin chooses the GPUs, and where the container runtime would ignore the devices of
a claim; the report says why.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from carrel.dialects.cdi import why_no_cdi
from carrel.dialects.options import DeviceList
from carrel.ids import GpuUuid, HolderId, ResourceClaimUid
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.reflector import Informers
from carrel.ledger.gpus import Gpu
from carrel.node.claim_driver import ClaimDriver
from carrel.node.interfaces import MachineState
from carrel.node.lease_check import LeaseCheck
from carrel.node.settings import AgentMode, AgentOptions
from carrel.resource_claims import dra
from carrel.resource_claims.node.claim_plugin import ClaimPlugin
from carrel.resource_claims.node.claim_preparation import ClaimFiles, ClaimPreparation
from carrel.resource_claims.node.device_slice import SlicePublisher
from carrel.resource_claims.objects import RESOURCE_SLICES

NOT_SEEN = "its Node is not known yet"


class NodeClaims(ClaimDriver):
    def __init__(
        self, cluster: Cluster, options: AgentOptions, lease_check: LeaseCheck, report: Callable[[], Awaitable[None]]
    ) -> None:
        self._options = options
        self._preparation = ClaimPreparation(
            cluster,
            options.node_name,
            ClaimFiles(options.cdi_folder),
            lease_check,
            options.cuda_devices,
            report,
            options.device_list is DeviceList.CDI,
        )
        self.plugin = ClaimPlugin(options.kubelet_folder, self._preparation, lambda: not self._why_not)
        self._publisher = SlicePublisher(cluster, options.node_name)
        self._why_not = NOT_SEEN

    def watch(self, informers: Informers, on_change: Callable[[], None]) -> None:
        ours = f"spec.nodeName={self._options.node_name},spec.driver={dra.DRIVER}"
        self._slices = informers.watch(RESOURCE_SLICES, Selection(fields=ours), optional=True)
        self._slices.on_change(lambda old, new: on_change())

    async def run(self) -> None:
        await self.plugin.run()

    def with_users(self, users: Mapping[GpuUuid, Sequence[HolderId]]) -> dict[GpuUuid, Sequence[HolderId]]:
        claims = self._preparation.users()
        return {uuid: sorted({*users.get(uuid, ()), *claims.get(uuid, ())}) for uuid in {*users, *claims}}

    def prepared(self) -> tuple[ResourceClaimUid, ...]:
        return tuple(sorted({uid for users in self._preparation.users().values() for uid in users}))

    def look(self, gpus: Sequence[Gpu], node: NodeObject | None, seen_at: datetime) -> str:
        self._preparation.gpus = gpus
        self.plugin.health.update(gpus, seen_at)
        if self._options.mode is not AgentMode.NATIVE:
            self._why_not = f"the agent runs in mode {self._options.mode.value}, where another plugin chooses the GPUs"
        elif self._options.device_list is DeviceList.MOUNTS:
            self._why_not = "with nodes.deviceList: mounts the container runtime ignores what claims tell it; cdi works"
        elif node is None:
            self._why_not = NOT_SEEN
        else:
            self._why_not = why_no_cdi(node.status.node_info.container_runtime_version)
        return f"ResourceClaims get no GPUs of this node: {self._why_not}" if self._why_not else ""

    async def publish(self, state: MachineState, node: NodeObject | None) -> None:
        seen = self._slices.store.get(dra.slice_name(self._options.node_name))
        if self._why_not or node is None:
            await self._publisher.withdraw(seen)
        elif self.plugin.is_registered:  # before that, the kubelet would delete it
            await self._publisher.publish(state, node, seen)
