"""AdmissionReview, v1 and v1beta1: the requests of kube-apiserver to a webhook, the pod in them, and the answers.

The API server has checked the schema of the objects that it sends. Any other caller may send anything, so everything
that is read later is checked here once. Nulls count as absent; leaving them out makes no difference to a patch, because
an `add` replaces what is there. The pod in a request often has no namespace and no name yet:
`AdmissionRequest.namespace` is the true one. The answer has the version of the request.

What is made for each review here and in its neighbours is a NamedTuple: a frozen dataclass takes several times as long.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from carrel.parsing.validation import malformed

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
KIND = "AdmissionReview"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")
MOST_CONTAINERS = 1_000
_ABSENT = object()
_encode = msgspec.json.Encoder(order="deterministic").encode


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


class ClaimReviews:
    """What is decided about ResourceClaims. Where they are not counted: nothing."""

    async def decide(self, request: AdmissionRequest) -> Refusal | None:
        """Say why an allocation may not be stored. Raises `Malformed`, and `ClusterError`."""
        return None

    def why_not_new(self, request: AdmissionRequest) -> Refusal | None:
        """Say what a new ResourceClaim, or a template, cannot ask for."""
        return None


class NotAReview(Exception):
    """No API server wrote this. The message says why."""


class _Variable(msgspec.Struct):
    name: str


class _Mount(msgspec.Struct, rename="camel"):
    name: str = ""
    mount_path: str = ""


class _Container(msgspec.Struct, rename="camel"):
    name: str = ""
    target_container_name: str = ""
    env: list[_Variable] = []
    volume_mounts: list[_Mount] = []


class _FieldRef(msgspec.Struct, rename="camel"):
    field_path: str = ""


class _Item(msgspec.Struct, rename="camel"):
    path: str = ""
    field_ref: _FieldRef | None = None


class _DownwardApi(msgspec.Struct):
    items: list[_Item] = []


class _Volume(msgspec.Struct, rename="camel"):
    name: str = ""
    downward_api: _DownwardApi | None = msgspec.field(name="downwardAPI", default=None)


class _Spec(msgspec.Struct, rename="camel"):
    """The fields of a pod that are changed, besides those of its view."""

    containers: list[_Container] = []
    init_containers: list[_Container] = []
    ephemeral_containers: list[_Container] = []
    volumes: list[_Volume] = []


SomeText = Annotated[str, msgspec.Meta(min_length=1)]


def _one_of(*words: str) -> msgspec.Meta:
    return msgspec.Meta(pattern=f"^({'|'.join(words)})$")


class _Kind(msgspec.Struct):
    kind: SomeText


class _User(msgspec.Struct):
    username: str | None = None


class _Request(msgspec.Struct, rename="camel"):
    uid: SomeText
    kind: _Kind
    operation: Annotated[str, _one_of(*OPERATIONS)]
    namespace: str | None = None
    name: str | None = None
    user_info: _User | None = None
    sub_resource: str | None = None
    dry_run: bool | None = None
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: Annotated[str, _one_of(*VERSIONS)]
    kind: Annotated[str, _one_of(KIND)]
    request: _Request


_read = msgspec.json.Decoder(_Review).decode


def read_review(body: bytes) -> AdmissionRequest:
    """Raises `NotAReview`: without the uid of the request there can be no answer."""
    try:
        document = _read(body)
    except msgspec.ValidationError as error:
        raise NotAReview(str(malformed(KIND, error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAReview(f"the body is not JSON: {error}") from None
    request = document.request
    return AdmissionRequest(
        document.api_version,
        request.uid,
        request.kind.kind,
        request.operation,
        request.namespace or "",
        request.name or "",
        RequestUser((request.user_info and request.user_info.username) or ""),
        request.sub_resource or "",
        request.dry_run or False,
        request.object,
        request.old_object,
        len(body),
    )


def read_pod(request: AdmissionRequest) -> tuple[AdmissionRequest, Pod]:
    """The pod, and the request with the pod as it is without nulls. Raises `Malformed`."""
    document: dict[str, Any] = _without_nulls(request.object or {})
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise Malformed("Pod", "metadata", metadata, "an object")
    name = metadata.get("name") or metadata.get("generateName") or request.name
    named = {**metadata, "name": name, "namespace": request.namespace}
    try:
        pod = msgspec.convert({**document, "metadata": named}, Pod)
        spec = msgspec.convert(document.get("spec", {}), _Spec)
    except msgspec.ValidationError as error:
        raise malformed("Pod", error) from None
    count = len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
    if count > MOST_CONTAINERS:
        raise Malformed("Pod", "spec", f"{count} containers", f"{MOST_CONTAINERS} or fewer")
    return request._replace(object=document), pod


def _without_nulls(value: Any) -> Any:
    """Not in lists: there a null is a mistake, and leaving it out would move the other items."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


# --- answers ---------------------------------------------------------------------------------------------------------


def patch(before: Mapping[str, Any], after: Mapping[str, Any], at: str = "") -> list[dict[str, Any]]:
    """The operations (RFC 6902) that turn one document into the other. A list that differs is replaced as a whole: for
    each operation within it the API server would move all later items."""
    steps = {key: key.replace("~", "~0").replace("/", "~1") for key in (*before, *after)}  # RFC 6901
    found: list[dict[str, Any]] = [{"op": "remove", "path": f"{at}/{steps[key]}"} for key in before if key not in after]
    for key, value in after.items():
        old = before.get(key, _ABSENT)
        if old is value:
            continue  # most of a document is shared with what it was made from
        if isinstance(old, dict) and isinstance(value, dict):
            found += patch(old, value, f"{at}/{steps[key]}")
        elif old is _ABSENT or _encode(old) != _encode(value):  # in Python, 1 equals true
            found.append({"op": "add", "path": f"{at}/{steps[key]}", "value": value})  # replaces what is there
    return found


def allowed(
    request: AdmissionRequest, wanted: Mapping[str, Any] | None = None, warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Yes, with the object as it should be; None: as it is. kubectl shows the warnings."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if wanted is not None and (operations := patch(request.object or {}, wanted)):
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}
    if warnings:
        response["warnings"] = warnings
    return {"apiVersion": request.api_version, "kind": KIND, "response": response}


def denied(request: AdmissionRequest, message: str, code: int = 403, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """No. kubectl shows the message after `admission webhook … denied the request:`."""
    answer = allowed(request, warnings=warnings)
    answer["response"] |= {"allowed": False, "status": {"code": code, "message": message}}
    return answer
