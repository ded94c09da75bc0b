"""What probes and Prometheus ask every component for: `/healthz`, `/readyz` and `/metrics`."""

import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

_PROBES = frozenset((b"/healthz", b"/readyz", b"/metrics"))
PROMETHEUS_TEXT = "text/plain; version=0.0.4"

T = TypeVar("T")


def health_routes(
    why_not_ready: Callable[[], str | Awaitable[str]], metrics: Callable[[], bytes | Awaitable[bytes]]
) -> list[Route]:
    """`why_not_ready` returns the empty string when the component is ready; `metrics` returns the text to scrape."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(_: Request) -> Response:
        why_not = await _awaited(why_not_ready())
        return PlainTextResponse(why_not or "ok", 503 if why_not else 200)

    async def scrape(_: Request) -> Response:
        return Response(await _awaited(metrics()), media_type=PROMETHEUS_TEXT)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", scrape)]


def health_app(why_not_ready: Callable[[], str], metrics: Callable[[], bytes]) -> Starlette:
    """For a component that serves nothing else."""
    return Starlette(routes=health_routes(why_not_ready, metrics))


def is_probe(method: bytes, path: bytes) -> bool:
    """Whether it needs no credential, and is answered when nobody else is."""
    return method == b"GET" and path in _PROBES


async def _awaited(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value
