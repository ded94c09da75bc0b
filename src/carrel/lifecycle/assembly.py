"""Puts the parts of the controller together on what a process knows of the cluster."""

from collections.abc import Iterable

from carrel.dialects.kai_reservation import SPELLINGS, is_reservation
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.cluster_state import NAMESPACE_OF, SLOT_OF, ClusterState
from carrel.lifecycle.collection import CollectionContext, Collector
from carrel.lifecycle.reservation_pods import (
    DEFAULT_RESERVATION_OPTIONS,
    ReservationContext,
    ReservationOptions,
    Reservations,
)


def collector_on(state: ClusterState) -> Collector:
    context = CollectionContext(state.cluster, state.pods.store.by_uid, state.gang_runs, state.options.clock)
    return Collector(state.cluster_ledger, state.lease_writer, context)


def reservations_on(state: ClusterState, terms: ReservationOptions = DEFAULT_RESERVATION_OPTIONS) -> Reservations:
    def reservation_pods() -> Iterable[Pod]:
        namespaces = (spelling.namespace for spelling in SPELLINGS)
        return [pod for name in namespaces for pod in state.pods.store.find(NAMESPACE_OF, name) if is_reservation(pod)]

    context = ReservationContext(
        state.cluster,
        state.options.namespace,
        reservation_pods,
        lambda slot: state.pods.store.find(SLOT_OF, slot),
        state.pods.store.by_uid,
        state.options.clock,
        terms,
    )
    return Reservations(state.cluster_ledger, state.lease_writer, context)
