"""Reads JSON that others wrote. A `Field` knows its path, so that an error can say where the document is wrong.

Null and absent are the same (Go writes `null` for an empty map). Everything wrong raises `Malformed` and nothing else.
"""

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from carrel.parsing.malformed import Malformed
from carrel.parsing.nesting import is_nested_too_deeply

T = TypeVar("T")


@dataclass(slots=True)
class Field:
    """One place in a JSON document: its value and its path."""

    value: Any
    subject: str
    path: str = ""

    @classmethod
    def parse(cls, text: str | bytes, subject: str, path: str = "") -> "Field":
        try:
            if not is_nested_too_deeply(text if isinstance(text, bytes) else text.encode()):
                return cls(_DECODER.decode(text if isinstance(text, str) else text.decode()), subject, path)
            expected = "JSON that is nested less deeply"
        except ValueError:
            expected = "JSON"  # or it is no UTF-8, has NaN, or an integer of thousands of digits
        raise Malformed(subject, path or "the document", text, expected)

    def __getitem__(self, key: str) -> "Field":
        return Field(self.object().get(key), self.subject, f"{self.path}.{key}" if self.path else key)

    @property
    def present(self) -> bool:
        return self.value is not None

    def malformed(self, expected: str) -> Malformed:
        return Malformed(self.subject, self.path or "the document", self.value, expected)

    def object(self) -> dict[str, Any]:
        return self._typed(dict, {}, "an object")

    def items(self) -> list["Field"]:
        values = enumerate(self._typed(list, [], "a list"))
        return [Field(value, self.subject, f"{self.path}[{i}]") for i, value in values]

    def entries(self) -> dict[str, "Field"]:
        return {key: self[key] for key in self.object()}

    def text(self) -> str:
        return self._typed(str, "", "text")

    def some_text(self) -> str:
        """Text that must be present and not empty."""
        if not (text := self.text()):
            raise self.malformed("text that is not empty")
        return text

    def flag(self) -> bool:
        return self._typed(bool, False, "true or false")

    def integer(self, at_least: int | None = None) -> int:
        """A whole number; absent counts as 0."""
        number = self._typed(int, 0, "a whole number")
        # Python's True is an int; JSON's is not.
        if isinstance(self.value, bool) or (at_least is not None and number < at_least):
            raise self.malformed("a whole number" if at_least is None else f"a whole number, {at_least} or more")
        return number

    def texts(self) -> dict[str, str]:
        """A map of text to text, such as labels."""
        return {key: field.text() for key, field in self.entries().items()}

    def _typed(self, kind: type[T], empty: T, expected: str) -> T:
        if self.value is None:
            return empty
        if not isinstance(self.value, kind):
            raise self.malformed(expected)
        return self.value


def whole_number(text: str, subject: str, field: str, at_least: int = 0) -> int:
    """A whole number written as text, as in an annotation: digits only, no sign, no spaces, nothing beyond 2⁶³−1."""
    if not (text.isascii() and text.isdigit()):
        raise Malformed(subject, field, text, f"a whole number, {at_least} or more")
    if len(text) > 19 or int(text) >= 2**63:
        raise Malformed(subject, field, text, "a smaller number, at most 2⁶³−1")
    if int(text) < at_least:
        raise Malformed(subject, field, text, f"a whole number, {at_least} or more")
    return int(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""`json.loads` would make a new one for each document."""
