"""What one process knows of the cluster: its caches, its own ledger, and what pods asked for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES, GpuClaim
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai_objects import POD_GROUPS, PodGroup
from carrel.dialects.kai_reservation import is_reservation
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.dialects.registry import request_of
from carrel.dialects.seal import Seal
from carrel.dialects.tier import tier_of
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, Reflector, WatchTiming
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.eligible_nodes import EligibleNodes
from carrel.leases.gang_members import GangMemberLookup
from carrel.leases.lease_writer import LeaseContext, LeaseWriter
from carrel.leases.pod_progress import holder_of, is_waiting, slot_of
from carrel.leases.reservation_wait import RESERVE_S, ReservationWaiter
from carrel.leases.waiting_reason import WaitingContext, WaitingReason
from carrel.leases.wake import SchedulerWaker
from carrel.ledger.placement import WaitingPod
from carrel.ledger.refusals import Refusal
from carrel.ledger.tiers import Tier
from carrel.parsing import Malformed

NAMESPACE = "carrel"
"""Where Carrel's own Leases are, unless the setting says otherwise."""

NAMESPACE_OF, GANG_OF, SLOT_OF, TIER_WAITING = "namespace", "gang", "slot", "tier of a pod that waits"
"""The indexes of the caches."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """What the cluster's admin has decided, and the clocks."""

    namespace: str = NAMESPACE
    dialect_options: DialectOptions = DEFAULT_DIALECT_OPTIONS
    reserve_s: float = RESERVE_S
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    watch_timing: WatchTiming = DEFAULT_WATCH_TIMING
    seal: Seal | None = None
    """With it, only pods that came through the webhook get a GPU."""


DEFAULT_CLUSTER_OPTIONS = ClusterOptions()


class ClusterState:
    """The informers have to be run."""

    def __init__(self, cluster: Cluster, options: ClusterOptions = DEFAULT_CLUSTER_OPTIONS) -> None:
        self.cluster = cluster
        self.options = options
        self.informers = Informers(cluster, options.watch_timing)
        self.pods: Reflector[Pod] = self.informers.watch(
            PODS,
            indexes={
                NAMESPACE_OF: lambda pod: [pod.metadata.namespace],
                TIER_WAITING: _tier_if_waiting,
                SLOT_OF: lambda pod: filter(None, [slot_of(pod)]),
            },
        )
        self.claims: Reflector[GpuClaim] = self.informers.watch(
            GPU_CLAIMS, indexes={GANG_OF: lambda claim: [f"{claim.metadata.namespace}/{claim.spec.gang_ref}"]}
        )
        self.pod_groups: Reflector[PodGroup] = self.informers.watch(POD_GROUPS, optional=True)
        self.nodes: Reflector[NodeObject] = self.informers.watch(NODES)
        self.leases = self.informers.watch(LEASES, Selection(options.namespace))
        self.cluster_ledger = ClusterLedger(self.pods.store.by_uid, options.dialect_options.memory_unit)
        self.ledger = self.cluster_ledger.ledger
        self.informers.watch(GPU_NODE_STATUSES).on_change(self.cluster_ledger.on_node_status)
        self.nodes.on_change(self.cluster_ledger.on_node)
        self.eligible_nodes = EligibleNodes(self.nodes.store.snapshot)
        self.nodes.on_change(self.eligible_nodes.on_node)
        self.leases.on_change(self.cluster_ledger.on_lease)
        self.pods.on_change(self.cluster_ledger.on_pod)

        lease_context = LeaseContext(cluster, options.namespace, options.now, options.clock, lambda: uuid4().hex[:12])
        reservation_waiter = ReservationWaiter(self.cluster_ledger, options.reserve_s)
        self.leases.on_change(reservation_waiter.on_lease)
        self.lease_writer = LeaseWriter(self.cluster_ledger, lease_context, reservation_waiter)
        self.wake = SchedulerWaker(cluster, options.now)
        self.gang_members = GangMemberLookup(
            lambda namespace: self.pods.store.find(NAMESPACE_OF, namespace), self.read_request
        )
        context = WaitingContext(self.requested_by, self.gang_members, self.booked_waiting)
        self._reason = WaitingReason(self.cluster_ledger.ledger, context)

    # --- what a pod asks for -----------------------------------------------------------------------------------------

    def read_request(self, pod: Pod) -> PodRequest | Refusal | None:
        """None if the pod asks for no GPU. Raises `Malformed` if the request cannot be read."""
        if is_reservation(pod):
            return None  # its GPU is for other pods, which are on the slot's Lease
        asked = request_of(pod, self._claim_named, self._gang_size, self.options.dialect_options)
        if not isinstance(asked, PodRequest) or pod.spec.node_name:
            return asked  # a pod that has its GPU keeps it
        missing = self.options.seal.missing_on(pod) if self.options.seal is not None else None
        return missing or asked.not_recorded_on(pod) or asked

    def requested_by(self, pod: Pod) -> PodRequest | Refusal | None:
        """The same; a request that cannot be read is refused."""
        try:
            return self.read_request(pod)
        except Malformed as malformed:
            return Refusal(str(malformed))

    def _claim_named(self, namespace: str, name: str) -> GpuClaim | None:
        return self.claims.store.get(name, namespace)

    def _gang_size(self, namespace: str, gang: str) -> int:
        """If neither pod nor claim gives the size of a gang: as in its PodGroup, else the number of its claims."""
        group = self.pod_groups.store.get(gang, namespace)
        if group is not None and group.spec.min_member > 0:
            return group.spec.min_member
        return len(self.claims.store.find(GANG_OF, f"{namespace}/{gang}"))

    # --- where it may go, and why it waits ---------------------------------------------------------------------------

    def nodes_for(self, pod: Pod) -> Sequence[str]:
        return self.eligible_nodes.of(pod).nodes

    def why(self, pod: Pod) -> Refusal | None:
        """Why a pod waits for its GPUs; None if it need not wait."""
        eligible = self.eligible_nodes.of(pod)
        has_cards = self.cluster_ledger.ledger.rooms.__contains__
        return self._reason.why(pod, eligible.nodes, eligible.why_not_elsewhere(has_cards))

    def booked_waiting(self) -> Sequence[WaitingPod]:
        """The booked pods that wait, the oldest first."""
        pods = self.pods.store.find(TIER_WAITING, Tier.BOOKED.value)
        requests = (
            (pod, self.requested_by(pod))
            for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        )
        return [
            WaitingPod(holder_of(pod), asked.request, self.eligible_nodes.of(pod).nodes)
            for pod, asked in requests
            if isinstance(asked, PodRequest)
        ]

    def gang_runs(self, pod: Pod) -> bool:
        """Whether a member of the pod's gang is bound."""
        asked = self.requested_by(pod)
        gang = asked.request.gang if isinstance(asked, PodRequest) else None
        return gang is not None and self.gang_members(gang).bound > 0


def _tier_if_waiting(pod: Pod) -> Sequence[str]:
    tier = tier_of(pod) if is_waiting(pod) else None
    return [tier.value] if tier else []
