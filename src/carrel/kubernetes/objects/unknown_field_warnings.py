"""Reads kube-apiserver's warnings about unknown fields that it dropped, such as `unknown field "status.mode"`."""

import re
from collections.abc import Iterable

_UNKNOWN = re.compile(r'unknown field "(.+)"')
_INDEX = re.compile(r"\[\d+\]")


def unknown_fields(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each once, although every item of a list may have it: `status.devices[].reason`. Other warnings are ignored."""
    found = (_UNKNOWN.fullmatch(text) for text in warnings)
    return tuple(dict.fromkeys(_INDEX.sub("[]", match[1]) for match in found if match))
