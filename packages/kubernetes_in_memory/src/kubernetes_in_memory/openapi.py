"""OpenAPI, as far as clients read it before they write.

Version 3 says for each kind that `fieldValidation` and `dryRun` are understood, which is what kubectl looks up, and
gives the schemas of custom resources, for `kubectl explain`. Those of built-in kinds are left out on purpose: kubectl
then uses its own, which know how their lists are merged. Version 2 is an empty document: clients need it to exist.
"""

from collections.abc import Mapping
from typing import Any

from kubernetes_in_memory.kinds import Kind, Kinds
from kubernetes_in_memory.messages import HttpResponse
from kubernetes_in_memory.store import encode

Json = dict[str, Any]

PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Clients ask for it by `v2@v1.0`, which is no media type: kubectl cannot read it in an answer."""
TITLE, VERSION = "Kubernetes API in memory", "v1"
INFO = {"title": TITLE, "version": VERSION}


def answer(path: str, headers: Mapping[str, str], kinds: Kinds) -> HttpResponse | None:
    match path.strip("/").split("/"):
        case ["openapi", "v2"]:
            return _version_2(headers)
        case ["openapi", "v3"]:
            places = sorted({_place(kind) for kind in kinds})
            return _json({"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}"} for place in places}})
        case ["openapi", "v3", *place]:
            served = [kind for kind in kinds if _place(kind) == "/".join(place)]
            return _json(_version_3(served)) if served else None
    return None


def _json(document: Json) -> HttpResponse:
    return HttpResponse(200, encode(document), {"content-type": "application/json"})


def _place(kind: Kind) -> str:
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"


def _version_2(headers: Mapping[str, str]) -> HttpResponse:
    if "protobuf" not in headers.get("accept", ""):
        return _json({"swagger": "2.0", "info": INFO, "paths": {}, "definitions": {}})
    # Document{swagger = 1, info = 2 {title = 1, version = 2}}, each field as tag, length, bytes.
    info = _field(1, TITLE.encode()) + _field(2, VERSION.encode())
    return HttpResponse(200, _field(1, b"2.0") + _field(2, info), {"content-type": PROTOBUF})


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _version_3(kinds: list[Kind]) -> Json:
    schemas = {_schema_name(kind): _schema(kind) for kind in kinds if kind.custom}
    paths = {_object_path(kind): _operations(kind) for kind in kinds}
    return {"openapi": "3.0.0", "info": INFO, "paths": paths, "components": {"schemas": schemas}}


def _schema_name(kind: Kind) -> str:
    return ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])


def _schema(kind: Kind) -> Json:
    known = kind.schema or {}
    properties = {
        **known.get("properties", {}),
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    return {**known, "type": "object", "properties": properties, "x-kubernetes-group-version-kind": [_named(kind)]}


def _named(kind: Kind) -> Json:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}


def _object_path(kind: Kind) -> str:
    where = "/namespaces/{namespace}" if kind.namespaced else ""
    return f"/{_place(kind)}{where}/{kind.plural}/{{name}}"


def _operations(kind: Kind) -> Json:
    switches = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation", "force")
    ]
    answers: Json = {"200": {"description": "OK"}}
    if kind.custom:
        reference = {"$ref": f"#/components/schemas/{_schema_name(kind)}"}
        answers["200"]["content"] = {"application/json": {"schema": reference}}
    named = {"x-kubernetes-group-version-kind": _named(kind), "responses": answers}
    return {
        "get": {**named, "x-kubernetes-action": "get"},
        "put": {**named, "parameters": switches, "x-kubernetes-action": "put"},
        "patch": {**named, "parameters": switches, "x-kubernetes-action": "patch"},
    }
