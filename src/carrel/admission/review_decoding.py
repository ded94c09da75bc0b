"""Reads an AdmissionReview: the request, and the pod in it as the rest of Carrel reads pods.

The API server has checked the schema of the objects that it sends. Any other caller may send anything, so everything
that is read later is checked here once. Nulls count as absent; leaving them out makes no difference to a patch, because
an `add` replaces what is there.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from carrel.admission import review
from carrel.admission.review import AdmissionRequest, RequestUser
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing import Malformed
from carrel.parsing.nesting import is_nested_too_deeply

MOST_CONTAINERS = 1_000


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


class _Kind(msgspec.Struct):
    kind: str


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Request(msgspec.Struct, rename="camel"):
    uid: str
    kind: _Kind
    operation: str
    namespace: str = ""
    name: str = ""
    user_info: _User = _User()
    sub_resource: str = ""
    dry_run: bool = False
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: _Request


_DECODER = msgspec.json.Decoder(_Review)


def read_review(body: bytes) -> AdmissionRequest:
    """Raises `NotAReview`: without the uid of the request there can be no answer."""
    if is_nested_too_deeply(body):
        raise NotAReview("the body is nested too deeply")
    return _read_as_usual(body) or _read_by_fields(body)


def _read_as_usual(body: bytes) -> AdmissionRequest | None:
    """A review as API servers write them. None: it is not; what is wrong with it, if anything, has to be looked for."""
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    asked = found.request
    is_review = found.api_version in review.VERSIONS and found.kind == review.KIND
    if not is_review or asked.operation not in review.OPERATIONS or not asked.uid or not asked.kind.kind:
        return None
    return AdmissionRequest(
        found.api_version,
        asked.uid,
        asked.kind.kind,
        asked.operation,
        asked.namespace,
        asked.name,
        RequestUser(asked.user_info.username),
        asked.sub_resource,
        asked.dry_run,
        asked.object,
        asked.old_object,
        len(body),
    )


def _read_by_fields(body: bytes) -> AdmissionRequest:
    try:
        return review.read(msgspec.json.decode(body))._replace(size=len(body))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAReview(f"the body is not JSON: {error}") from None
    except Malformed as malformed:
        raise NotAReview(str(malformed)) from None


def read_pod(request: AdmissionRequest) -> tuple[AdmissionRequest, Pod]:
    """The pod, and the request, without nulls if they made the pod unreadable. Raises `Malformed`."""
    document = request.object or {}
    try:
        return request, _view(document, request)
    except msgspec.ValidationError:
        try:
            tidy: dict[str, Any] = _without_nulls(document)
            return request._replace(object=tidy), _view(tidy, request)
        except msgspec.ValidationError as error:
            expected, _, path = str(error).partition(" - at `$")
            raise Malformed("Pod", path.strip("`.") or "the pod", "something else", expected) from None


def _view(document: Mapping[str, Any], request: AdmissionRequest) -> Pod:
    """A pod that is not created yet may have no namespace, and often no name."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise Malformed("Pod", "metadata", metadata, "an object")
    name = metadata.get("name") or metadata.get("generateName") or request.name
    named = {**metadata, "name": name, "namespace": request.namespace}
    if named.get("creationTimestamp", "") is None:
        del named["creationTimestamp"]  # Go writes it as null in every pod that is not created yet
    pod = msgspec.convert({**document, "metadata": named}, Pod)
    spec = msgspec.convert(document.get("spec", {}), _Spec)
    count = len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
    if count > MOST_CONTAINERS:
        raise Malformed("Pod", "spec", f"{count} containers", f"{MOST_CONTAINERS} or fewer")
    return pod


def _without_nulls(value: Any) -> Any:
    """Not in lists: there a null is a mistake, and leaving it out would move the other items."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value
