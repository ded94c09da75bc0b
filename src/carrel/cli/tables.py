"""How lists are shown to people and to programs."""

import csv
import io
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import typer
import yaml

NARROWEST = 8


class Listing(Enum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def show(items: Any, output: Listing, rows: Sequence[Sequence[str]]) -> None:
    """`items` for programs, as the service said them; `rows`, the first of which is the head, for people."""
    if output is Listing.JSON:
        typer.echo(json.dumps(items, indent=2, ensure_ascii=False))
    elif output is Listing.YAML:
        typer.echo(yaml.safe_dump(items, sort_keys=False, allow_unicode=True), nl=False)
    elif output is Listing.CSV:
        typer.echo(as_csv(items if isinstance(items, list) else [items]), nl=False)
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        typer.echo("\n".join(aligned(rows, width)))


def as_csv(items: Sequence[Mapping[str, Any]]) -> str:
    """One line per item, one column per plain field: what is a list or an object is for JSON."""
    names = [name for name, value in (items[0] if items else {}).items() if not isinstance(value, list | dict)]
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(names)
    for item in items:
        writer.writerow([_cell(item.get(name)) for name in names])
    return lines.getvalue()


def _cell(value: Any) -> str:
    """A spreadsheet would run a note that begins like a formula, with the rights of who opens it."""
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return (
        f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) and not isinstance(value, int | float) else text
    )


def aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Columns two spaces apart. What does not fit a terminal is cut in its widest column, with an ellipsis."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return [
        "  ".join(_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _cut(cell: str, size: int) -> str:
    return cell if len(cell) <= size else cell[: size - 1] + "…"
