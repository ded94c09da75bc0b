"""Puts the parts of the extender together, for one process."""

from dataclasses import dataclass

from carrel.cluster.state import ClusterState
from carrel.dialects.gpuclaim import SCHEDULER
from carrel.dialects.registry import ALL
from carrel.ledger.machines import Machines
from carrel.scheduling.bind_check import BindCheck
from carrel.scheduling.gangs import DEFAULT_GANG_TIMEOUTS, GangScheduler, GangTimeouts
from carrel.scheduling.handlers import ExtenderHandlers
from carrel.scheduling.machine_room import MachineWatch
from carrel.scheduling.metrics import ExtenderMetrics
from carrel.scheduling.offers import NodePreferences, Offers
from carrel.scheduling.sampled_nodes import SampledNodes
from carrel.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    spread: bool = False
    """Prefer the emptiest node and the emptiest GPU instead of those where the least is wasted."""
    timeouts: GangTimeouts = DEFAULT_GANG_TIMEOUTS
    schedulers: frozenset[str] | None = frozenset({SCHEDULER})
    """Whose pods are bound, besides those of the peers whose place Carrel takes; None: of all."""


DEFAULT_OPTIONS = SchedulerOptions()


def scheduler_on(state: ClusterState, options: SchedulerOptions = DEFAULT_OPTIONS) -> Scheduler:
    machines, offers = Machines(), Offers(state)
    watch, preferences = MachineWatch(machines), NodePreferences(state.ledger)
    gangs = GangScheduler(state, offers, SampledNodes(state, machines), options.timeouts, spread=options.spread)
    scheduler = Scheduler(state, gangs, offers, preferences, machines, spread=options.spread)
    state.gang_sizes.on_known(state.wake)
    state.nodes.on_change(watch.on_node)
    state.nodes.on_change(preferences.on_node)
    state.pods.on_change(watch.on_pod)
    state.pods.on_change(offers.on_pod)
    state.pods.on_change(gangs.on_pod)
    state.pods.on_change(scheduler.on_pod)
    return scheduler


def handlers_on(
    state: ClusterState, scheduler: Scheduler, options: SchedulerOptions = DEFAULT_OPTIONS
) -> ExtenderHandlers:
    served = options.schedulers | ALL.scheduler_names if options.schedulers is not None else None
    metrics = ExtenderMetrics(state.informers.silences)
    metrics.show_api_calls(state.cluster.calls)
    state.isolation.on_failure = metrics.count_object_failure
    bind_check = BindCheck(state.cluster, state.pods.store, state.nodes.store, served)
    return ExtenderHandlers(state, scheduler, bind_check, metrics)
