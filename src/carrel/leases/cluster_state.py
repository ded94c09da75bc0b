"""What one process knows of the cluster: its caches, its own ledger, and what pods ask for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from carrel.dialects.interface import PodRequest
from carrel.dialects.kai_reservation import is_reservation
from carrel.dialects.options import DEFAULT_DIALECT_OPTIONS, DialectOptions
from carrel.dialects.registry import request_of
from carrel.dialects.seal import Seal
from carrel.dialects.tier import tier_of
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.resources import GPU_CLAIMS, GPU_NODE_STATUSES, LEASES, NODES, POD_GROUPS, PODS
from carrel.kubernetes.objects.shapes import GpuClaim, NodeObject, Pod, PodGroup
from carrel.kubernetes.reflector import DEFAULT_WATCH_TIMING, Reflector, WatchTiming
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.eligible_nodes import EligibleNodes
from carrel.leases.gang_members import GangMemberLookup
from carrel.leases.lease_writer import LeaseContext, LeaseWriter
from carrel.leases.pods import holder_of, is_waiting, slot_of
from carrel.leases.reservation_wait import RESERVE_S, ReservationWaiter
from carrel.leases.waiting import WaitingContext, WaitingReason
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
                TIER_WAITING: _tier_if_it_waits,
                SLOT_OF: lambda pod: filter(None, [slot_of(pod)]),
            },
        )
        self.claims: Reflector[GpuClaim] = self.informers.watch(
            GPU_CLAIMS, indexes={GANG_OF: lambda claim: [f"{claim.metadata.namespace}/{claim.spec.gang_ref}"]}
        )
        self.pod_groups: Reflector[PodGroup] = self.informers.watch(POD_GROUPS, if_there=True)
        self.nodes: Reflector[NodeObject] = self.informers.watch(NODES)
        self.leases = self.informers.watch(LEASES, Selection(options.namespace))
        self.cluster_ledger = ClusterLedger(self.pods.store.by_uid, options.dialect_options.memory_unit)
        self.ledger = self.cluster_ledger.ledger
        self.informers.watch(GPU_NODE_STATUSES).on_change(self.cluster_ledger.see_node_status)
        self.nodes.on_change(self.cluster_ledger.see_node)
        self.destinations = EligibleNodes(self.nodes.store.snapshot)
        self.nodes.on_change(self.destinations.see_node)
        self.leases.on_change(self.cluster_ledger.see_lease)
        self.pods.on_change(self.cluster_ledger.see_pod)

        lease_context = LeaseContext(cluster, options.namespace, options.now, options.clock, lambda: uuid4().hex[:12])
        reservation_waiter = ReservationWaiter(self.cluster_ledger, options.reserve_s)
        self.leases.on_change(reservation_waiter.see_lease)
        self.lease_writer = LeaseWriter(self.cluster_ledger, lease_context, reservation_waiter)
        self.wake = SchedulerWaker(cluster, options.now)
        self.gang_members = GangMemberLookup(
            lambda namespace: self.pods.store.find(NAMESPACE_OF, namespace), self.read_request
        )
        context = WaitingContext(self.understand, self.gang_members, self.booked_waiting)
        self._reason = WaitingReason(self.cluster_ledger.ledger, context)

    # --- what a pod asks for -----------------------------------------------------------------------------------------

    def read_request(self, pod: Pod) -> PodRequest | Refusal | None:
        """None if it asks for no GPU. Raises `Malformed` where it cannot be understood."""
        if is_reservation(pod):
            return None  # its card is for others, who have it on their slot's Lease
        ask = request_of(pod, self._claim_named, self._gang_size, self.options.dialect_options)
        if self.options.seal is None or not isinstance(ask, PodRequest) or pod.spec.node_name:
            return ask  # who has a card keeps it
        return self.options.seal.missing_on(pod) or ask

    def understand(self, pod: Pod) -> PodRequest | Refusal | None:
        """The same; what cannot be understood is refused."""
        try:
            return self.read_request(pod)
        except Malformed as malformed:
            return Refusal(str(malformed))

    def _claim_named(self, namespace: str, name: str) -> GpuClaim | None:
        return self.claims.store.get(name, namespace)

    def _gang_size(self, namespace: str, gang: str) -> int:
        """Where neither pod nor claim says how large a gang is: as its PodGroup does, else a pod for each claim."""
        group = self.pod_groups.store.get(gang, namespace)
        if group is not None and group.spec.min_member > 0:
            return group.spec.min_member
        return len(self.claims.store.find(GANG_OF, f"{namespace}/{gang}"))

    # --- where it may go, and why it waits ---------------------------------------------------------------------------

    def nodes_for(self, pod: Pod) -> Sequence[str]:
        return self.destinations.of(pod).nodes

    def why(self, pod: Pod) -> Refusal | None:
        """Why a pod waits for its GPUs; None if it need not."""
        reach = self.destinations.of(pod)
        has_cards = self.cluster_ledger.ledger.rooms.__contains__
        return self._reason.why(pod, reach.nodes, reach.why_not_elsewhere(has_cards))

    def booked_waiting(self) -> Sequence[WaitingPod]:
        """The booked pods that wait, the oldest first."""
        pods = self.pods.store.find(TIER_WAITING, Tier.BOOKED.value)
        asks = (
            (pod, self.understand(pod))
            for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        )
        return [
            WaitingPod(holder_of(pod), ask.request, self.destinations.of(pod).nodes)
            for pod, ask in asks
            if isinstance(ask, PodRequest)
        ]

    def gang_runs(self, pod: Pod) -> bool:
        """Whether a member of the pod's gang is bound."""
        ask = self.understand(pod)
        gang = ask.request.gang if isinstance(ask, PodRequest) else None
        return gang is not None and self.gang_members(gang).bound > 0


def _tier_if_it_waits(pod: Pod) -> Sequence[str]:
    tier = tier_of(pod) if is_waiting(pod) else None
    return [tier.value] if tier else []
