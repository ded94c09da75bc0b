"""Quantities in stored objects: written as text, and compared exactly."""

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

RULE = "a quantity such as 2, 0.5, 500m, 1e3 or 16Gi"
LARGEST = 2**63 - 1
LONGEST_TEXT = 64

_PARTS = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3}|)", re.ASCII
)
_FACTORS = {suffix: Fraction(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)}
_FACTORS |= {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)}


@lru_cache(maxsize=4096)
def amount(text: str) -> Fraction | None:
    """None: not a quantity. What is finer than one billionth is rounded away from zero, as Kubernetes does.

    Unlike Kubernetes, which caps them, numbers beyond 2⁶³−1 are not accepted.
    """
    found = _PARTS.fullmatch(text) if len(text) <= LONGEST_TEXT else None
    if found is None:
        return None
    suffix = found["suffix"]
    # `E` alone is exa; with digits after it, it is an exponent.
    factor = _FACTORS[suffix] if suffix in _FACTORS else Fraction(10) ** int(suffix[1:])
    exact = Fraction(found["number"]) * factor
    if abs(exact) > LARGEST:
        return None
    billionths = ceil(abs(exact) * 10**9)
    return Fraction(billionths if exact >= 0 else -billionths, 10**9)


def quantity_text(value: Any) -> Any:
    """`2` is written `"2"`, as the real server does; what is no number is left for the checks."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return str(int(value)) if value == int(value) else f"{value:g}"
