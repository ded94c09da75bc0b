"""Turns the answers of the API server into the errors of `kubernetes.cluster`.

The class says who has to act. Two rules are ours:
- a 500, 502 or 504 to a *write* is `OutcomeUnknown`, not `Unavailable`, because the server (or a proxy before it) gives
  these also when etcd or the server itself was too slow and the write took effect after all;
- a uid that is not the object's is a `Conflict`. Servers answer 409 to an update, but 422 (immutable) to a patch.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from carrel.kubernetes.cluster import (
    AlreadyExists,
    Busy,
    ClusterError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    Json,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from carrel.kubernetes.transport import ApiRequest, ResponseLike

_BY_STATUS: Mapping[int, type[ClusterError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    406: Invalid,
    409: Conflict,
    410: Expired,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: Busy,
}
_MAYBE_WRITTEN = frozenset({500, 502, 504})
_SHOWN_CHARACTERS = 300


class Status(msgspec.Struct, rename="camel"):
    """Kubernetes' answer if there is no object to return. Proxies do not write it: every field may be absent."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: dict[str, Any] | None = None


def error_of(request: ApiRequest, response: ResponseLike) -> ClusterError:
    """The error for an answer with a status of 300 or more."""
    status = _status_in(response.body) or Status(
        reason=response.headers.get("content-type", "no content type"),
        message=response.body[:_SHOWN_CHARACTERS].decode(errors="replace").strip() or "no body",
    )
    details = dict(status.details or {})
    retry_after = response.headers.get("retry-after", "")
    if retry_after.isdecimal():
        details.setdefault("retryAfterSeconds", int(retry_after))
    message = f"{request.method} {request.path}: {status.message}"
    error = _class_for(response.status, status.reason, is_write=request.method != "GET")
    if error is Invalid and request.method == "PATCH" and _names_another_uid(details):
        error = Conflict
    return error(response.status, status.reason, message, details)


def is_status(body: bytes) -> bool:
    """Whether it is the API server that answers, and not what it passes the call on to."""
    return _status_in(body) is not None


def error_in_stream(request: ApiRequest, body: bytes | msgspec.Raw) -> ClusterError:
    """The error for an ERROR event inside a watch's 200: most expired versions are reported like this."""
    status = msgspec.json.decode(body, type=Status)
    error = _class_for(status.code, status.reason, is_write=False)
    return error(status.code, status.reason, f"{request.method} {request.path}: {status.message}", status.details)


def object_of(request: ApiRequest, response: ResponseLike) -> Json:
    """The JSON object in a good answer."""
    try:
        document = msgspec.json.decode(response.body)
    except msgspec.DecodeError as error:
        raise unreadable(request, response, str(error)) from error
    if not isinstance(document, dict):
        raise unreadable(request, response, f"a {type(document).__name__} instead of an object")
    return document


def unreadable(request: ApiRequest, response: ResponseLike, why: str) -> ClusterError:
    """A 2xx whose body is not Kubernetes JSON: something between us and the API server answered, or cut it off."""
    message = f"{request.method} {request.path}: the answer is not Kubernetes JSON ({why})"
    error = Unavailable if request.method == "GET" else OutcomeUnknown
    return error(response.status, "UnreadableAnswer", message)


def _status_in(body: bytes) -> Status | None:
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        return None
    return status if status.kind == "Status" else None


def _names_another_uid(details: Mapping[str, Any]) -> bool:
    causes = details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("field") == "metadata.uid" for cause in causes
    )


def _class_for(code: int, reason: str, *, is_write: bool) -> type[ClusterError]:
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists
    if code >= 500:
        return OutcomeUnknown if is_write and code in _MAYBE_WRITTEN else Unavailable
    return _BY_STATUS.get(code, Invalid)
