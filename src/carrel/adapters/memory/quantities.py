"""Quantities in stored objects: written as text, and compared exactly."""

from fractions import Fraction
from functools import lru_cache
from typing import Any

from carrel.protocols import Malformed
from carrel.protocols.kubernetes.quantity import quantity

Json = dict[str, Any]

RULE = "a quantity such as 2, 0.5, 500m, 1e3 or 16Gi"


@lru_cache(maxsize=4096)
def amount(text: str) -> Fraction | None:
    """None: not a quantity."""
    try:
        return quantity(text, "", "")
    except Malformed:
        return None


def write_as_text(holder: Any, *fields: str) -> None:
    """`cpu: 2` becomes `cpu: "2"`, as the real server writes it."""
    for field in fields:
        amounts = holder.get(field)
        if amounts and not all(isinstance(value, str) for value in amounts.values()):
            holder[field] = {name: _text(value) for name, value in amounts.items()}


def _text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(value) if isinstance(value, int) else f"{value:g}" if value != int(value) else str(int(value))
