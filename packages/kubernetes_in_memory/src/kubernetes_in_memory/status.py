"""Errors as Kubernetes' Status objects.

`ApiError` is raised anywhere below the handler, which turns it into the HTTP answer. Messages and codes are
those of kube-apiserver, because people and programs read them.
"""

from collections.abc import Sequence
from typing import Any

from kubernetes_in_memory.causes import Cause
from kubernetes_in_memory.kinds import Kind

Json = dict[str, Any]

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


class ApiError(Exception):
    """The call is refused. Nothing was written."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        super().__init__(f"{code} {reason}: {message}")

    def status(self) -> Json:
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            status["details"] = self.details
        status["code"] = self.code
        return status


def success(kind: Kind, name: str, uid: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": _about(kind, name) | {"uid": uid},
    }


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.qualified_plural} "{name}" not found', _about(kind, name))


def no_such_path(why: str = "") -> ApiError:
    # Clients read the details, and kubectl 1.35 crashes without them.
    causes = [{"reason": "UnexpectedServerResponse", "message": "404 page not found"}]
    message = "the server could not find the requested resource"
    return ApiError(404, "NotFound", f"{message}: {why}" if why else message, {"causes": causes})


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{kind.qualified_plural} "{name}" already exists', _about(kind, name))


def failed_precondition(what: str, wanted: str, found: str) -> str:
    return f"Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"


def conflict(kind: Kind, name: str, why: str = MODIFIED, subresource: str = "") -> ApiError:
    where = f"{kind.qualified_plural}/{subresource}" if subresource else kind.qualified_plural
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {where} "{name}": {why}', _about(kind, name))


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> ApiError:
    """All the wrong fields at once."""
    return _invalid(kind.group, kind.kind, name, causes)


def invalid_options(causes: Sequence[Cause]) -> ApiError:
    """The query of a list or a watch contradicts itself."""
    return _invalid("meta.k8s.io", "ListOptions", "", causes)


def _invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    sentences = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    message = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    details: Json = {"name": name, "group": group, "kind": kind} if group else {"name": name, "kind": kind}
    details["causes"] = [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes]
    qualified = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {message}', details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def forbidden(kind: Kind, name: str, why: str, causes: Sequence[Json] = ()) -> ApiError:
    details = _about(kind, name)
    if causes:
        details["causes"] = list(causes)
    return ApiError(403, "Forbidden", f'{kind.qualified_plural} "{name}" is forbidden: {why}', details)


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def no_kubelet(pod: str, subresource: str) -> ApiError:
    return ApiError(
        501,
        "NotImplemented",
        f'pods/{subresource} of "{pod}" needs a kubelet, and the embedded API has none: its pods are objects, and no '
        "container runs. See what is known of the pod: kubectl describe pod, kubectl events",
        {"name": pod, "kind": "pods"},
    )


def not_acceptable(message: str) -> ApiError:
    return ApiError(406, "NotAcceptable", message)


def unsupported_media_type(given: str, supported: str) -> ApiError:
    return ApiError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format ({given or 'no Content-Type'}) - "
        f"accepted media types include: {supported}",
    )


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> ApiError:
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return ApiError(504, "Timeout", f"Timeout: Too large resource version: {asked}, current: {current}", details)


def _about(kind: Kind, name: str) -> Json:
    return (
        {"name": name, "group": kind.group, "kind": kind.plural} if kind.group else {"name": name, "kind": kind.plural}
    )
