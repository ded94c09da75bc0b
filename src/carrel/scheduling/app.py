"""The routes of the extender: Carrel's own prefix, gpushare's, and what probes and Prometheus ask for."""

from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from carrel import __version__
from carrel.http.health import health_routes
from carrel.http.post_routes import JSON, BodyLimit, BodyMemory, PostRoute, post_routes
from carrel.scheduling.handlers import ExtenderHandlers

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
