"""MAIA's pod terminator over HTTP, with MAIA's paths and JSON.

    POST /random-delete        ends one pod that may be ended      {"status": "success", "deleted_pod": "train"}
    GET  /get-expired-pods     the pods that may be ended          {"status": "success", "expired_pods": ["train"]}
    POST /delete-expired-pod   {"pod_name": …, "namespace": …}     {"status": "success", "deleted_pod": "train"}

Callers need a bearer token, unless a setting allows all callers: MAIA's webhook sends none.
"""

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carrel.dialects import maia
from carrel.http.asgi import Refused
from carrel.http.post_routes import Body, BodyLimit, BodyMemory, CallerGone
from carrel.kubernetes.cluster import ClusterError
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.freeing.terminator import Terminator
from carrel.parsing import Malformed
from carrel.parsing.fields import Field

log = logging.getLogger(__name__)

LARGEST_BODY = 16 * 1024
ALL_BODIES = 64 * LARGEST_BODY
Handler = Callable[[Request], Awaitable[Response]]


def terminator_app(terminator: Terminator, token: str) -> Starlette:
    """An empty token: callers need none."""
    limit = BodyLimit(LARGEST_BODY, "message", BodyMemory(ALL_BODIES))

    async def random_delete(_: Request) -> Response:
        pod = await terminator.terminate_one()
        return _json(maia.ended(pod.metadata.name) if pod else maia.nothing_expired())

    async def expired(_: Request) -> Response:
        return _json(maia.expired([pod.metadata.name for pod in terminator.terminable_pods()]))

    async def delete_expired(request: Request) -> Response:
        asked = Body(request.scope, request.receive, limit)
        try:
            body = await asked.read()
        finally:
            asked.release()
        if isinstance(body, Refused):
            return _json(maia.not_ended(body.sentence), body.status, body.headers())
        pod = await terminator.terminate(maia.read_pod_to_end(Field.parse(body, "request to end a pod").value))
        return (
            _json(maia.not_ended(pod.reason), 404) if isinstance(pod, Refusal) else _json(maia.ended(pod.metadata.name))
        )

    def guarded(answer: Handler) -> Handler:
        async def guard(request: Request) -> Response:
            if token and not _is_token(token, request.headers.get("authorization", "")):
                words = maia.not_ended("a bearer token is needed: Authorization: Bearer …")
                return _json(words, 401, {"www-authenticate": "Bearer"})
            try:
                return await answer(request)
            except CallerGone:
                return Response(status_code=400)  # nobody reads it
            except Malformed as malformed:
                return _json(maia.not_ended(str(malformed)), 400)
            except ClusterError as error:
                log.warning("terminator_failed path=%s: %s", request.url.path, error)
                return _json(maia.not_ended(f"the API server refused it: {error.message}; try again"), 503)

        return guard

    return Starlette(
        routes=[
            Route("/random-delete", guarded(random_delete), methods=["POST"]),
            Route("/get-expired-pods", guarded(expired), methods=["GET"]),
            Route("/delete-expired-pod", guarded(delete_expired), methods=["POST"]),
        ]
    )


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(body, status, headers)


def _is_token(token: str, header: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
