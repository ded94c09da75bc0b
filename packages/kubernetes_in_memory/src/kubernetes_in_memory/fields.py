"""The fields of the built-in kinds and their types (`built_in_fields.json`), and reading a body by them.

It reads as a typed server does: a value of the wrong type cannot be decoded, null means absent, `cpu: 2` is `cpu: "2"`,
and an unknown field is dropped and reported. The rules of a kind can then rely on the types.

A type is written `string`, `integer`, `boolean`, `number`, `quantity`, `integer or string`, `any`, the name of another
type, `[type]` for a list of it, or `{type}` for a map to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

import msgspec

from kubernetes_in_memory.quantities import quantity_text

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadProblems:
    """The problems that reading found, by the path of the field."""

    wrong: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


Read = Callable[[Any, str, ReadProblems], Any]

_WORDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}


@lru_cache(maxsize=1)
def types() -> dict[str, dict[str, str]]:
    text = resources.files(__package__).joinpath("built_in_fields.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, str]])


def _not(wanted: str, value: Any, path: str, problems: ReadProblems) -> None:
    problems.wrong.append(f"{path or 'the object'}: {wanted} is expected, not {_WORDS.get(type(value), 'null')}")


def _primitive(wanted: str, *accepted: type) -> Read:
    def read(value: Any, path: str, problems: ReadProblems) -> Any:
        if type(value) not in accepted:
            _not(wanted, value, path, problems)
        return value

    return read


def _anything(value: Any, path: str, problems: ReadProblems) -> Any:
    return value


def _quantity(value: Any, path: str, problems: ReadProblems) -> Any:
    # Whether the text is a quantity is checked with the rules of the kind.
    if type(value) not in (str, int, float):
        _not("a quantity", value, path, problems)
    return quantity_text(value)


_PRIMITIVE: dict[str, Read] = {
    "string": _primitive("string", str),
    "integer": _primitive("integer", int),
    "boolean": _primitive("boolean", bool),
    "number": _primitive("number", int, float),
    "integer or string": _primitive("integer or string", int, str),
    "quantity": _quantity,
    "any": _anything,
    # A schema can contain schemas without end; `schema.check_schema` checks it instead.
    "JSONSchemaProps": _anything,
}


@lru_cache(maxsize=1024)
def reader(of: str) -> Read:
    """How a value of a type is read."""
    if of in _PRIMITIVE:
        return _PRIMITIVE[of]
    if of[0] == "[":
        return _list_reader(reader(of[1:-1]))
    if of[0] == "{":
        return _map_reader(reader(of[1:-1]))
    return _object_reader({name: reader(inner) for name, inner in types()[of].items()})


def _list_reader(read_element: Read) -> Read:
    def read(value: Any, path: str, problems: ReadProblems) -> Any:
        if type(value) is not list:
            return _not("array", value, path, problems)
        return [read_element(element, f"{path}[{at}]", problems) for at, element in enumerate(value)]

    return read


def _map_reader(read_value: Read) -> Read:
    def read(value: Any, path: str, problems: ReadProblems) -> Any:
        if type(value) is not dict:
            return _not("object", value, path, problems)
        return {key: read_value(inner, f"{path}[{key}]", problems) for key, inner in value.items() if inner is not None}

    return read


def _object_reader(known: dict[str, Read]) -> Read:
    def read(value: Any, path: str, problems: ReadProblems) -> Any:
        if type(value) is not dict:
            return _not("object", value, path, problems)
        tree = {}
        for name, inner in value.items():
            if inner is None:
                continue
            place = f"{path}.{name}" if path else name
            read_field = known.get(name)
            if read_field is None:
                problems.unknown.append(place)
            else:
                tree[name] = read_field(inner, place, problems)
        return tree

    return read
