"""What one process knows of the cluster: its caches, its own ledger, and what pods ask for. Puts the parts together."""

from collections.abc import Iterator

from carrel.cluster.claim_users import NAMES_CLAIM
from carrel.cluster.closed_nodes import ClosedNodes
from carrel.cluster.coverage.covered_pods import CoveredPods
from carrel.cluster.device_claims import DeviceClaims
from carrel.cluster.eligible_nodes import EligibleNodes
from carrel.cluster.gangs.gang_members import GangMemberLookup
from carrel.cluster.gangs.gang_sizes import GangSizes
from carrel.cluster.options import DEFAULT_CLUSTER_OPTIONS, ClusterOptions
from carrel.cluster.pod_facts import PodFactsLookup
from carrel.cluster.pod_requests import PodRequests
from carrel.cluster.record.cluster_ledger import ClusterLedger
from carrel.cluster.record.lease_writer import LeaseWriter
from carrel.cluster.record.slot_gpus import ReservationWaiter
from carrel.cluster.waiting.person_limit import GoneHolders, PersonLimit
from carrel.cluster.waiting.waiting_booked import WaitingBooked
from carrel.cluster.waiting.waiting_reason import WaitingReason
from carrel.cluster.waiting.wake import Nominations, SchedulerWaker
from carrel.cluster.watches import Watches
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim_objects import GpuClaim
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai import PodGroup
from carrel.kubernetes.cluster import Cluster, NotFound
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.isolation import Isolation
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resource_claims import ResourceClaim
from carrel.ledger.ledger import Ledger


class ClusterState:
    """The informers have to be run."""

    def __init__(self, cluster: Cluster, options: ClusterOptions = DEFAULT_CLUSTER_OPTIONS) -> None:
        self.cluster = cluster
        self.options = options
        self.isolation = Isolation(options.clock, options.retry)
        self.ledger = Ledger()

        # What is watched
        self.informers = Informers(cluster, options.watch_timing, isolation=self.isolation)
        drivers = (options.dra_driver.value,) if options.dra else ()
        self.watches = watches = Watches(self.informers, options.namespace, drivers)
        self.pods, self.nodes, self.leases = watches.pods, watches.nodes, watches.leases
        self.claims, self.bookings, self.namespaces = watches.claims, watches.bookings, watches.namespaces
        self.node_statuses = watches.node_statuses
        self.device_claims, self.claim_users = watches.device_claims, watches.claim_users

        # Who holds GPUs
        self._closed_nodes = ClosedNodes(watches.pods, watches.nodes, options.namespace)
        self.cluster_ledger = ClusterLedger(
            self.ledger, watches, self._closed_nodes, options.dialect_options, self.isolation
        )
        self.gone_holders = GoneHolders(self.ledger)
        self._reservation_waiter = ReservationWaiter(self.cluster_ledger, options.reserve_s)
        self.lease_writer = LeaseWriter(cluster, self.cluster_ledger, self._reservation_waiter, options)

        # What pods ask for, where they may go, and which of them are booked
        self.gang_sizes = GangSizes(cluster, watches, self.isolation, options)
        self.requests = PodRequests(watches, self.ledger, self.gang_sizes, options, self.isolation)
        self.eligible_nodes = EligibleNodes(watches, self._closed_nodes, self.requests, self.ledger, self.isolation)
        self.covered_pods = CoveredPods(self.ledger, watches, self.requests, self.eligible_nodes, options)
        self.pod_facts = PodFactsLookup(watches, self.ledger, self.requests, self.covered_pods, options.tier_policy)
        self.gang_members = GangMemberLookup(watches, self.pod_facts)

        # Why they wait
        self.booked_waiting = WaitingBooked(self.covered_pods, watches, self.gang_members, options.now)
        self.person_limit = PersonLimit(
            self.ledger,
            watches,
            self.covered_pods,
            self.gone_holders,
            self.gang_members,
            options.tier_policy.opportunistic_gpus,
        )
        self.waiting_reason = WaitingReason(
            self.ledger,
            self.pod_facts,
            self.gang_members,
            self.booked_waiting,
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
        if watches.device_claims is not None:
            self._follow_device_claims(watches.device_claims)
        self.cluster_ledger.on_shares(self.covered_pods.on_shares)
        self.gang_sizes.on_change(self._on_requests)

    def _on_request_part(self, old: GpuClaim | PodGroup | None, new: GpuClaim | PodGroup | None) -> None:
        """A part of what pods ask for is in other objects, which may come after the pods."""
        if old is None or new is None or old.spec != new.spec:
            self.gang_sizes.on_claims()
            self._on_requests()

    def _on_requests(self) -> None:
        self.covered_pods.on_requests()
        self.booked_waiting.on_gangs()

    def _follow_device_claims(self, device_claims: DeviceClaims) -> None:
        def on_claim(old: ResourceClaim | None, new: ResourceClaim | None) -> None:
            found = [claim for claim in (old, new) if claim is not None]
            users = {pod.metadata.uid: pod for claim in found for pod in self._concerned_by(claim)}
            self.cluster_ledger.on_claim(found[0].metadata.uid)
            self.covered_pods.on_claim(found[0].metadata.uid, users.values())

        device_claims.claims.on_change(on_claim)
        device_claims.templates.on_change(lambda old, new: self.covered_pods.on_requests())
        device_claims.classes.on_change(lambda old, new: self.covered_pods.on_requests())

    def _concerned_by(self, claim: ResourceClaim) -> Iterator[Pod]:
        """The pods that use the claim, and those that wait for it."""
        yield from self.claim_users.users_of(claim)
        yield from self.pods.store.find(NAMES_CLAIM, f"{claim.metadata.namespace}/{claim.metadata.name}")

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

    def gang_runs(self, pod: Pod) -> bool:
        """Whether a member of the pod's gang is bound."""
        asked = self.requests.as_admitted(pod)
        gang = asked.request.gang if isinstance(asked, PodRequest) else None
        return gang is not None and self.gang_members(gang).bound > 0
