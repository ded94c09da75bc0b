"""The fields of the built-in kinds and their types: `built_in_fields.json`, read as structural schemas.

With it a body of a built-in kind is judged as a typed server would: what has the wrong type cannot be decoded, and a
field that nobody knows is dropped, told, or refused, as the caller wishes. The rules of a kind may then trust shapes.

A type is written `string`, `integer`, `boolean`, `number`, `quantity`, `integer or string`, `any`, the name of another
type, `[type]` for a list of it, or `{type}` for a map to it.
"""

from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec

from carrel.adapters.memory.kinds import Kind
from carrel.adapters.memory.schema import Schema

Json = dict[str, Any]

_ANYTHING: Json = {"x-kubernetes-preserve-unknown-fields": True}
_PRIMITIVE: dict[str, Json] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "number": {"type": "number"},
    "integer or string": {"x-kubernetes-int-or-string": True},
    # `cpu: 2` and `cpu: "2"` are both right; how it is written is checked with the rules of the kind.
    "quantity": _ANYTHING,
    "any": _ANYTHING,
    # A schema inside a schema has no end; `schema.check_schema` looks at it instead.
    "JSONSchemaProps": _ANYTHING,
}


@lru_cache(maxsize=1)
def types() -> dict[str, dict[str, str]]:
    text = resources.files(__package__).joinpath("built_in_fields.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, str]])


@lru_cache(maxsize=1024)
def schema_of_type(name: str) -> Schema:
    if name in _PRIMITIVE:
        return _PRIMITIVE[name]
    if name.startswith("["):
        return {"type": "array", "items": schema_of_type(name[1:-1])}
    if name.startswith("{"):
        return {"type": "object", "additionalProperties": schema_of_type(name[1:-1])}
    return {"type": "object", "properties": {field: schema_of_type(of) for field, of in types()[name].items()}}


def schema_of(kind: Kind) -> Schema:
    """A custom resource's own schema, or the one of a built-in kind."""
    if kind.schema is not None:
        return kind.schema
    return schema_of_type(kind.kind) if kind.kind in types() else _ANYTHING


def object_meta() -> Schema:
    return schema_of_type("ObjectMeta")


def unknown(before: Any, after: Any, path: str = "") -> list[str]:
    """The fields of `before` that pruning took away."""
    if isinstance(before, list) and isinstance(after, list):
        pairs = zip(before, after, strict=True)
        return [found for at, (old, new) in enumerate(pairs) for found in unknown(old, new, f"{path}[{at}]")]
    if not isinstance(before, dict) or not isinstance(after, dict) or before == after:
        return []
    found: list[str] = []
    for name, value in before.items():
        place = f"{path}.{name}" if path else name
        found += unknown(value, after[name], place) if name in after else [place]
    return found
