"""How commands print lists and data: tables for people; JSON, YAML and CSV for programs."""

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import typer

from carrel.cli.options import DataFormat, ListFormat
from carrel.command_errors import USAGE, command_failed
from carrel.parsing.printable import printable, printable_lines, spreadsheet_text

Column = tuple[str, bool, Callable[[Any], str]]
"""Of a table: its head, whether it is shown, and the cell for an item."""
MIN_WIDTH = 8
"""Of a column that is cut."""


def print_lines(*lines: str, err: bool = False) -> None:
    """For people. The text of others in a line cannot end it, nor rewrite what the terminal shows."""
    text = "\n".join(map(printable, lines))
    if err:
        typer.echo(text, err=True)
    else:
        _print(text)


def is_confirmed(question: str, if_not: str, command: str) -> bool:
    """Ask the person at the terminal. Where nobody can be asked, the command fails and names `command`, which does not
    ask. `if_not`: what is said then, and after a no."""
    if not sys.stdin.isatty():
        why = "This is not a terminal, so the command cannot ask for confirmation."
        raise command_failed(if_not, why, command, USAGE)
    with suppress(typer.Abort):  # at the end of the input
        if typer.confirm(question, default=False, err=True):
            return True
    typer.echo(f"{if_not}.")
    return False


def _print(text: str, nl: bool = True) -> None:
    """If stdout takes no more, the command ends with the reason."""
    try:
        typer.echo(text, nl=nl)
    except BrokenPipeError:
        raise  # the program that read it has ended
    except OSError as error:
        # What is left in the buffer would be written once more at the end, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = error.strerror or str(error)
        raise command_failed("The output cannot be written", why, "df -h", USAGE) from None


def print_list(items: Any, output: ListFormat, rows: Sequence[Sequence[str]]) -> None:
    """`items`, as the service sent them, for programs; `rows`, with the head first, for people."""
    if output is ListFormat.CSV:
        _print(as_csv(items if isinstance(items, list) else [items]), nl=False)
    elif output is ListFormat.TABLE:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print_lines(*aligned(rows, width))
    else:
        print_data(items, DataFormat(output.value))


def rows_of(items: Sequence[Any], columns: Sequence[Column]) -> list[list[str]]:
    """Return the rows of a table, with the head first."""
    shown = [(head, cell) for head, is_shown, cell in columns if is_shown]
    return [[head for head, _ in shown], *([cell(item) for _, cell in shown] for item in items)]


def print_data(document: Any, output: DataFormat) -> None:
    """For programs: as JSON or YAML."""
    if output is DataFormat.JSON:
        text = json.dumps(document, indent=2, ensure_ascii=False)
        _print(text if _is_safe(text) else json.dumps(document, indent=2))
    else:
        import yaml  # takes longer to load than most commands need for all else

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        _print(text if _is_safe(text) else yaml.safe_dump(document, sort_keys=False), nl=False)


def _is_safe(text: str) -> bool:
    """Whether it can be written as it is: a terminal shows it, and the encoding of stdout has all of it."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return printable_lines(text) == text


def as_csv(items: Sequence[Mapping[str, Any]]) -> str:
    """One line per item, one column per field. Lists of words are joined, and so are objects, as `name=value`. What has
    lists or objects in it is left out: use JSON for it."""
    names = [name for name in (items[0] if items else {}) if not any(_is_nested(item.get(name)) for item in items)]
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(names)
    for item in items:
        writer.writerow([_cell(item.get(name)) for name in names])
    return lines.getvalue()


def _is_nested(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(each, list | dict) for each in parts)


def _cell(value: Any) -> str:
    text = printable_lines(_words(value))
    return text if isinstance(value, int | float) else spreadsheet_text(text)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_words(each)}" for name, each in value.items())
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def aligned(
    rows: Sequence[Sequence[str]], width: int | None = None, gap: int = 2, least: Sequence[int] = ()
) -> list[str]:
    """Columns `gap` spaces apart. If a row does not fit the terminal, the widest column is cut with an ellipsis.
    `least`: how narrow each may become, if they differ."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while width is not None and sum(widths) + gap * (len(widths) - 1) > width:
        wide = [number for number, size in enumerate(widths) if size > (least[number] if least else MIN_WIDTH)]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return [
        (" " * gap).join(_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cut(cell: str, size: int) -> str:
    return cell if len(cell) <= size else cell[: size - 1] + "…"
