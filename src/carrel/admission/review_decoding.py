"""Reads an AdmissionReview: the request, and the pod in it as the rest of Carrel reads pods.

The API server has checked the schema of the objects that it sends. Any other caller may send anything, so everything
that is read later is checked here once. Nulls count as absent; leaving them out makes no difference to a patch, because
an `add` replaces what is there.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from carrel.admission import review
from carrel.admission.review import AdmissionRequest, RequestUser
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing import Malformed
from carrel.parsing.nesting import is_nested_too_deeply
from carrel.parsing.validation import malformed

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
    operation: Annotated[str, _one_of(*review.OPERATIONS)]
    namespace: str | None = None
    name: str | None = None
    user_info: _User | None = None
    sub_resource: str | None = None
    dry_run: bool | None = None
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: Annotated[str, _one_of(*review.VERSIONS)]
    kind: Annotated[str, _one_of(review.KIND)]
    request: _Request


_read = msgspec.json.Decoder(_Review).decode


def read_review(body: bytes) -> AdmissionRequest:
    """Raises `NotAReview`: without the uid of the request there can be no answer."""
    if is_nested_too_deeply(body):
        raise NotAReview("the body is nested too deeply")
    try:
        document = _read(body)
    except msgspec.ValidationError as error:
        raise NotAReview(str(malformed(review.KIND, error))) from None
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
    try:
        return request._replace(object=document), _view(document, request)
    except msgspec.ValidationError as error:
        raise malformed("Pod", error) from None


def _view(document: Mapping[str, Any], request: AdmissionRequest) -> Pod:
    """A pod that is not created yet may have no namespace, and often no name."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        raise Malformed("Pod", "metadata", metadata, "an object")
    name = metadata.get("name") or metadata.get("generateName") or request.name
    named = {**metadata, "name": name, "namespace": request.namespace}
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
