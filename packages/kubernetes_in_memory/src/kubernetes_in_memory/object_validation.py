"""Prunes, defaults and validates custom resources by the structural schema of their definition.

Pure; inputs are never changed, and results may share parts with them. Reasons and messages are those of the API server.
The order of a write is: prune, apply_defaults, validate. At the root, `apiVersion`, `kind` and `metadata` are left
alone: they are the same for every kind and are checked elsewhere. A schema is taken as already checked (see
`crd_validation`).
Limit: rules in CEL (`x-kubernetes-validations`) are not evaluated.
"""

import base64
import binascii
import copy
import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any

from kubernetes_in_memory.causes import Cause, duplicate, required, too_long, too_many, unsupported, wrong, wrong_type

Schema = Mapping[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"
INT_OR_STRING = "x-kubernetes-int-or-string"
OBJECT_FIELDS = ("apiVersion", "kind", "metadata")
"""What every object has, whatever its schema says."""


def prune(schema: Schema, value: Any, *, root: bool = True) -> Any:
    """Without the fields that the schema does not know."""
    if isinstance(value, list):
        items = schema.get("items")
        return [prune(items, element, root=False) for element in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    own = OBJECT_FIELDS if root or schema.get(EMBEDDED) else ()
    kept = {}
    for name, below in value.items():
        known = schema_of_field(schema, name)
        if name in own:
            kept[name] = below
        elif known is not None:
            kept[name] = prune(known, below, root=False)
        elif schema.get(PRESERVE) or schema.get("additionalProperties") is True:
            kept[name] = below
    return kept


def apply_defaults(schema: Schema, value: Any, *, root: bool = True) -> Any:
    """With the defaults of missing fields. A null that the schema does not allow counts as missing."""
    if isinstance(value, list):
        items = schema.get("items")
        return [apply_defaults(items, element, root=False) for element in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    own = OBJECT_FIELDS if root or schema.get(EMBEDDED) else ()
    filled = dict(value)
    for name, known in (schema.get("properties") or {}).items():
        if "default" in known and name not in own and _is_missing(known, filled, name):
            filled[name] = copy.deepcopy(known["default"])
    for name in list(filled):
        known = schema_of_field(schema, name)
        if known is None or name in own:
            continue
        if filled[name] is not None:
            filled[name] = apply_defaults(known, filled[name], root=False)
        elif _is_missing(known, filled, name):
            del filled[name]
    return filled


def validate(schema: Schema, value: Any, path: str = "") -> list[Cause]:
    """Everything that is wrong with the value. An empty path is the root of an object."""
    causes: list[Cause] = []
    _check(schema, value, path, causes)
    return causes


def schema_of_field(schema: Schema, name: str) -> Schema | None:
    known = (schema.get("properties") or {}).get(name)
    if known is None:
        known = schema.get("additionalProperties")
    return known if isinstance(known, dict) else None


def _is_missing(schema: Schema, fields: Mapping[str, Any], name: str) -> bool:
    return fields.get(name) is None and (name not in fields or not schema.get("nullable"))


def _check(schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if value is None and (schema.get("nullable") or "type" not in schema):
        if "enum" in schema:
            _check_enum(schema["enum"], schema, value, path, causes)
        return
    for keyword, operand in schema.items():
        check = _CHECKS.get(keyword)
        if check is not None:
            check(operand, schema, value, path, causes)


def _type_name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        # The API server reads integers into 64 bits, and what is larger into a float.
        return "integer" if -(2**63) <= value < 2**63 else "number"
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}


def _check_type(expected: str, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    actual = _type_name(value)
    if actual != expected and not (expected == "number" and actual == "integer"):
        causes.append(_not_of_type(expected, actual, path))


def _check_int_or_string(applies: bool, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    actual = _type_name(value)
    if applies and actual not in ("integer", "string"):
        causes.append(_not_of_type("integer,string", actual, path))


def _not_of_type(expected: str, actual: str, path: str) -> Cause:
    return wrong_type(path, actual, f'{path} in body must be of type {expected}: "{actual}"')


def _check_enum(allowed: list[Any], schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    # `True == 1` in Python, but not in JSON.
    if not any(value == each and isinstance(value, bool) is isinstance(each, bool) for each in allowed):
        causes.append(unsupported(path, value, allowed))


def _check_properties(
    properties: Mapping[str, Schema], schema: Schema, value: Any, path: str, causes: list[Cause]
) -> None:
    if not isinstance(value, dict):
        return
    own = OBJECT_FIELDS if not path or schema.get(EMBEDDED) else ()
    for name, known in properties.items():
        if name in value and name not in own:
            _check(known, value[name], f"{path}.{name}" if path else name, causes)


def _check_additional(known: Any, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if not isinstance(known, dict) or not isinstance(value, dict):
        return
    for name, below in value.items():
        _check(known, below, f"{path}.{name}" if path else name, causes)


def _check_required(names: list[str], schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, dict):
        causes += [required(f"{path}.{name}" if path else name) for name in names if name not in value]


def _check_items(known: Schema, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, list):
        for index, element in enumerate(value):
            _check(known, element, f"{path}[{index}]", causes)


def _check_list_type(kind: str, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if not isinstance(value, list) or kind not in ("set", "map"):
        return
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    seen: list[Any] = []
    for index, element in enumerate(value):
        identity = element
        if kind == "map":
            identity = {key: element[key] for key in keys if key in element} if isinstance(element, dict) else None
        if identity in seen:
            causes.append(duplicate(f"{path}[{index}]", identity))
        seen.append(identity)


def _check_embedded(applies: bool, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if not applies or not isinstance(value, dict):
        return
    for name in ("apiVersion", "kind"):
        if not value.get(name):
            causes.append(required(f"{path}.{name}", "must not be empty"))
    for name, expected in (("apiVersion", "string"), ("kind", "string"), ("metadata", "object")):
        if value.get(name) is not None:
            _check_type(expected, schema, value[name], f"{path}.{name}", causes)


def _check_minimum(bound: float, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    exclusive = schema.get("exclusiveMinimum") is True
    if _is_number(value) and (value < bound or (exclusive and value == bound)):
        than = "greater than" if exclusive else "greater than or equal to"
        causes.append(wrong(path, value, f"{path} in body should be {than} {_number(bound)}"))


def _check_maximum(bound: float, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    exclusive = schema.get("exclusiveMaximum") is True
    if _is_number(value) and (value > bound or (exclusive and value == bound)):
        than = "less than" if exclusive else "less than or equal to"
        causes.append(wrong(path, value, f"{path} in body should be {than} {_number(bound)}"))


def _check_multiple(factor: float, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    # Decimals, because to the author of a schema 0.3 is a multiple of 0.1.
    if _is_number(value) and Decimal(str(value)) % Decimal(str(factor)):
        causes.append(wrong(path, value, f"{path} in body should be a multiple of {_number(factor)}"))


def _check_min_length(least: int, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, str) and len(value) < least:
        causes.append(wrong(path, value, f"{path} in body should be at least {least} chars long"))


def _check_max_length(most: int, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, str) and len(value) > most:
        causes.append(too_long(path, most))


def _check_pattern(pattern: str, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, str) and not compiled(pattern).search(value):
        causes.append(wrong(path, value, f"{path} in body should match '{pattern}'"))


def _check_min_items(least: int, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, list) and len(value) < least:
        causes.append(wrong(path, len(value), f"{path} in body should have at least {least} items"))


def _check_max_items(most: int, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, list) and len(value) > most:
        causes.append(too_many(path, len(value), most))


def _check_min_properties(least: int, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, dict) and len(value) < least:
        causes.append(wrong(path, least, f"{path} in body should have at least {least} properties"))


def _check_max_properties(most: int, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if isinstance(value, dict) and len(value) > most:
        causes.append(wrong(path, most, f"{path} in body should have at most {most} properties"))


def _check_format(name: str, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if name in _STRING_FORMATS and isinstance(value, str) and not _STRING_FORMATS[name](value):
        causes.append(wrong_type(path, value, f'{path} in body must be of type {name}: "{value}"'))


def _check_all(schemas: list[Schema], schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    failed = [found for each in schemas if (found := validate(each, value, path))]
    if failed:
        causes.append(_about_whole(path, "must validate all the schemas (allOf)"))
        causes += [cause for found in failed for cause in found]


def _check_any(schemas: list[Schema], schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    failed = [validate(each, value, path) for each in schemas]
    if all(failed):
        causes.append(_about_whole(path, "must validate at least one schema (anyOf)"))
        causes += _fewest(failed)


def _check_one(schemas: list[Schema], schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    failed = [validate(each, value, path) for each in schemas]
    valid = sum(not found for found in failed)
    if valid != 1:
        found = f"Found {valid} valid alternatives" if valid else "Found none valid"
        causes.append(_about_whole(path, f"must validate one and only one schema (oneOf). {found}"))
        causes += [] if valid else _fewest(failed)


def _check_not(inverse: Schema, schema: Schema, value: Any, path: str, causes: list[Cause]) -> None:
    if not validate(inverse, value, path):
        causes.append(_about_whole(path, "must not validate the schema (not)"))


def _fewest(failed: list[list[Cause]]) -> list[Cause]:
    """The intended alternative is most likely the one with the fewest errors."""
    return min(failed, key=len)


def _about_whole(path: str, what: str) -> Cause:
    # The real server names the path only in the message of these.
    return wrong("<nil>", "", f'"{path}" {what}')


@lru_cache(maxsize=512)
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern as the API server's language reads it: `$` is the very end, and `\\d` is 0 to 9."""
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1] + r"\Z"
    return re.compile(pattern, re.ASCII)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def _raises_nothing(read: Callable[[str], object]) -> Callable[[str], bool]:
    def reads(text: str) -> bool:
        try:
            read(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return reads


_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(z|[+-]\d{2}:\d{2})", re.ASCII)


def _is_date(text: str) -> bool:
    return len(text) == 10 and _raises_nothing(date.fromisoformat)(text)


def _is_date_time(text: str) -> bool:
    day, t, clock = text.lower().partition("t")
    return bool(t) and _is_date(day) and _CLOCK.fullmatch(clock) is not None


_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_STRING_FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": _is_date,
    "date-time": _is_date_time,
    "datetime": _is_date_time,
    "byte": lambda text: bool(text) and _raises_nothing(lambda code: base64.b64decode(code, validate=True))(text),
    "ipv4": _raises_nothing(ipaddress.IPv4Address),
    "ipv6": _raises_nothing(ipaddress.IPv6Address),
    "cidr": lambda text: "/" in text and _raises_nothing(lambda net: ipaddress.ip_network(net, strict=False))(text),
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
}
"""Formats that are checked. The API server too lets every other one pass: an int32 may be as large as an int64."""

_Check = Callable[[Any, Schema, Any, str, list[Cause]], None]
_CHECKS: Mapping[str, _Check] = {
    "type": _check_type,
    INT_OR_STRING: _check_int_or_string,
    "enum": _check_enum,
    "required": _check_required,
    "properties": _check_properties,
    "additionalProperties": _check_additional,
    "items": _check_items,
    "x-kubernetes-list-type": _check_list_type,
    EMBEDDED: _check_embedded,
    "minimum": _check_minimum,
    "maximum": _check_maximum,
    "multipleOf": _check_multiple,
    "minLength": _check_min_length,
    "maxLength": _check_max_length,
    "pattern": _check_pattern,
    "minItems": _check_min_items,
    "maxItems": _check_max_items,
    "minProperties": _check_min_properties,
    "maxProperties": _check_max_properties,
    "format": _check_format,
    "allOf": _check_all,
    "anyOf": _check_any,
    "oneOf": _check_one,
    "not": _check_not,
}
"""What each keyword of a schema demands. A keyword that is not here (`description`, `default`) demands nothing."""
