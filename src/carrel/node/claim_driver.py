"""What an agent does for ResourceClaims: nothing, unless it is their driver (`resource_claims.node.node_claims`)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

from carrel.ids import GpuUuid, HolderId, ResourceClaimUid
from carrel.kubernetes.cluster import Cluster
from carrel.kubernetes.objects.kinds import NodeObject
from carrel.kubernetes.reflector import Informers
from carrel.ledger.gpus import Gpu
from carrel.node.interfaces import MachineState
from carrel.node.lease_check import LeaseCheck
from carrel.node.settings import AgentOptions


class ClaimDriver:
    def __init__(
        self, cluster: Cluster, options: AgentOptions, lease_check: LeaseCheck, report: Callable[[], Awaitable[None]]
    ) -> None:
        """`report`: writes who uses the GPUs to the API server."""

    def watch(self, informers: Informers, on_change: Callable[[], None]) -> None:
        """Watch what it needs of the cluster."""

    async def run(self) -> None:
        """Answer the kubelet, until it is cancelled."""

    def look(self, gpus: Sequence[Gpu], node: NodeObject | None, seen_at: datetime) -> str:
        """Take note of what there is. Why no claim can have a GPU here, for the report; empty if they can."""
        return ""

    async def publish(self, state: MachineState, node: NodeObject | None) -> None:
        """Advertise the GPUs. Raises `ClusterError`."""

    def with_users(self, users: Mapping[GpuUuid, Sequence[HolderId]]) -> Mapping[GpuUuid, Sequence[HolderId]]:
        """Return who uses which GPU, with the claims that are prepared."""
        return users

    def prepared(self) -> tuple[ResourceClaimUid, ...]:
        """Return the uids of the claims that are prepared."""
        return ()
