"""Quantities in stored objects: written as text, and compared exactly."""

from fractions import Fraction
from functools import lru_cache
from typing import Any

from carrel.kubernetes.objects.quantity import quantity
from carrel.parsing import Malformed

Json = dict[str, Any]

RULE = "a quantity such as 2, 0.5, 500m, 1e3 or 16Gi"


@lru_cache(maxsize=4096)
def amount(text: str) -> Fraction | None:
    """None: not a quantity."""
    try:
        return quantity(text, "", "")
    except Malformed:
        return None


def quantity_text(value: Any) -> Any:
    """`2` is written `"2"`, as the real server does; what is no number is left for the checks."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if value == int(value) else f"{value:g}"
