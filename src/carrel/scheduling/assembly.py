"""Puts the parts of the extender together, for one process, and says which paths answer."""

from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from carrel import __version__
from carrel.cluster.state import ClusterState
from carrel.dialects.options import SCHEDULER
from carrel.dialects.registry import ALL
from carrel.http.health import health_routes
from carrel.http.post_routes import JSON, BodyLimit, BodyMemory, PostRoute, post_routes
from carrel.ledger.machines import Machines
from carrel.scheduling.bind_check import BindCheck
from carrel.scheduling.gang_nodes import SampledNodes
from carrel.scheduling.gangs import DEFAULT_GANG_TIMEOUTS, GangScheduler, GangTimeouts
from carrel.scheduling.handlers import ExtenderHandlers
from carrel.scheduling.machine_room import MachineWatch
from carrel.scheduling.metrics import ExtenderMetrics
from carrel.scheduling.offers import NodePreferences, Offers
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
    metrics.show_failures(state.isolation.failures)
    bind_check = BindCheck(state.cluster, state.pods.store, state.nodes.store, served)
    return ExtenderHandlers(state, scheduler, bind_check, metrics)


ERROR_FIELD = "Error"
LARGEST_QUESTION = 32 * 1024 * 1024
"""A pod has at most 3 MB, and the names of 5,000 nodes less than 1.3 MB. A scheduler without `nodeCacheCapable` sends
Node objects instead: 5,000 of them are about 30 MB, more if they list many images."""
ALL_QUESTIONS = 2 * LARGEST_QUESTION
"""Of all calls that are read or answered at one moment."""
LARGEST_BIND = 16 * 1024
"""Three names and a uid."""


def extender_app(handlers: ExtenderHandlers) -> Starlette:
    async def inspect(request: Request) -> Response:
        status, body = handlers.inspect(request.path_params.get("node", ""))
        return Response(body, status, media_type=JSON)

    async def version(request: Request) -> Response:
        return PlainTextResponse(__version__)

    memory = BodyMemory(ALL_QUESTIONS)
    question = BodyLimit(LARGEST_QUESTION, ERROR_FIELD, memory)
    bind = PostRoute(handlers.bind, BodyLimit(LARGEST_BIND, ERROR_FIELD, memory))
    posts = {
        "/carrel/filter": PostRoute(handlers.filter, question),
        "/carrel/prioritize": PostRoute(handlers.prioritize, question),
        "/carrel/bind": bind,
        "/gpushare-scheduler/filter": PostRoute(partial(handlers.filter, for_gpushare=True), question),
        "/gpushare-scheduler/bind": bind,
    }
    return Starlette(
        routes=[
            *post_routes(posts),
            Route("/gpushare-scheduler/inspect", inspect),
            Route("/gpushare-scheduler/inspect/{node}", inspect),
            Route("/version", version),
            *health_routes(handlers.why_not_ready, handlers.metrics_text),
        ]
    )
