"""Puts the parts of the extender together, for one process."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from carrel.dialects.gpuclaim import SCHEDULER
from carrel.dialects.interface import PodRequest
from carrel.dialects.registry import ALL
from carrel.kubernetes.objects.kinds import Pod
from carrel.leases.cluster_state import ClusterState
from carrel.leases.shown_cards import shown_cards
from carrel.ledger.gangs import GangMembers
from carrel.ledger.machines import Machines
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import WHOLE, Gang, GpuPolicy, Request
from carrel.scheduling.bind_check import BindCheck
from carrel.scheduling.gangs import DEFAULT_GANG_TIMEOUTS, GangContext, GangScheduler, GangTimeouts
from carrel.scheduling.handlers import ExtenderContext, ExtenderHandlers
from carrel.scheduling.machine_room import MachineWatch
from carrel.scheduling.metrics import ExtenderMetrics
from carrel.scheduling.offers import Offers
from carrel.scheduling.pod_lookup import PodLookup
from carrel.scheduling.preferences import NodePreferences
from carrel.scheduling.sampled_nodes import SampledNodes
from carrel.scheduling.scheduler import RequestedBy, Scheduler, SchedulerContext


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    spread: bool = False
    """Prefer the emptiest node and the emptiest GPU instead of those where the least is wasted."""
    timeouts: GangTimeouts = DEFAULT_GANG_TIMEOUTS
    schedulers: frozenset[str] | None = frozenset({SCHEDULER})
    """Whose pods are bound, besides those of the peers whose place Carrel takes; None: of all."""


DEFAULT_OPTIONS = SchedulerOptions()


def scheduler_on(state: ClusterState, options: SchedulerOptions = DEFAULT_OPTIONS) -> Scheduler:
    state.gang_sizes.wake = state.wake
    members_of = _spreading_members(state.gang_members) if options.spread else state.gang_members
    machines = Machines()
    sampled = SampledNodes(
        lambda: len(state.nodes.store), lambda: state.ledger.rooms, state.nodes_for, state.pods.store.by_uid, machines
    )
    gang_context = GangContext(
        members_of, state.wake, state.nominations, sampled, state.options.clock, options.timeouts
    )
    watch = MachineWatch(machines)
    state.nodes.on_change(watch.on_node)
    state.pods.on_change(watch.on_pod)
    offers = Offers(state.cluster_ledger, state.options.clock, state.pods.store.by_uid)
    gangs = GangScheduler(state.cluster_ledger, state.lease_writer, offers, gang_context)
    preferences = NodePreferences(state.ledger)
    state.pods.on_change(offers.on_pod)
    state.pods.on_change(gangs.on_pod)
    state.nodes.on_change(preferences.on_node)
    context = SchedulerContext(
        cluster=state.cluster,
        requested_by=_spreading(state.placed_request) if options.spread else state.placed_request,
        now=state.options.now,
        booked=state.booked_waiting,
        covered=state.covered,
        keeper=state.keeper,
        tier=state.tier,
        why_over_limit=state.why_over_limit,
        why_never=state.waiting_reason.why_never,
        preferences_matter=preferences.matter,
        dialect_options=state.options.dialect_options,
        machines=machines,
        spread=options.spread,
    )
    scheduler = Scheduler(state.cluster_ledger, state.lease_writer, gangs, offers, context)
    state.pods.on_change(scheduler.on_pod)
    return scheduler


def _spreading(requested_by: RequestedBy) -> RequestedBy:
    def spread_over_gpus(pod: Pod) -> PodRequest | Refusal | None:
        asked = requested_by(pod)
        return replace(asked, request=on_emptiest(asked.request)) if isinstance(asked, PodRequest) else asked

    return spread_over_gpus


def _spreading_members(members_of: Callable[[Gang], GangMembers]) -> Callable[[Gang], GangMembers]:
    def spread_over_gpus(gang: Gang) -> GangMembers:
        members = members_of(gang)
        return replace(members, waiting=[(holder, on_emptiest(request)) for holder, request in members.waiting])

    return spread_over_gpus


def on_emptiest(request: Request) -> Request:
    """Parts of GPUs go to the emptiest GPU of a node too, unless the pod says how it wants to be placed."""
    says_nothing = request.policy is GpuPolicy.PACK and request.spreads_over_nodes is None
    is_part = request.amount != WHOLE
    return replace(request, policy=GpuPolicy.EMPTIEST) if says_nothing and is_part else request


def handlers_on(
    state: ClusterState, scheduler: Scheduler, options: SchedulerOptions = DEFAULT_OPTIONS
) -> ExtenderHandlers:
    served = options.schedulers | ALL.scheduler_names if options.schedulers is not None else None
    ledger = state.ledger
    metrics = ExtenderMetrics(state.informers.silences)
    metrics.show_api_calls(state.cluster.calls)
    state.isolation.on_failure = metrics.count_object_failure
    return ExtenderHandlers(
        ExtenderContext(
            scheduler=scheduler,
            requested_by=state.placed_request,
            find_pod=PodLookup(state.cluster, state.pods.store.by_uid, state.nodes.store.get),
            check_bind=BindCheck(state.cluster, state.nodes.store.get, served),
            ledger=ledger,
            metrics=metrics,
            is_synced=lambda: state.informers.is_synced,
            unit=state.options.dialect_options.memory_unit,
            shown_cards=lambda node: shown_cards(state.cluster_ledger, node),
        )
    )
