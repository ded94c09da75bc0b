"""`Cluster`: what Carrel asks of a Kubernetes API server, and the errors.

Two ways of reading, on purpose:
- one object (`get`, and what a write answers) is the whole JSON, to be changed and written back without loss;
- many objects (`list`, `watch`) are small read-only Structs that keep only what Carrel reads.

Every write is safe to lose: it either carries a precondition (resourceVersion, uid) or says the same thing twice
without harm. A write whose answer was lost raises `OutcomeUnknown`: it may have taken effect. Reads never raise it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from carrel.kubernetes.api_calls import ApiCalls
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import Resource
from carrel.kubernetes.transport import ApiRequest, ApiResponse, ResponseLike

Json = dict[str, Any]
V = TypeVar("V", bound=Object)
V_co = TypeVar("V_co", covariant=True)


class ClusterError(Exception):
    """The API server refused. `reason` is Kubernetes' own word (`AlreadyExists`), `details` its Status.details."""

    def __init__(self, status: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}
        super().__init__(f"{message} ({status} {reason})")

    @property
    def retry_after_s(self) -> float | None:
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if isinstance(seconds, int | float) else None


class NotFound(ClusterError):
    """404: there is no such object, or no such kind."""


class AlreadyExists(ClusterError):
    """409 on create: an object of this name exists."""


class Conflict(ClusterError):
    """409: a precondition (resourceVersion, uid) did not hold, the object changed, or the pod is already bound."""


class Expired(ClusterError):
    """410: the resourceVersion or the continue token is too old; list again."""


class Invalid(ClusterError):
    """400 or 422: the object or the call is wrong. `details["causes"]` names the fields."""


class Forbidden(ClusterError):
    """401 or 403: no valid credential, or no right."""

    @property
    def is_namespace_terminating(self) -> bool:
        """Nothing can be created in a namespace that is being deleted."""
        return "because it is being terminated" in self.message  # older servers give no machine-readable cause


class Busy(ClusterError):
    """429: too many requests, or an eviction that a disruption budget does not allow now."""


class Unavailable(ClusterError):
    """No connection, 503, or any 5xx to a read: nothing was written. Try again later."""


class OutcomeUnknown(ClusterError):
    """The answer to a write was lost, or was a 500, 502 or 504: it may have taken effect."""


# --- which error an answer is ----------------------------------------------------------------------------------------
#
# The class says who has to act. Two rules are ours:
# - a 500, 502 or 504 to a *write* is `OutcomeUnknown`, not `Unavailable`, because the server (or a proxy before it)
#   gives these also when etcd or the server itself was too slow and the write took effect after all;
# - a uid that is not the object's is a `Conflict`. Servers answer 409 to an update, but 422 (immutable) to a patch.

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
    status = status_in(response.body) or Status(
        reason=response.headers.get("content-type", "no content type"),
        message=response.body[:_SHOWN_CHARACTERS].decode(errors="replace").strip() or "no body",
    )
    details, code, is_write = dict(status.details or {}), response.status, request.method != "GET"
    retry_after = response.headers.get("retry-after", "")
    if retry_after.isdecimal():
        details.setdefault("retryAfterSeconds", int(retry_after))
    if code == 409 and status.reason == "AlreadyExists":
        error: type[ClusterError] = AlreadyExists
    elif code >= 500:
        error = OutcomeUnknown if is_write and code in _MAYBE_WRITTEN else Unavailable
    else:
        error = _BY_STATUS.get(code, Invalid)
    if error is Invalid and request.method == "PATCH" and _names_another_uid(details):
        error = Conflict
    return error(code, status.reason, f"{request.method} {request.path}: {status.message}", details)


def error_in_stream(request: ApiRequest, body: bytes) -> ClusterError:
    """The error for an ERROR event inside a watch's 200: most expired versions are reported like this."""
    return error_of(request, ApiResponse(msgspec.json.decode(body, type=Status).code, body))


def unreadable(request: ApiRequest, response: ResponseLike, why: str) -> ClusterError:
    """A 2xx whose body is not Kubernetes JSON: something between us and the API server answered, or cut it off."""
    message = f"{request.method} {request.path}: the answer is not Kubernetes JSON ({why})"
    error = Unavailable if request.method == "GET" else OutcomeUnknown
    return error(response.status, "UnreadableAnswer", message)


def status_in(body: bytes) -> Status | None:
    """None: what answers is not the API server."""
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


# --- what is asked and answered --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListPage(Generic[V_co]):
    items: Sequence[V_co]
    resource_version: str
    continue_token: str = ""
    """Not empty: there are more objects; pass it to the next `list`."""


class ChangeType(Enum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    """No object changed; only the resource version moved on."""


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[V_co]):
    change: ChangeType
    item: V_co | None
    """None for a bookmark."""
    resource_version: str


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """RFC 6902."""

    document: Sequence[Mapping[str, Any]]
    content_type: ClassVar = "application/json-patch+json"


@dataclass(frozen=True, slots=True)
class MergePatch:
    """RFC 7386. A resourceVersion or uid in its metadata is a precondition."""

    document: Mapping[str, Any]
    content_type: ClassVar = "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class StrategicPatch:
    """Kubernetes' own merge, where lists of built-in kinds are merged by key. Not for custom resources."""

    document: Mapping[str, Any]
    content_type: ClassVar = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply: the fields in the document are this manager's; creates the object if there is none."""

    document: Mapping[str, Any]
    manager: str
    force: bool = False
    content_type: ClassVar = "application/apply-patch+yaml"
    """JSON is YAML."""


Patch = JsonPatch | MergePatch | StrategicPatch | Apply


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind: by namespace (empty: all), label selector and field selector, in kubectl's syntax."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """How to delete. With a uid or a resourceVersion, only if the object still has them."""

    uid: str = ""
    resource_version: str = ""
    grace_seconds: int | None = None
    propagation: str = ""
    """`Background`, `Foreground` or `Orphan`; empty: the server's default."""
    dry_run: bool = False


EVERYTHING = Selection()
DEFAULT_DELETE_OPTIONS = DeleteOptions()


@dataclass(frozen=True, slots=True)
class BindTarget:
    """One pod to one node, with annotations that the API server merges onto the pod in the same write."""

    namespace: str
    pod: str
    uid: str
    node: str
    annotations: Mapping[str, str] = field(default_factory=dict)


class FieldValidation(Enum):
    """What a server does about a field that it does not know, in Kubernetes' words."""

    STRICT = "Strict"
    """Refuse the write."""
    WARN = "Warn"
    """Drop the field and warn: with older definitions a newer Carrel must still be able to report."""


class Cluster(Protocol):
    """Implemented by `kubernetes.client.Client`, over sockets or with an API server in the same process."""

    @property
    def calls(self) -> ApiCalls:
        """How many calls there were."""
        ...

    async def get(self, resource: Resource[V], name: str, namespace: str = "") -> Json: ...

    async def list(
        self, resource: Resource[V], selection: Selection = EVERYTHING, *, limit: int = 0, continue_token: str = ""
    ) -> ListPage[V]: ...

    def watch(
        self, resource: Resource[V], selection: Selection = EVERYTHING, *, resource_version: str
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[V]]]:
        """Changes after the given version, until the server ends the stream. Raises `Expired` if it is too old."""
        ...

    async def create(self, resource: Resource[V], body: Json, namespace: str = "") -> Json: ...

    async def update(self, resource: Resource[V], body: Json, *, subresource: str = "") -> Json:
        """Replaces the object named in the body's metadata; a resourceVersion in it is a precondition."""
        ...

    async def patch(
        self, resource: Resource[V], name: str, patch: Patch, namespace: str = "", *, subresource: str = ""
    ) -> Json: ...

    async def delete(
        self, resource: Resource[V], name: str, namespace: str = "", *, how: DeleteOptions = DEFAULT_DELETE_OPTIONS
    ) -> Json: ...

    async def bind(self, target: BindTarget) -> None:
        """Raises `Conflict` if the pod is bound already or is not the one with that uid."""
        ...

    async def evict(self, namespace: str, pod: str, *, how: DeleteOptions = DEFAULT_DELETE_OPTIONS) -> None:
        """Raises `Busy` while a disruption budget does not allow it."""
        ...
