"""Puts Carrel's verbs together on one cluster: what every door that knows the ledger needs."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from carrel.bookings.tiers import Tier
from carrel.dialects.kai_reservation import SPELLINGS, is_reservation
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
from carrel.leases.lease_writer import Cabinet, Cards
from carrel.leases.reservation_wait import RESERVE_S, Reserving
from carrel.leases.wake import Waker
from carrel.ledger.placement import Waiting
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.collection import Collector, Witnesses
from carrel.lifecycle.pod_events import is_waiting
from carrel.lifecycle.reservation_pods import DEFAULT_RESERVATIONS, Reservations, ReservationTerms, Scene, slots_of
from carrel.scheduling.gangs import Barracks, Musters, Patience, Roster
from carrel.scheduling.pod_lookup import Finder
from carrel.scheduling.scheduler import Scheduling, Surroundings, holder_of

if TYPE_CHECKING:
    from carrel.scheduling.handlers import Desk

NORMAL_PATIENCE = Patience()
NAMESPACE = "carrel"
"""Where Carrel's own Leases are, unless the setting says otherwise."""

NAMESPACE_OF, GANG_OF, SLOT_OF, TIER_WAITING = "namespace", "gang", "slot", "tier of a pod that waits"


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class House:
    """The rules of this cluster."""

    namespace: str = NAMESPACE
    terms: Terms = DEFAULT_TERMS
    spread: bool = False
    patience: Patience = NORMAL_PATIENCE
    reserve_s: float = RESERVE_S
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic
    rhythm: Rhythm = NORMAL_RHYTHM
    reservations: ReservationTerms = DEFAULT_RESERVATIONS
    seal: Seal | None = None
    """With it, only pods that came through the webhook get a card."""


HOUSE = House()


class Carrel:
    """One replica: its own caches, its own ledger, and the verbs on them. The mirror has to be run."""

    def __init__(self, cluster: Cluster, house: House = HOUSE) -> None:
        self.cluster = cluster
        self.house = house
        self.mirror = Mirror(cluster, house.rhythm)
        self.pods: Reflector[Pod] = self.mirror.watch(
            PODS,
            indexes={
                NAMESPACE_OF: lambda pod: [pod.metadata.namespace],
                TIER_WAITING: _tier_if_it_waits,
                SLOT_OF: slots_of,
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
        self._roster = Roster(lambda namespace: self.pods.store.find(NAMESPACE_OF, namespace), self.ask_of)
        self.wake = Waker(cluster, house.now)
        self.musters = Musters(self.books, self.cards, Barracks(self._roster, self.wake, house.clock, house.patience))
        around = Surroundings(cluster, self.ask_of, house.now, house.terms, house.spread, self._booked_waiting)
        self.scheduling = Scheduling(self.books, self.cards, self.musters, around)
        witnesses = Witnesses(cluster, self.pods.store.by_uid, self._gang_runs, house.clock)
        self.collector = Collector(self.books, self.cards, witnesses)

        self.reservations = Reservations(
            self.books,
            self.cards,
            Scene(
                cluster,
                house.namespace,
                self._reservation_pods,
                lambda slot: self.pods.store.find(SLOT_OF, slot),
                self.pods.store.by_uid,
                house.clock,
                house.reservations,
            ),
        )

    def _reservation_pods(self) -> Iterable[Pod]:
        namespaces = (spelling.namespace for spelling in SPELLINGS)
        return [pod for name in namespaces for pod in self.pods.store.find(NAMESPACE_OF, name) if is_reservation(pod)]

    def ask_of(self, pod: Pod) -> Ask | Refusal | None:
        if is_reservation(pod):
            return None  # its card is for others, who have it on their slot's Lease
        ask = request_of(pod, self._claim_named, self._gang_size, self.house.terms)
        if self.house.seal is None or not isinstance(ask, Ask) or pod.spec.node_name:
            return ask  # who has a card keeps it
        return self.house.seal.missing_on(pod) or ask

    def why(self, pod: Pod) -> Refusal | None:
        """Why a pod waits for its GPUs, in the words that people see everywhere; None if it need not."""
        reach = self.destinations.of(pod)
        has_cards = self.books.ledger.rooms.__contains__
        return self.scheduling.why(pod, reach.nodes, reach.why_not_elsewhere(has_cards))

    def nodes_for(self, pod: Pod) -> Sequence[str]:
        return self.destinations.of(pod).nodes

    def _booked_waiting(self) -> Sequence[Waiting]:
        pods = self.pods.store.find(TIER_WAITING, Tier.BOOKED.value)
        asks = (
            (pod, self.scheduling.understand(pod))
            for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        )
        return [
            Waiting(holder_of(pod), ask.request, self.destinations.of(pod).nodes)
            for pod, ask in asks
            if isinstance(ask, Ask)
        ]

    def _gang_runs(self, pod: Pod) -> bool:
        ask = self.scheduling.understand(pod)
        gang = ask.request.gang if isinstance(ask, Ask) else None
        return gang is not None and self._roster(gang).bound > 0

    def _claim_named(self, namespace: str, name: str) -> GpuClaim | None:
        return self.claims.store.get(name, namespace)

    def _gang_size(self, namespace: str, gang: str) -> int:
        """Where neither pod nor claim says how large a gang is: as its PodGroup does, else a pod for each claim."""
        group = self.pod_groups.store.get(gang, namespace)
        if group is not None and group.spec.min_member > 0:
            return group.spec.min_member
        return len(self.claims.store.find(GANG_OF, f"{namespace}/{gang}"))


def _tier_if_it_waits(pod: Pod) -> Sequence[str]:
    tier = tier_of(pod) if is_waiting(pod) else None
    return [tier.value] if tier else []


def desk_of(carrel: Carrel) -> "Desk":
    """Where kube-scheduler's calls are answered."""
    from carrel.scheduling.handlers import Desk, Staff  # only doors that serve need these libraries
    from carrel.scheduling.metrics import Metrics  # only doors that serve need these libraries

    ledger = carrel.books.ledger
    return Desk(
        Staff(
            scheduler=carrel.scheduling,
            find_pod=Finder(carrel.cluster, carrel.pods.store.by_uid),
            ledger=ledger,
            metrics=Metrics(ledger, carrel.mirror.silences),
            is_synced=lambda: carrel.mirror.is_synced,
            unit=carrel.house.terms.memory_unit,
        )
    )
