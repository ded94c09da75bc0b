"""Puts the parts of the controller together on what a process knows of the cluster."""

from collections.abc import Iterable

from carrel.dialects.kai_reservation import SPELLINGS, is_reservation
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.cluster_state import NAMESPACE_OF, SLOT_OF, Carrel
from carrel.lifecycle.collection import Collector, Witnesses
from carrel.lifecycle.reservation_pods import DEFAULT_RESERVATIONS, Reservations, ReservationTerms, Scene


def collector_on(state: Carrel) -> Collector:
    witnesses = Witnesses(state.cluster, state.pods.store.by_uid, state.gang_runs, state.house.clock)
    return Collector(state.books, state.cards, witnesses)


def reservations_on(state: Carrel, terms: ReservationTerms = DEFAULT_RESERVATIONS) -> Reservations:
    def reservation_pods() -> Iterable[Pod]:
        namespaces = (spelling.namespace for spelling in SPELLINGS)
        return [pod for name in namespaces for pod in state.pods.store.find(NAMESPACE_OF, name) if is_reservation(pod)]

    scene = Scene(
        state.cluster,
        state.house.namespace,
        reservation_pods,
        lambda slot: state.pods.store.find(SLOT_OF, slot),
        state.pods.store.by_uid,
        state.house.clock,
        terms,
    )
    return Reservations(state.books, state.cards, scene)
