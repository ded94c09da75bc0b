"""What kube-apiserver warns of when it drops a field that it does not know, as `unknown field "status.mode"`."""

import re
from collections.abc import Iterable

_UNKNOWN = re.compile(r'unknown field "(.+)"')
_INDEX = re.compile(r"\[\d+\]")


def unknown_fields(warnings: Iterable[str]) -> tuple[str, ...]:
    """Each once, though every item of a list may have it: `status.devices[].reason`. Other warnings are left out."""
    found = (_UNKNOWN.fullmatch(text) for text in warnings)
    return tuple(dict.fromkeys(_INDEX.sub("[]", match[1]) for match in found if match))
