"""The routes of the webhook: `/mutate` (MAIA's path too), and what probes and Prometheus ask for."""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.routing import Route

from carrel.admission.handlers import ReviewHandler
from carrel.admission.metrics import WebhookMetrics
from carrel.http.health import health_routes
from carrel.http.post_routes import BodyLimit, PostRoute, with_post_routes
from carrel.http.serving import AsgiApp

LIMIT = BodyLimit(8 * 1024 * 1024, error_field="message")
"""An object has at most 1.5 MB in etcd, and an update sends two of them; the API server itself accepts 3 MB."""


def webhook_app(handler: ReviewHandler, metrics: WebhookMetrics, why_not_ready: Callable[[], str]) -> AsgiApp:
    posts = {"/mutate": PostRoute(handler.mutate, LIMIT)}
    routes = [Route(path, route, methods=["POST"]) for path, route in posts.items()]
    return with_post_routes(posts, Starlette(routes=[*routes, *health_routes(why_not_ready, metrics.text)]))
