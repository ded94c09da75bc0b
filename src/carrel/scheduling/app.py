"""The routes of the extender: Carrel's own prefix, gpushare's, and what probes and Prometheus ask for.

For kube-scheduler's calls, Starlette's routes and wrappers would cost a tenth of an answer about 5,000 nodes: they are
answered directly.
"""

from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from carrel import __version__
from carrel.http.health import health_routes
from carrel.http.post_routes import JSON, BodyLimit, PostRoute, with_post_routes
from carrel.http.serving import AsgiApp
from carrel.scheduling.handlers import ExtenderHandlers

LIMIT = BodyLimit(64 * 1024 * 1024, error_field="Error")
"""Without `nodeCacheCapable` a scheduler sends Node objects: 5,000 of them are about 30 MB."""


def extender_app(handlers: ExtenderHandlers) -> AsgiApp:
    async def inspect(request: Request) -> Response:
        status, body = handlers.inspect(request.path_params.get("node", ""))
        return Response(body, status, media_type=JSON)

    async def version(request: Request) -> Response:
        return PlainTextResponse(__version__)

    posts = {
        "/carrel/filter": PostRoute(handlers.filter, LIMIT),
        "/carrel/prioritize": PostRoute(handlers.prioritize, LIMIT),
        "/carrel/bind": PostRoute(handlers.bind, LIMIT),
        "/gpushare-scheduler/filter": PostRoute(partial(handlers.filter, for_gpushare=True), LIMIT),
        "/gpushare-scheduler/bind": PostRoute(handlers.bind, LIMIT),
    }
    others = Starlette(
        routes=[
            *(Route(path, route, methods=["POST"]) for path, route in posts.items()),
            Route("/gpushare-scheduler/inspect", inspect),
            Route("/gpushare-scheduler/inspect/{node}", inspect),
            Route("/version", version),
            *health_routes(handlers.why_not_ready, handlers.metrics_text),
        ]
    )
    return with_post_routes(posts, others)
