"""One parsed API call: which verb on which kind, namespace, object and subresource, by which user, in which form.

Only the request is read here; whether the object exists or may be written is decided elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kubernetes_in_memory import protobuf, status
from kubernetes_in_memory.auth import UserInfo
from kubernetes_in_memory.kinds import Kind, Kinds
from kubernetes_in_memory.messages import RequestLike
from kubernetes_in_memory.representations import Representation, representation_of

Json = dict[str, Any]

JSON_TYPES = ("", "application/json", "*/*")
FORMS = "application/json"
YAML_TYPES = ("application/yaml", "application/apply-patch+yaml")

_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    target: Target
    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: UserInfo
    warnings: list[str] = field(default_factory=list)
    """For the client, although the call succeeds; sent as Warning headers."""

    @property
    def kind(self) -> Kind:
        return self.target.kind

    @property
    def verb(self) -> str:
        """As authorization rules spell it."""
        one = bool(self.target.name)
        match self.method:
            case "GET" if self.flag("watch"):
                return "watch"
            case "GET":
                return "get" if one else "list"
            case "POST":
                return "create"
            case "PUT":
                return "update"
            case "PATCH":
                return "patch"
            case "DELETE":
                return "delete" if one else "deletecollection"
        raise status.method_not_allowed()

    @property
    def dry_run(self) -> bool:
        asked = self.query.get("dryRun", "")
        if asked not in ("", "All"):
            raise status.bad_request(f'dryRun: Invalid value: "{asked}": must be "All"')
        return asked == "All"

    @property
    def manager(self) -> str:
        """The field manager: the owner of the changed fields."""
        return self.query.get("fieldManager") or self.headers.get("user-agent", "").split("/")[0] or "unknown"

    @property
    def form(self) -> Representation:
        """What the client accepts. Raises 406 if the API cannot answer in this form."""
        form = representation_of(self.headers.get("accept", ""))
        if form is Representation.WHOLE:
            return form
        if form is None:
            raise status.not_acceptable(f"only the following media types are accepted: {FORMS}")
        if form is Representation.METADATA and self.verb in ("list", "deletecollection"):
            raise status.not_acceptable(f"you requested {form.value}, but the requested object is a list")
        if form is Representation.METADATA_LIST and self.verb != "list":
            raise status.not_acceptable(f"you requested {form.value}, but the requested object is not a list")
        return form

    def check_representation(self) -> None:
        """Refuses a client that cannot read the answer before anything is written."""
        _ = self.form

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").split(";")[0].strip().lower()

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        text = self.query.get(name, "")
        if not text:
            return None
        if not text.isdecimal():
            raise status.bad_request(f'{name}: Invalid value: "{text}": must be a whole number, 0 or more')
        return int(text)

    def document(self) -> Json:
        """The body as an object."""
        if self.media_type in YAML_TYPES:
            return _object(_yaml(self.body))
        if self.media_type == protobuf.MEDIA_TYPE:
            return protobuf.decode(self.body)
        if self.media_type not in JSON_TYPES:
            raise status.unsupported_media_type(self.media_type, "application/json, application/yaml")
        return _object(decode_json(self.body))


def decode_json(body: bytes) -> Any:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise status.bad_request(f"couldn't read the body as JSON: {error}") from error


def _yaml(body: bytes) -> Any:
    # Most clients send JSON with the media type of YAML.
    if body.lstrip()[:1] == b"{":
        return decode_json(body)
    import yaml

    try:
        return yaml.safe_load(body)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise status.bad_request(f"couldn't read the body as YAML: {error}") from error


def _object(document: Any) -> Json:
    if not isinstance(document, dict):
        raise status.bad_request(f"the body must be an object, not {type(document).__name__}")
    return document


def call_of(request: RequestLike, kinds: Kinds, user: UserInfo) -> Call:
    """Reads the path. Raises the API's 404 if it names nothing that is served."""
    target = _target(request.path, kinds)
    return Call(target, request.method, request.query, request.headers, request.body, user)


def _target(path: str, kinds: Kinds) -> Target:
    parts = path.strip("/").split("/")
    match parts:
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            raise status.no_such_path()
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2 and not (len(rest) == 3 and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1], rest[2:]
    if not 1 <= len(rest) <= 3 or not all(rest):
        raise status.no_such_path()
    plural, name, subresource = (*rest, "", "")[:3]
    kind = kinds.find(group, version, plural)
    if kind is None:
        raise status.no_such_path(kinds.why_not(f"{group}/{version}" if group else version, plural))
    if namespace and not kind.namespaced:
        raise status.no_such_path(f"{plural} are not in namespaces")
    if subresource and subresource not in kind.subresources:
        raise status.no_such_path(f"{plural} have no {subresource!r}")
    if kind.namespaced and name and not namespace:
        raise status.no_such_path(f"{plural} are in namespaces, and the path names none")
    return Target(kind, namespace, name, subresource)
