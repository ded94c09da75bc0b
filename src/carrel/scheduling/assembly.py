"""Puts the parts of the extender together, for one process."""

from dataclasses import dataclass

from carrel.leases.cluster_state import ClusterState
from carrel.leases.shown_cards import shown_cards
from carrel.scheduling.gangs import DEFAULT_GANG_TIMEOUTS, GangContext, GangScheduler, GangTimeouts
from carrel.scheduling.handlers import ExtenderContext, ExtenderHandlers
from carrel.scheduling.metrics import ExtenderMetrics
from carrel.scheduling.pod_lookup import PodLookup
from carrel.scheduling.scheduler import Scheduler, SchedulerContext


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    spread: bool = False
    """Prefer the emptiest node instead of the one where the least is wasted."""
    timeouts: GangTimeouts = DEFAULT_GANG_TIMEOUTS


DEFAULT_OPTIONS = SchedulerOptions()


def scheduler_on(state: ClusterState, options: SchedulerOptions = DEFAULT_OPTIONS) -> Scheduler:
    gang_context = GangContext(state.gang_members, state.wake, state.options.clock, options.timeouts)
    gangs = GangScheduler(state.cluster_ledger, state.lease_writer, gang_context)
    context = SchedulerContext(
        cluster=state.cluster,
        requested_by=state.requested_by,
        now=state.options.now,
        booked=state.booked_waiting,
        covered=state.covered,
        keeper=state.keeper,
        tier=state.tier,
        why_over_limit=state.why_over_limit,
        dialect_options=state.options.dialect_options,
        spread=options.spread,
    )
    return Scheduler(state.cluster_ledger, state.lease_writer, gangs, context)


def handlers_on(state: ClusterState, scheduler: Scheduler) -> ExtenderHandlers:
    ledger = state.ledger
    return ExtenderHandlers(
        ExtenderContext(
            scheduler=scheduler,
            requested_by=state.requested_by,
            find_pod=PodLookup(state.cluster, state.pods.store.by_uid),
            ledger=ledger,
            metrics=ExtenderMetrics(ledger, state.informers.silences),
            is_synced=lambda: state.informers.is_synced,
            unit=state.options.dialect_options.memory_unit,
            shown_cards=lambda node: shown_cards(state.cluster_ledger, node),
        )
    )
