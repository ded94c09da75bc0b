"""Kubernetes quantities, exactly: `8138`, `1e3`, `0.5`, `500m`, `16Gi`.

    number   digits, with a point anywhere, with a sign
    suffix   n u m (none) k M G T P E | Ki Mi Gi Ti Pi Ei | e<exponent> E<exponent>

As in Kubernetes, fractions below one billionth are rounded away from zero. Unlike Kubernetes, which caps them,
numbers beyond 2⁶³−1 are refused: they are mistakes. No quantity has spaces or more than 64 characters.
"""

import re
from fractions import Fraction

from carrel.parsing.malformed import Malformed

_QUANTITY = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?", re.ASCII)
_LONGEST = 64
_HIGHEST = 2**63 - 1
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_NANO = 10**9


def quantity(text: str, subject: str, field: str) -> Fraction:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise Malformed(subject, field, text, "a quantity such as 2, 0.5, 500m, 1e3 or 16Gi")
    sign, digits, suffix = match.group(1), match.group(2), match.group(3) or ""
    exact = Fraction(digits) * _factor(suffix)
    if exact > _HIGHEST:
        raise Malformed(subject, field, text, "a quantity up to 2⁶³−1")
    rounded = Fraction(-(-exact * _NANO // 1), _NANO)
    return -rounded if sign == "-" else rounded


def whole_quantity(text: str, subject: str, field: str) -> int:
    """How much of an extended resource such as `nvidia.com/gpu`: only whole numbers are possible."""
    amount = quantity(text, subject, field)
    if amount < 0 or amount.denominator != 1:
        raise Malformed(subject, field, text, "a whole number, 0 or more")
    return int(amount)


def _factor(suffix: str) -> Fraction:
    if suffix in _BINARY:
        return Fraction(2 ** _BINARY[suffix])
    # `E` alone is exa; with digits after it, it is an exponent.
    exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    return Fraction(10) ** exponent
