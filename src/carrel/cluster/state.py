"""What one process knows of the cluster: its caches, its own ledger, and what pods ask for. Puts the parts together."""

import asyncio
from collections.abc import Collection
from functools import partial

from carrel.cluster.coverage.coverage_words import CoverageWords
from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.eligible_nodes import ClosedNodes, EligibleNodes
from carrel.cluster.gangs.gang_members import GangMemberLookup
from carrel.cluster.gangs.gang_sizes import GangSizes
from carrel.cluster.holders import GoneHolders
from carrel.cluster.options import DEFAULT_CLUSTER_OPTIONS, ClusterOptions
from carrel.cluster.pod_facts import PodFactsLookup
from carrel.cluster.pod_requests import PodRequests
from carrel.cluster.record.cluster_ledger import ClusterLedger
from carrel.cluster.record.lease_writer import LeaseWriter
from carrel.cluster.record.slot_gpus import ReservationWaiter
from carrel.cluster.waiting.person_limit import PersonLimit
from carrel.cluster.waiting.waiting_booked import WaitingBooked
from carrel.cluster.waiting.waiting_reason import WaitingReason
from carrel.cluster.waiting.wake import Nominations, SchedulerWaker
from carrel.cluster.watches import Watches
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim_objects import GpuClaim
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai import PodGroup
from carrel.ids import HolderId
from carrel.kubernetes.cluster import Cluster, NotFound
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.reflector import Informers
from carrel.ledger.ledger import Ledger
from carrel.ledger.precedence import Precedence

AGENTS_EVERY_S = 5.0
"""How often silent agents are looked for."""


class ClusterState:
    """The informers have to be run."""

    def __init__(self, cluster: Cluster, options: ClusterOptions = DEFAULT_CLUSTER_OPTIONS) -> None:
        self.cluster = cluster
        self.options = options
        self.words = CoverageWords(options.zone)
        self.isolation = Isolation(options.clock, options.retry)
        self.ledger = Ledger()

        # What is watched
        self.informers = Informers(cluster, options.watch_timing, isolation=self.isolation)
        self.watches = watches = Watches(self.informers, self.ledger, options)
        self.pods, self.nodes, self.leases = watches.pods, watches.nodes, watches.leases
        self.claims, self.bookings, self.namespaces = watches.claims, watches.bookings, watches.namespaces
        self.node_statuses = watches.node_statuses
        self.holders = watches.holders

        # Who holds GPUs
        self._closed_nodes = ClosedNodes(watches.pods, watches.nodes, options.namespace)
        self.cluster_ledger = ClusterLedger(self.ledger, watches, self._closed_nodes, options, self.isolation)
        self.gone_holders = GoneHolders(self.ledger)
        self._reservation_waiter = ReservationWaiter(self.cluster_ledger, options.reserve_s)
        self.lease_writer = LeaseWriter(cluster, self.cluster_ledger, self._reservation_waiter, options)

        # What pods ask for, where they may go, and which of them are booked
        self.gang_sizes = GangSizes(cluster, watches, self.isolation, options)
        self.requests = PodRequests(watches, self.ledger, self.gang_sizes, options, self.isolation)
        self.eligible_nodes = EligibleNodes(watches, self._closed_nodes, self.isolation)
        self.covered_pods = CoveredPods(self.ledger, watches, self.requests, self.eligible_nodes, options)
        self.pod_facts = PodFactsLookup(watches, self.ledger, self.requests, self.covered_pods, options)
        self.gang_members = GangMemberLookup(watches, self.pod_facts)

        # Why they wait
        self.booked_waiting = WaitingBooked(self.covered_pods, watches, self.gang_members, options.now)
        self.precedence = Precedence(self.ledger, self.booked_waiting)
        self.person_limit = PersonLimit(
            self.ledger,
            watches,
            self.covered_pods,
            self.gone_holders,
            self.gang_members,
            options.tier_policy,
        )
        self.waiting_reason = WaitingReason(
            self.ledger,
            self.pod_facts,
            self.gang_members,
            self.precedence,
            self.eligible_nodes,
            self.person_limit,
        )
        self.wake = SchedulerWaker(cluster, options.now)
        self.nominations = Nominations(cluster, options.now, self.wake)
        self._follow()

    # --- changes -----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Tells each part what it must learn of. The order of the handlers of one kind counts in one way: the ledger
        comes before all that read it. The others only forget what they had worked out, and work it out when asked."""
        watches = self.watches
        for each in watches.of_holders:
            each.on_synced(self.cluster_ledger.on_complete)
        watches.node_statuses.on_change(self.cluster_ledger.on_node_status)
        watches.nodes.on_change(self.cluster_ledger.on_node)
        watches.nodes.on_change(self.eligible_nodes.on_node)
        watches.nodes.on_change(self.covered_pods.on_node)
        watches.leases.on_change(self.cluster_ledger.on_lease)
        watches.leases.on_change(self._reservation_waiter.on_lease)
        watches.pods.on_change(self.cluster_ledger.on_pod)
        watches.pods.on_change(self.gone_holders.on_pod)
        watches.pods.on_change(self.gang_sizes.on_pod)
        watches.pods.on_change(self.covered_pods.on_pod)
        watches.pods.on_change(self.booked_waiting.on_pod)
        watches.bookings.on_change(self.covered_pods.on_booking)
        watches.namespaces.on_change(self.covered_pods.on_namespace)
        watches.claims.on_change(self._on_request_part)
        watches.pod_groups.on_change(self._on_request_part)
        watches.holders.on_change(self._on_other_holder)
        watches.holders.on_requests(self.covered_pods.on_requests)
        self.cluster_ledger.on_shares(self.covered_pods.on_shares)
        self.gang_sizes.on_change(self._on_requests)

    def _on_request_part(self, old: GpuClaim | PodGroup | None, new: GpuClaim | PodGroup | None) -> None:
        """A part of what pods ask for is in other objects, which may come after the pods."""
        if old is None or new is None or old.spec != new.spec:
            self.gang_sizes.on_names()
            self._on_requests()

    def _on_requests(self) -> None:
        self.covered_pods.on_requests()
        self.booked_waiting.on_gangs()

    def _on_other_holder(self, uid: HolderId, users: Collection[Pod]) -> None:
        self.cluster_ledger.on_other_holder(uid)
        self.covered_pods.on_other_holder(uid, users)

    # --- questions to several parts ----------------------------------------------------------------------------------

    async def reread(self) -> bool:
        """Reads Leases and bookings past the caches. False: that of bookings is old, and takes nothing away."""
        await self.lease_writer.reread_all()
        try:
            found = (await self.cluster.list(BOOKINGS)).items
        except NotFound:
            found = []  # the kind is not installed
        there = {booking.metadata.name: booking.spec for booking in found}
        return there == {booking.metadata.name: booking.spec for booking in self.bookings.store}

    async def watch_agents(self) -> None:
        """Look again and again for agents that are silent: their nodes take no new pods. Until it is cancelled."""
        while True:
            mark = partial(self.cluster_ledger.mark_silent_agents, self.options.now())
            self.isolation.attempt("silent_agents", mark)
            await asyncio.sleep(AGENTS_EVERY_S)

    def gang_runs(self, pod: Pod) -> bool:
        """Whether a member of the pod's gang is bound."""
        asked = self.requests.as_admitted(pod)
        gang = asked.request.gang if isinstance(asked, PodRequest) else None
        return gang is not None and self.gang_members(gang).bound > 0
