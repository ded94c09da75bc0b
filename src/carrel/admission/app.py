"""The routes of the webhook: `/mutate` (MAIA's path too), `/allocate` where ResourceClaims are counted, and what probes
and Prometheus ask for."""

from collections.abc import Callable

from starlette.applications import Starlette

from carrel.admission.handlers import ReviewHandler
from carrel.admission.metrics import WebhookMetrics
from carrel.http.asgi import AsgiApp
from carrel.http.health import health_routes
from carrel.http.post_routes import BodyLimit, BodyMemory, PostRoute, post_routes

ERROR_FIELD = "message"
LARGEST_REVIEW = 24 * 1024 * 1024
"""An object has at most 1.5 MiB in etcd, an update sends two of them, and Go writes `<` with six characters. A review
that is refused for its size would let a pod through that may see GPUs: that entry ignores failures."""
ALL_REVIEWS = 32 * 1024 * 1024
"""Of all reviews that are read or answered at one moment: decoded, one may take ten times its size."""


def webhook_app(handler: ReviewHandler, metrics: WebhookMetrics, why_not_ready: Callable[[], str]) -> AsgiApp:
    limit = BodyLimit(LARGEST_REVIEW, ERROR_FIELD, BodyMemory(ALL_REVIEWS))
    posts = {"/mutate": PostRoute(handler.mutate, limit)}
    if handler.claim_gate is not None:
        posts["/allocate"] = PostRoute(handler.allocate, limit)
    return Starlette(routes=[*post_routes(posts), *health_routes(why_not_ready, metrics.text)])
