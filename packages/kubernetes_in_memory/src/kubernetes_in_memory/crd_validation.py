"""Checks of CustomResourceDefinitions and their structural schemas, and how their lists are merged.

Pure. The rules are those of a real API server for `apiextensions.k8s.io/v1`; all violations are reported at once, with
their path in the definition. What a checked schema says about objects is in `object_validation`.
Limits: conversion, printer columns, selectable fields and rules in CEL are not checked; a pattern must be valid in
Python too.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kubernetes_in_memory.causes import Cause, duplicate, prohibited, required, unsupported, wrong
from kubernetes_in_memory.merge_keys import METADATA, MergeKeys
from kubernetes_in_memory.object_validation import (
    EMBEDDED,
    INT_OR_STRING,
    PRESERVE,
    Schema,
    apply_defaults,
    compiled,
    prune,
    validate,
)

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_GROUP = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
_STRUCTURE = ("type", "default", "additionalProperties", "nullable", "title", "description")
"""Allowed in the structure only; allOf, anyOf, oneOf and not may only constrain values."""
_JUNCTORS = ("allOf", "anyOf", "oneOf")


def _shape() -> Schema:
    """The schema of a definition itself, so that the rest of this module can rely on the types."""
    text, flag = {"type": "string"}, {"type": "boolean"}
    texts = {"type": "array", "items": text}
    words: dict[str, Any] = {}
    props = {"type": "object", "properties": words}
    for names, each in (
        (("type", "format", "pattern", "$ref", "x-kubernetes-list-type"), text),
        (("nullable", "uniqueItems", "exclusiveMinimum", "exclusiveMaximum"), flag),
        ((INT_OR_STRING, PRESERVE, EMBEDDED), flag),
        (("minimum", "maximum", "multipleOf"), {"type": "number"}),
        (("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), {"type": "integer"}),
        (("required", "x-kubernetes-list-map-keys"), texts),
        (("items", "not"), props),
        (_JUNCTORS, {"type": "array", "items": props}),
        (("properties",), {"type": "object", "additionalProperties": props}),
        (("additionalProperties",), {"anyOf": [flag, props]}),
        (("enum",), {"type": "array", "items": {}}),
    ):
        words |= dict.fromkeys(names, each)
    version = {"name": text, "schema": {"type": "object", "properties": {"openAPIV3Schema": props}}}
    known_as = dict.fromkeys(("plural", "singular", "kind", "listKind"), text) | {"shortNames": texts}
    spec = {
        "group": text,
        "scope": text,
        "names": {"type": "object", "properties": known_as},
        "versions": {"type": "array", "items": {"type": "object", "properties": version}},
    }
    return {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}, "required": ["spec"]}


_SHAPE = _shape()


def check_schema(crd: Mapping[str, Any]) -> list[Cause]:
    """Everything that is wrong with a CustomResourceDefinition."""
    crd = apply_defaults(_SHAPE, crd)
    if misshapen := validate(_SHAPE, crd):
        return misshapen
    spec = crd["spec"]
    group, names = spec.get("group") or "", spec.get("names") or {}
    causes = list(_name_causes(spec, group, names))
    expected = f"{names.get('plural', '')}.{group}"
    name = (crd.get("metadata") or {}).get("name", "")
    if name != expected:
        causes.append(wrong("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    if spec.get("preserveUnknownFields"):
        causes.append(wrong("spec.preserveUnknownFields", True, "must be false"))
    return causes + list(_version_causes(spec.get("versions") or []))


def _name_causes(spec: Mapping[str, Any], group: str, names: Mapping[str, Any]) -> Iterable[Cause]:
    if not group:
        yield required("spec.group")
    elif len(group) > 253 or not _GROUP.fullmatch(group):
        yield wrong("spec.group", group, "should be a domain with at least one dot")
    scope = spec.get("scope")
    if not scope:
        yield required("spec.scope")
    elif scope not in ("Cluster", "Namespaced"):
        yield unsupported("spec.scope", scope, ("Cluster", "Namespaced"))
    for field in ("plural", "kind"):
        if not names.get(field):
            yield required(f"spec.names.{field}")
    lowered = {field: names.get(field) for field in ("plural", "singular", "kind", "listKind")}
    lowered |= {f"shortNames[{index}]": name for index, name in enumerate(names.get("shortNames") or ())}
    for field, value in lowered.items():
        # Kinds are written in CamelCase, everything else must be lower case already.
        if value and not _DNS_LABEL.fullmatch(value.lower() if "ind" in field else value):
            yield wrong(f"spec.names.{field}", value, "a DNS-1035 label: lower case letters, digits and '-'")
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        yield wrong("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")


def _version_causes(versions: list[Any]) -> Iterable[Cause]:
    if sum(bool(version.get("storage")) for version in versions) != 1:
        stored = [version.get("name") for version in versions if version.get("storage")]
        yield wrong("spec.versions", stored, "must have exactly one version marked as storage version")
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path, name = f"spec.versions[{index}]", version.get("name") or ""
        if name in seen:
            yield duplicate(f"{path}.name", name)
        seen.add(name)
        if not _DNS_LABEL.fullmatch(name):
            yield wrong(f"{path}.name", name, "a DNS-1035 label: lower case letters, digits and '-'")
        for field in ("served", "storage"):
            if not isinstance(version.get(field), bool):
                yield required(f"{path}.{field}")
        document = (version.get("schema") or {}).get("openAPIV3Schema")
        if document is None:
            yield required(f"{path}.schema.openAPIV3Schema", "schemas are required")
        else:
            yield from _root_causes(document, f"{path}.schema.openAPIV3Schema")


def _root_causes(schema: Schema, path: str) -> Iterable[Cause]:
    if not schema.get("type"):
        yield required(f"{path}.type", "must not be empty at the root")
    elif schema["type"] != "object":
        yield wrong(f"{path}.type", schema["type"], "must be object at the root")
    metadata = (schema.get("properties") or {}).get("metadata") or {}
    if set(metadata.get("properties") or {}) - {"name", "generateName"}:
        why = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield prohibited(f"{path}.properties[metadata]", why)
    yield from _structure_causes(schema, path)


def _structure_causes(schema: Schema, path: str, place: str = "") -> Iterable[Cause]:
    """Rules for one part of the structure and all below. `place` says what the part is, in messages."""
    kind, free = schema.get("type"), schema.get(PRESERVE)
    if not kind:
        if place and not free and not schema.get(INT_OR_STRING):
            yield required(f"{path}.type", f"must not be empty for specified {place}")
    elif kind not in _TYPES:
        yield unsupported(f"{path}.type", kind, _TYPES)
    for rule in (_map_causes, _list_causes, _limit_causes, _default_causes):
        yield from rule(schema, path)
    for name, below in (schema.get("properties") or {}).items():
        yield from _structure_causes(below, f"{path}.properties[{name}]", "object fields")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from _structure_causes(schema["additionalProperties"], f"{path}.additionalProperties", "object fields")
    if isinstance(schema.get("items"), Mapping):
        yield from _structure_causes(schema["items"], f"{path}.items", "array items")
    for below, where in _alternatives(schema, path):
        yield from _constraint_causes(below, where, free_type=bool(schema.get(INT_OR_STRING)))


def _map_causes(schema: Schema, path: str) -> Iterable[Cause]:
    additional = schema.get("additionalProperties")
    if additional is not None and schema.get("properties"):
        yield prohibited(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
    if schema.get(PRESERVE) is False:
        yield wrong(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    if schema.get(EMBEDDED):
        if schema.get("type") != "object":
            yield wrong(f"{path}.type", schema.get("type"), "must be object if x-kubernetes-embedded-resource is true")
        if not schema.get("properties") and not schema.get(PRESERVE):
            yield required(f"{path}.properties", "must not be empty if x-kubernetes-embedded-resource is true")


def _list_causes(schema: Schema, path: str) -> Iterable[Cause]:
    items = schema.get("items")
    if schema.get("type") == "array" and not isinstance(items, Mapping):
        yield required(f"{path}.items", "must be specified")
    if schema.get("uniqueItems"):
        why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield prohibited(f"{path}.uniqueItems", why)
    list_type, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or []
    where = f"{path}.x-kubernetes-list-type"
    if list_type is None:
        return
    if list_type not in ("atomic", "set", "map"):
        yield unsupported(where, list_type, ("atomic", "map", "set"))
    if schema.get("type") != "array":
        yield wrong(f"{path}.type", schema.get("type"), "must be array if x-kubernetes-list-type is specified")
    if list_type == "map" and isinstance(items, Mapping):
        if not keys:
            yield required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map")
        known = items.get("properties") or {}
        for index, key in enumerate(keys):
            if key not in known:
                yield wrong(f"{path}.x-kubernetes-list-map-keys[{index}]", key, "must be a property of the items")
            elif key not in (items.get("required") or ()) and "default" not in known[key]:
                yield required(
                    f"{path}.items.properties[{key}].default", "this property is in x-kubernetes-list-map-keys"
                )


def _limit_causes(schema: Schema, path: str) -> Iterable[Cause]:
    if schema.get("$ref"):
        yield prohibited(f"{path}.$ref", "$ref is not supported")
    if isinstance(schema.get("pattern"), str):
        try:
            compiled(schema["pattern"])
        except re.error as error:
            why = f"must be a valid regular expression, but isn't: {error}"
            yield wrong(f"{path}.pattern", schema["pattern"], why)


def _default_causes(schema: Schema, path: str) -> Iterable[Cause]:
    if "default" not in schema:
        return
    default, where = schema["default"], f"{path}.default"
    if prune(schema, default, root=False) != default:
        yield wrong(where, default, "must not have unknown fields")
    yield from validate(schema, apply_defaults(schema, default, root=False), where)


def _alternatives(schema: Schema, path: str) -> Iterable[tuple[Schema, str]]:
    for junctor in _JUNCTORS:
        for index, below in enumerate(schema.get(junctor) or ()):
            yield below, f"{path}.{junctor}[{index}]"
    if isinstance(schema.get("not"), Mapping):
        yield schema["not"], f"{path}.not"


def _constraint_causes(schema: Schema, path: str, *, free_type: bool = False) -> Iterable[Cause]:
    """Rules for what stands below allOf, anyOf, oneOf or not. Beside int-or-string they may name a type."""
    for word in _STRUCTURE:
        if word in schema and not (word == "type" and free_type):
            yield prohibited(f"{path}.{word}", "must be empty to be structural")
    yield from _limit_causes(schema, path)
    for name, below in (schema.get("properties") or {}).items():
        yield from _constraint_causes(below, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), Mapping):
        yield from _constraint_causes(schema["items"], f"{path}.items")
    for below, where in _alternatives(schema, path):
        yield from _constraint_causes(below, where, free_type=free_type)


def merge_keys_of(schema: Schema) -> MergeKeys:
    """How server-side apply merges the objects of a custom resource."""
    return _merge_keys(schema, {"metadata": METADATA})


def _merge_keys(schema: Schema, known: Mapping[str, MergeKeys]) -> MergeKeys:
    items = schema.get("items")
    holder = items if isinstance(items, Mapping) else schema
    additional = holder.get("additionalProperties")
    list_type = schema.get("x-kubernetes-list-type")
    below = {name: _merge_keys(each, {}) for name, each in (holder.get("properties") or {}).items()}
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ()) if list_type == "map" else ()
    defaults = {key: holder["properties"][key]["default"] for key in keys if "default" in holder["properties"][key]}
    return MergeKeys(
        fields=below | dict(known),
        every=_merge_keys(additional, {}) if isinstance(additional, Mapping) else None,
        apply_keys=keys,
        defaults=defaults,
        apply_set=list_type == "set",
        atomic=schema.get("x-kubernetes-map-type") == "atomic",
    )
