"""The error for input that cannot be understood: a patch, a selector, a quantity."""

import reprlib

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 80


class MalformedInput(ValueError):
    """Says what is wrong where, and what would be right; long values are shortened.

    >>> raise MalformedInput("label selector", "operator", "is", "in, notin, exists or =")
    Traceback (most recent call last):
    MalformedInput: label selector: operator is 'is'; expected in, notin, exists or =
    """

    def __init__(self, subject: str, field: str, value: object, expected: str) -> None:
        super().__init__(f"{subject}: {field} is {_shown.repr(value)}; expected {expected}")
        self.field, self.value, self.expected = field, value, expected
