"""Puts the extender together on what a process knows of the cluster."""

from dataclasses import dataclass

from carrel.leases.cluster_state import Carrel
from carrel.scheduling.gangs import NORMAL_PATIENCE, Barracks, Musters, Patience
from carrel.scheduling.handlers import Desk, Staff
from carrel.scheduling.metrics import Metrics
from carrel.scheduling.pod_lookup import Finder
from carrel.scheduling.scheduler import Scheduling, Surroundings


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    spread: bool = False
    """Prefer the emptiest node instead of the one where the least is wasted."""
    patience: Patience = NORMAL_PATIENCE


DEFAULT_OPTIONS = SchedulerOptions()


def scheduler_on(state: Carrel, options: SchedulerOptions = DEFAULT_OPTIONS) -> Scheduling:
    around = Barracks(state.gang_members, state.wake, state.house.clock, options.patience)
    gangs = Musters(state.books, state.cards, around)
    surroundings = Surroundings(
        state.cluster, state.understand, state.house.now, state.house.terms, options.spread, state.booked_waiting
    )
    return Scheduling(state.books, state.cards, gangs, surroundings)


def handlers_on(state: Carrel, scheduler: Scheduling) -> Desk:
    ledger = state.books.ledger
    return Desk(
        Staff(
            scheduler=scheduler,
            understand=state.understand,
            find_pod=Finder(state.cluster, state.pods.store.by_uid),
            ledger=ledger,
            metrics=Metrics(ledger, state.mirror.silences),
            is_synced=lambda: state.mirror.is_synced,
            unit=state.house.terms.memory_unit,
        )
    )
