"""MAIA's pod terminator over HTTP, in MAIA's words.

    POST /random-delete        ends one pod that may be ended      {"status": "success", "deleted_pod": "train"}
    GET  /get-expired-pods     who may be ended                    {"status": "success", "expired_pods": ["train"]}
    POST /delete-expired-pod   {"pod_name": …, "namespace": …}     {"status": "success", "deleted_pod": "train"}

Whoever calls needs a bearer token, unless the cluster is set to trust MAIA's webhook, which has none to send.
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
from carrel.kubernetes.cluster import ClusterError
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.terminator_interface import PodTerminator
from carrel.parsing import Malformed
from carrel.parsing.fields import Field

log = logging.getLogger(__name__)

LARGEST_BODY = 16 * 1024
Handler = Callable[[Request], Awaitable[Response]]


def terminator_app(terminator: PodTerminator, token: str) -> Starlette:
    """An empty token: nobody needs one."""

    async def random_delete(_: Request) -> Response:
        pod = await terminator.end_any()
        return _said(maia.ended(pod.metadata.name) if pod else maia.nothing_expired())

    async def expired(_: Request) -> Response:
        return _said(maia.expired([pod.metadata.name for pod in terminator.ended_at_will()]))

    async def delete_expired(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return _said(maia.not_ended(f"the body is larger than {LARGEST_BODY} bytes"), 413)
        pod = await terminator.end(maia.read_pod_to_end(Field.parse(body, "request to end a pod").value))
        return (
            _said(maia.not_ended(pod.reason), 404) if isinstance(pod, Refusal) else _said(maia.ended(pod.metadata.name))
        )

    def guarded(answer: Handler) -> Handler:
        async def guard(request: Request) -> Response:
            if token and not _is_it(token, request.headers.get("authorization", "")):
                words = maia.not_ended("a bearer token is needed: Authorization: Bearer …")
                return _said(words, 401, {"www-authenticate": "Bearer"})
            try:
                return await answer(request)
            except Malformed as malformed:
                return _said(maia.not_ended(str(malformed)), 400)
            except ClusterError as error:
                log.warning("terminator_failed path=%s: %s", request.url.path, error)
                return _said(maia.not_ended(f"the API server did not take it: {error.message}; ask again"), 503)

        return guard

    return Starlette(
        routes=[
            Route("/random-delete", guarded(random_delete), methods=["POST"]),
            Route("/get-expired-pods", guarded(expired), methods=["GET"]),
            Route("/delete-expired-pod", guarded(delete_expired), methods=["POST"]),
        ]
    )


def _said(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(body, status, headers)


def _is_it(token: str, header: str) -> bool:
    scheme, _, given = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


async def _body(request: Request) -> bytes | None:
    """None if it is too large; the rest of it is read and dropped, so that the sender gets to read the answer."""
    body, is_too_large = b"", False
    async for chunk in request.stream():
        is_too_large = is_too_large or len(body) + len(chunk) > LARGEST_BODY
        body = b"" if is_too_large else body + chunk
    return None if is_too_large else body
