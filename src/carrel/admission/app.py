"""The routes of the webhook: `/mutate` (MAIA's path too), and what probes and Prometheus look at."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from carrel.admission.handlers import Reply, ReviewDesk
from carrel.admission.metrics import Metrics
from carrel.http.serving import AsgiApp, Receive, Scope, Send

LARGEST_BODY = 8 * 1024 * 1024
"""An object is at most 1.5 MB in etcd, and an update brings two of them; the API server itself takes 3 MB."""

JSON = b"application/json"


class _Verb:
    """Answered before anything else is looked up: Starlette's routes and wrappers would cost more than the answer."""

    def __init__(self, answer: Callable[[bytes], Awaitable[Reply]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            status, said = 413, f'{{"message":"the body is larger than {LARGEST_BODY} bytes"}}'.encode()
        else:
            status, said = await self._answer(body)
        headers = [(b"content-type", JSON), (b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})


async def _body(receive: Receive) -> bytes | None:
    """None if it is too large; the rest is read and dropped, so that the sender gets to read the answer."""
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        if len(body) <= LARGEST_BODY:
            body += message.get("body", b"")
    return body if len(body) <= LARGEST_BODY else None


def webhook_app(desk: ReviewDesk, metrics: Metrics, why_not_ready: Callable[[], str]) -> AsgiApp:
    async def alive(request: Request) -> Response:
        return PlainTextResponse("ok")

    async def ready(request: Request) -> Response:
        why_not = why_not_ready()
        return PlainTextResponse(why_not or "ok", 503 if why_not else 200)

    async def numbers(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    verbs = {"/mutate": _Verb(desk.mutate)}
    others = Starlette(
        routes=[
            *(Route(path, verb, methods=["POST"]) for path, verb in verbs.items()),
            Route("/healthz", alive),
            Route("/readyz", ready),
            Route("/metrics", numbers),
        ]
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        verb = verbs.get(scope["path"]) if is_post else None
        await (verb or others)(scope, receive, send)

    return app
