"""What clients read before they ask for objects: versions, groups, resources, health."""

from collections.abc import Iterable
from typing import Any

from kubernetes_in_memory import openapi
from kubernetes_in_memory.kinds import SUBRESOURCES, Kind, Kinds
from kubernetes_in_memory.messages import HttpResponse, RequestLike
from kubernetes_in_memory.store import encode

Json = dict[str, Any]

JSON_HEADERS = {"content-type": "application/json"}
VERSION = {
    "major": "1",
    "minor": "37",
    "gitVersion": "v1.37.1+in-memory",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "python",
    "platform": "embedded",
}
HEALTH = ("/healthz", "/livez", "/readyz")


def answer(request: RequestLike, kinds: Kinds) -> HttpResponse | None:
    """The answer to a request about the API itself; None if the path is about objects."""
    if request.method not in ("GET", "HEAD"):
        return None
    path = request.path.rstrip("/") or "/"
    if path in HEALTH:
        return HttpResponse(200, b"ok", {"content-type": "text/plain"})
    if path.startswith("/openapi/"):
        return openapi.answer(path, request.headers, kinds)
    document = _document(path, kinds)
    return None if document is None else HttpResponse(200, encode(document), JSON_HEADERS)


def _document(path: str, kinds: Kinds) -> Json | None:
    match path.strip("/").split("/"):
        case [""]:
            return {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/readyz", "/version"]}
        case ["version"]:
            return VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            groups = [_group(group, kinds) for group in _groups(kinds)]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        case ["apis", group] if group in _groups(kinds):
            return {"apiVersion": "v1"} | _group(group, kinds)
        case ["api", "v1"]:
            return _resources("", "v1", kinds)
        case ["apis", group, version] if version in _versions(group, kinds):
            return _resources(group, version, kinds)
    return None


def _groups(kinds: Kinds) -> list[str]:
    return list(dict.fromkeys(kind.group for kind in kinds if kind.group))


def _versions(group: str, kinds: Kinds) -> list[str]:
    return list(dict.fromkeys(kind.version for kind in kinds if kind.group == group))


def _group(group: str, kinds: Kinds) -> Json:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in _versions(group, kinds)]
    return {"kind": "APIGroup", "name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str, kinds: Kinds) -> Json:
    served = [kind for kind in kinds if (kind.group, kind.version) == (group, version)]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [entry for kind in served for entry in _entries(kind)],
    }


def _entries(kind: Kind) -> Iterable[Json]:
    entry: Json = {
        "name": kind.plural,
        "singularName": kind.singular_name,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    yield entry
    for name in kind.subresources:
        sub = SUBRESOURCES[name]
        part: Json = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
        if sub.kind:
            part |= {"group": sub.group, "version": sub.version}
        yield part | {"kind": sub.kind or kind.kind, "verbs": list(sub.verbs)}
