"""The kinds that a process watches, each in its own store, and what is found in them by an index."""

from collections.abc import Iterator, Sequence
from typing import Any

from carrel.cluster.options import ClusterOptions
from carrel.cluster.pod_progress import slot_of
from carrel.dialects.booking_objects import BOOKINGS, BookingObject
from carrel.dialects.carrel import EXEMPT
from carrel.dialects.gpuclaim import CLAIM
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES, GpuClaim, GpuNodeStatus
from carrel.dialects.kai import POD_GROUP, POD_GROUPS, PodGroup
from carrel.dialects.seal import ADMITTED
from carrel.dialects.tier import counts_as, person_of
from carrel.ids import PersonId
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.kinds import Lease, Namespace, NodeObject, Pod
from carrel.kubernetes.objects.resources import LEASES, NAMESPACES, NODES, PODS
from carrel.kubernetes.reflector import Informers, Reflector
from carrel.ledger.ledger import Ledger

NAMESPACE_OF, GANG_OF, SLOT_OF, SEAL_OF = "namespace", "gang", "slot", "seal"
PERSON_OF, COUNTS_AS = "person", "counts as"
"""The indexes."""


def may_name_gang(pod: Pod) -> bool:
    return CLAIM in pod.metadata.annotations or POD_GROUP in pod.metadata.annotations


def gang_keys(pod: Pod) -> Iterator[str]:
    """The words by which the pod may name a gang: for an index of pods."""
    notes, namespace = pod.metadata.annotations, pod.metadata.namespace
    if claim := notes.get(CLAIM):
        yield claim_key(namespace, claim)
    if group := notes.get(POD_GROUP):
        yield group_key(namespace, group)


def claim_key(namespace: str, claim: str) -> str:
    return f"claim {namespace}/{claim}"


def group_key(namespace: str, group: str) -> str:
    return f"group {namespace}/{group}"


class Watches:
    """The informers have to be run."""

    def __init__(self, informers: Informers, ledger: Ledger, options: ClusterOptions) -> None:
        self.informers = informers
        self.pods: Reflector[Pod] = informers.watch(
            PODS,
            indexes={
                NAMESPACE_OF: lambda pod: [pod.metadata.namespace],
                PERSON_OF: lambda pod: filter(None, [person_of(pod)]),
                COUNTS_AS: lambda pod: [counts_as(pod)],
                SLOT_OF: lambda pod: filter(None, [slot_of(pod)]),
                GANG_OF: gang_keys,
                SEAL_OF: lambda pod: filter(None, [pod.metadata.annotations.get(ADMITTED)]),
                **options.holders.pod_indexes,
            },
        )
        self.claims: Reflector[GpuClaim] = informers.watch(
            GPU_CLAIMS, indexes={GANG_OF: lambda claim: [f"{claim.metadata.namespace}/{claim.spec.gang_ref}"]}
        )
        self.pod_groups: Reflector[PodGroup] = informers.watch(POD_GROUPS, optional=True)
        self.nodes: Reflector[NodeObject] = informers.watch(NODES)
        self.leases: Reflector[Lease] = informers.watch(LEASES, Selection(options.namespace), after=(self.pods,))
        self.holders = options.holders(self.pods.store, informers, ledger, options.namespace)
        self.of_holders: tuple[Reflector[Any], ...] = (self.pods, self.claims, self.leases)
        """By these it is known who holds GPUs, and who has some without a Lease."""
        # Last, so that each node is summed up once, and not again with each of its Leases and pods.
        before: tuple[Reflector[Any], ...] = (*self.of_holders, self.nodes)
        self.node_statuses: Reflector[GpuNodeStatus] = informers.watch(GPU_NODE_STATUSES, after=before)
        self.bookings: Reflector[BookingObject] = informers.watch(BOOKINGS, optional=True)
        self.namespaces: Reflector[Namespace] = informers.watch(NAMESPACES)

    @property
    def are_holders_read(self) -> bool:
        """Whether all pods, claims and Leases are here. Before that, every pod would seem to have no Lease."""
        return all(each.is_synced for each in self.of_holders)

    @property
    def are_nodes_read(self) -> bool:
        """Whether all Nodes and their reports are here, too."""
        return self.are_holders_read and self.nodes.is_synced and self.node_statuses.is_synced

    def claim_named(self, namespace: str, name: str) -> GpuClaim | None:
        return self.claims.store.get(name, namespace)

    def pods_that_may_name(self, namespace: str, gang: str) -> Iterator[Pod]:
        """The pods that name the gang, by themselves or by their claim, some twice; and those whose claim names another
        gang, which goes before what they say themselves."""
        yield from self.pods.store.find(GANG_OF, group_key(namespace, gang))
        for claim in self.claims.store.find(GANG_OF, f"{namespace}/{gang}"):
            yield from self.pods.store.find(GANG_OF, claim_key(namespace, claim.metadata.name))

    def pods_of(self, person: PersonId) -> Sequence[Pod]:
        return self.pods.store.find(PERSON_OF, person)

    def sealed_with(self, seal: str) -> Sequence[Pod]:
        """The pods that carry this seal."""
        return self.pods.store.find(SEAL_OF, seal) if seal else ()

    def is_exempt(self, namespace: str) -> bool:
        """Whether an admin has exempted the namespace from bookings and tiers."""
        return has_exemption(self.namespaces.store.get(namespace))


def has_exemption(namespace: Namespace | None) -> bool:
    return namespace is not None and namespace.metadata.annotations.get(EXEMPT) == "true"
