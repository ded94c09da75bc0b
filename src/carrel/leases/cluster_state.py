"""What one process knows of the cluster: its caches, its own ledger, and what pods ask for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

from carrel.dialects.kai_reservation import is_reservation
from carrel.dialects.registry import DEFAULT_TERMS, Ask, Terms, request_of
from carrel.dialects.seal import Seal
from carrel.dialects.tier import tier_of
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.informers import Mirror
from carrel.kubernetes.objects.resources import GPU_CLAIMS, GPU_NODE_STATUSES, LEASES, NODES, POD_GROUPS, PODS
from carrel.kubernetes.objects.shapes import GpuClaim, NodeObject, Pod, PodGroup
from carrel.kubernetes.reflector import NORMAL_RHYTHM, Reflector, Rhythm
from carrel.leases.cluster_ledger import Books
from carrel.leases.eligible_nodes import Destinations
from carrel.leases.gang_members import Roster
from carrel.leases.lease_writer import Cabinet, Cards
from carrel.leases.pods import holder_of, is_waiting, slot_of
from carrel.leases.reservation_wait import RESERVE_S, Reserving
from carrel.leases.waiting import WaitingContext, WaitingReason
from carrel.leases.wake import Waker
from carrel.ledger.placement import Waiting
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
class House:
    """What the cluster's admin has decided, and the clocks."""

    namespace: str = NAMESPACE
    terms: Terms = DEFAULT_TERMS
    reserve_s: float = RESERVE_S
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    rhythm: Rhythm = NORMAL_RHYTHM
    seal: Seal | None = None
    """With it, only pods that came through the webhook get a GPU."""


HOUSE = House()


class Carrel:
    """The informers have to be run."""

    def __init__(self, cluster: Cluster, house: House = HOUSE) -> None:
        self.cluster = cluster
        self.house = house
        self.mirror = Mirror(cluster, house.rhythm)
        self.pods: Reflector[Pod] = self.mirror.watch(
            PODS,
            indexes={
                NAMESPACE_OF: lambda pod: [pod.metadata.namespace],
                TIER_WAITING: _tier_if_it_waits,
                SLOT_OF: lambda pod: filter(None, [slot_of(pod)]),
            },
        )
        self.claims: Reflector[GpuClaim] = self.mirror.watch(
            GPU_CLAIMS, indexes={GANG_OF: lambda claim: [f"{claim.metadata.namespace}/{claim.spec.gang_ref}"]}
        )
        self.pod_groups: Reflector[PodGroup] = self.mirror.watch(POD_GROUPS, if_there=True)
        self.nodes: Reflector[NodeObject] = self.mirror.watch(NODES)
        self.leases = self.mirror.watch(LEASES, Selection(house.namespace))
        self.books = Books(self.pods.store.by_uid, house.terms.memory_unit)
        self.mirror.watch(GPU_NODE_STATUSES).on_change(self.books.see_node_status)
        self.nodes.on_change(self.books.see_node)
        self.destinations = Destinations(self.nodes.store.snapshot)
        self.nodes.on_change(self.destinations.see_node)
        self.leases.on_change(self.books.see_lease)
        self.pods.on_change(self.books.see_pod)

        cabinet = Cabinet(cluster, house.namespace, house.now, house.clock, lambda: uuid4().hex[:12])
        reserving = Reserving(self.books, house.reserve_s)
        self.leases.on_change(reserving.see_lease)
        self.cards = Cards(self.books, cabinet, reserving)
        self.wake = Waker(cluster, house.now)
        self.gang_members = Roster(lambda namespace: self.pods.store.find(NAMESPACE_OF, namespace), self.ask_of)
        context = WaitingContext(self.understand, self.gang_members, self.booked_waiting)
        self._reason = WaitingReason(self.books.ledger, context)

    # --- what a pod asks for -----------------------------------------------------------------------------------------

    def ask_of(self, pod: Pod) -> Ask | Refusal | None:
        """None if it asks for no GPU. Raises `Malformed` where it cannot be understood."""
        if is_reservation(pod):
            return None  # its card is for others, who have it on their slot's Lease
        ask = request_of(pod, self._claim_named, self._gang_size, self.house.terms)
        if self.house.seal is None or not isinstance(ask, Ask) or pod.spec.node_name:
            return ask  # who has a card keeps it
        return self.house.seal.missing_on(pod) or ask

    def understand(self, pod: Pod) -> Ask | Refusal | None:
        """The same; what cannot be understood is refused."""
        try:
            return self.ask_of(pod)
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
        has_cards = self.books.ledger.rooms.__contains__
        return self._reason.why(pod, reach.nodes, reach.why_not_elsewhere(has_cards))

    def booked_waiting(self) -> Sequence[Waiting]:
        """The booked pods that wait, the oldest first."""
        pods = self.pods.store.find(TIER_WAITING, Tier.BOOKED.value)
        asks = (
            (pod, self.understand(pod))
            for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        )
        return [
            Waiting(holder_of(pod), ask.request, self.destinations.of(pod).nodes)
            for pod, ask in asks
            if isinstance(ask, Ask)
        ]

    def gang_runs(self, pod: Pod) -> bool:
        """Whether a member of the pod's gang is bound."""
        ask = self.understand(pod)
        gang = ask.request.gang if isinstance(ask, Ask) else None
        return gang is not None and self.gang_members(gang).bound > 0


def _tier_if_it_waits(pod: Pod) -> Sequence[str]:
    tier = tier_of(pod) if is_waiting(pod) else None
    return [tier.value] if tier else []
