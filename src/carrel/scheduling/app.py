"""The routes of the extender: Carrel's own prefix, gpushare's, and what probes and Prometheus look at.

kube-scheduler's calls are looked up before anything else is done about them: its routes and wrappers would cost a
tenth of an answer about 5,000 nodes. Everything else is left to Starlette.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from carrel import __version__
from carrel.http.serving import AsgiApp, Receive, Scope, Send
from carrel.scheduling.handlers import ExtenderHandlers, Reply

LARGEST_BODY = 64 * 1024 * 1024
"""5,000 Node objects, as a scheduler sends them that is not told to send names, are about 30 MB."""

JSON = "application/json"


class _TooLarge(Exception):
    pass


class Verb:
    def __init__(self, answer: Callable[[bytes], Reply | Awaitable[Reply]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = self._answer(await _body(receive))
            status, body = answer if isinstance(answer, Reply) else await answer
        except _TooLarge:
            status, body = 413, f'{{"Error":"the body is larger than {LARGEST_BODY} bytes"}}'.encode()
        headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes:
    """The rest of a body that is too large is read and dropped, so that the sender gets to read the answer."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= LARGEST_BODY:
            chunks.append(chunk)
        if not message.get("more_body"):
            break
    if size > LARGEST_BODY:
        raise _TooLarge
    return b"".join(chunks)


def extender_app(handlers: ExtenderHandlers) -> AsgiApp:
    async def inspect(request: Request) -> Response:
        status, body = handlers.inspect(request.path_params.get("node", ""))
        return Response(body, status, media_type=JSON)

    async def version(request: Request) -> Response:
        return PlainTextResponse(__version__)

    async def alive(request: Request) -> Response:
        return PlainTextResponse("ok")

    async def ready(request: Request) -> Response:
        why_not = handlers.why_not_ready()
        return PlainTextResponse(why_not or "ok", 503 if why_not else 200)

    async def metrics(request: Request) -> Response:
        return Response(handlers.measured(), media_type="text/plain; version=0.0.4")

    verbs = {
        "/carrel/filter": Verb(handlers.filter),
        "/carrel/prioritize": Verb(handlers.prioritize),
        "/carrel/bind": Verb(handlers.bind),
        "/gpushare-scheduler/filter": Verb(partial(handlers.filter, for_gpushare=True)),
        "/gpushare-scheduler/bind": Verb(handlers.bind),
    }
    others = Starlette(
        routes=[
            *(Route(path, verb, methods=["POST"]) for path, verb in verbs.items()),
            Route("/gpushare-scheduler/inspect", inspect),
            Route("/gpushare-scheduler/inspect/{node}", inspect),
            Route("/version", version),
            Route("/healthz", alive),
            Route("/readyz", ready),
            Route("/metrics", metrics),
        ]
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        verb = verbs.get(scope["path"]) if is_post else None
        await (verb or others)(scope, receive, send)

    return app
