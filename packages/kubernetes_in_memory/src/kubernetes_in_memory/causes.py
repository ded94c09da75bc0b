"""What is wrong with a field, in the wording of kube-apiserver: field, value, and what would be right."""

import json
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    field: str
    reason: str
    message: str


def required(field: str, why: str = "") -> Cause:
    return Cause(field, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def wrong(field: str, value: object, why: str) -> Cause:
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_shown(value)}: {why}")


def prohibited(field: str, why: str) -> Cause:
    return Cause(field, "FieldValueForbidden", f"Forbidden: {why}")


def wrong_type(field: str, value: object, why: str) -> Cause:
    return Cause(field, "FieldValueTypeInvalid", f"Invalid value: {_shown(value)}: {why}")


def too_long(field: str, most: int) -> Cause:
    return Cause(field, "FieldValueTooLong", f"Too long: must have at most {most} bytes")


def too_many(field: str, count: int, most: int) -> Cause:
    return Cause(field, "FieldValueTooMany", f"Too many: {count}: must have at most {most} items")


def unsupported(field: str, value: object, allowed: Iterable[object]) -> Cause:
    known = ", ".join(f'"{one if isinstance(one, str) else _shown(one)}"' for one in allowed)
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {known}")


def duplicate(field: str, value: object) -> Cause:
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_shown(value)}")


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
