"""AdmissionReview, v1 and v1beta1: the requests of kube-apiserver to a webhook, and the answers.

The answer has the version of the request. The pod in the request often has no namespace and no name yet:
`AdmissionRequest.namespace` is the true one.

What is made for each review here and in its neighbours is a NamedTuple: a frozen dataclass takes several times as long.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
KIND = "AdmissionReview"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")


class RequestUser(NamedTuple):
    """Who sent the request, as the API server authenticated them: the only identity that cannot be forged."""

    name: str


class AdmissionRequest(NamedTuple):
    api_version: str
    uid: str
    kind: str
    operation: str
    namespace: str
    name: str
    user: RequestUser
    subresource: str = ""
    dry_run: bool = False
    """The answer must be the same, and nothing may be changed."""
    object: Mapping[str, Any] | None = None
    """None on DELETE."""
    old_object: Mapping[str, Any] | None = None
    """None on CREATE."""
    size: int = 0
    """Bytes of the whole review."""


def allowed(
    request: AdmissionRequest, operations: Sequence[Mapping[str, Any]] = (), warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Yes, with these changes (RFC 6902); kubectl shows the warnings."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if operations:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}
    return _review(request, response, warnings)


def denied(request: AdmissionRequest, message: str, code: int = 403, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """No. kubectl shows the message after `admission webhook … denied the request:`."""
    return _review(
        request, {"uid": request.uid, "allowed": False, "status": {"code": code, "message": message}}, warnings
    )


def _review(request: AdmissionRequest, response: dict[str, Any], warnings: Sequence[str]) -> dict[str, Any]:
    if warnings:
        response["warnings"] = list(warnings)
    return {"apiVersion": request.api_version, "kind": KIND, "response": response}
