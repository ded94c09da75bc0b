"""Rows of a trace: each knows its file and line, so that what is wrong can be found."""

import csv
from collections.abc import Iterator, Mapping

from carrel.parsing import Malformed

MOST = 1e12
"""A number beyond is a mistake, whatever it counts: it is more than all machines of the world have."""


class Row:
    """Values by column, as text. What is absent is empty."""

    def __init__(self, source: str, line: int, values: Mapping[str, str]) -> None:
        self.line = line
        self._source = source
        self._values = values

    def text(self, column: str) -> str:
        return (self._values.get(column) or "").strip()

    def number(self, column: str, default: int = 0) -> int:
        number = self.decimal(column, default)
        if number != int(number):
            raise self.wrong(column, "a whole number")
        return int(number)

    def decimal(self, column: str, default: float = 0.0, most: float = MOST) -> float:
        """Never below zero."""
        try:
            number = float(self.text(column)) if self.text(column) else default
        except ValueError:
            raise self.wrong(column, "a number") from None
        if not 0 <= number < float("inf"):
            raise self.wrong(column, "a number, not below zero")
        if number > most:
            raise self.wrong(column, f"at most {most:,.0f}")
        return number

    def name(self, column: str, lines: dict[str, int]) -> str:
        """A name that no other row has. `lines` are those of the rows before."""
        name = self.text(column)
        if not name:
            raise self.wrong(column, "a name")
        if name in lines:
            raise self.wrong(column, f"another name: line {lines[name]} has it already")
        lines[name] = self.line
        return name

    def only(self, columns: frozenset[str]) -> "Row":
        """Itself, if it has no others."""
        if unknown := sorted(self._values.keys() - columns):
            raise Malformed(self._source, f"line {self.line}", unknown[0], f"one of {', '.join(sorted(columns))}")
        return self

    def wrong(self, column: str, expected: str) -> Malformed:
        return Malformed(self._source, f"line {self.line}, {column}", self.text(column), expected)


def csv_rows(text: str, source: str, columns: tuple[str, ...]) -> Iterator[Row]:
    """The header must have these columns. Raises `Malformed`."""
    reader = csv.DictReader(text.splitlines())
    try:
        header = reader.fieldnames or ()
        if missing := [column for column in columns if column not in header]:
            raise Malformed(source, "line 1", ",".join(header), f"a header with the columns {', '.join(missing)}")
        if twice := [column for position, column in enumerate(header) if column in header[:position]]:
            raise Malformed(source, "line 1", twice[0], "each column once")
        for values in reader:
            if None in values or None in values.values():
                expected = f"{len(header)} columns, as in the header"
                raise Malformed(source, f"line {reader.line_num}", "another number of columns", expected)
            yield Row(source, reader.line_num, values)
    except csv.Error as error:
        raise Malformed(source, f"line {reader.line_num}", str(error), "comma-separated values") from None
