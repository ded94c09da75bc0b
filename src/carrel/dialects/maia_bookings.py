"""Bookings as MAIA's dashboard has them, in files: JSON or CSV, with user_email, start_date, end_date, gpu, namespace.

JSON is a list of objects, or what Django's `dumpdata` writes, with these under `fields`. Other fields are left aside.
Times without an offset are in UTC, in which MAIA stores them; a date alone is its midnight.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

NEEDED = ("user_email", "start_date", "end_date", "gpu")
MOST_BYTES = 16 * 1024 * 1024
MOST_BOOKINGS = 2000
"""At a time: while they are taken over, nobody else can book. It takes some seconds."""


@dataclass(frozen=True, slots=True)
class MaiaBooking:
    line: int
    """Where it begins in the file."""
    user: str
    model: str
    start: datetime
    end: datetime
    namespace: str


class UnreadableBookings(Exception):
    """Everything that is wrong in the file; each with its line."""

    def __init__(self, mistakes: list[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = mistakes


def read_bookings(text: str) -> list[MaiaBooking]:
    """Raises `UnreadableBookings`."""
    mistakes, found = list[str](), list[MaiaBooking]()
    text = text.removeprefix("\ufeff")
    is_json = text.lstrip()[:1] in ("[", "{")
    for line, entry in _json_entries(text, mistakes) if is_json else _csv_entries(text, mistakes):
        booking = _booking(line, entry, mistakes)
        if booking is not None:
            found.append(booking)
    if not found and not mistakes:
        mistakes.append("it has no bookings")
    if mistakes:
        raise UnreadableBookings(mistakes)
    return found


def _csv_entries(text: str, mistakes: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    head = text.partition("\n")[0]
    delimiter = ";" if ";" in head and "," not in head else ","  # spreadsheets write it where a comma is in numbers
    reader = csv.DictReader(text.splitlines(keepends=True), skipinitialspace=True, delimiter=delimiter)
    try:
        names = reader.fieldnames or ()
        if missing := [name for name in NEEDED if name not in names]:
            has = ", ".join(names) or "none"
            mistakes.append(f"line 1: the columns {', '.join(missing)} are missing; it has {has}")
            return
        before = reader.line_num
        for row in reader:
            if any(_text(row.get(name)) for name in names):  # spreadsheets leave rows without a word in them
                yield before + 1, row
            before = reader.line_num
    except csv.Error as error:
        mistakes.append(f"line {max(1, reader.line_num)}: {error}")


def _json_entries(text: str, mistakes: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each object with its line, which `json.loads` does not say."""
    decoder, at = json.JSONDecoder(), len(text) - len(text.lstrip())
    is_list = text[at] == "["
    at += is_list
    while True:
        while at < len(text) and (text[at].isspace() or text[at] == ","):
            at += 1
        if at >= len(text) or text[at] == "]":
            if is_list and at >= len(text):
                mistakes.append(f"line {_line(text, at)}: the list does not end")
            return
        try:
            entry, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            line = error.lineno if isinstance(error, json.JSONDecodeError) else _line(text, at)
            mistakes.append(f"line {line}: this is no JSON: {str(error).partition(':')[0]}")
            return
        if isinstance(entry, dict):
            yield _line(text, at), entry["fields"] if isinstance(entry.get("fields"), dict) else entry
        else:
            mistakes.append(f"line {_line(text, at)}: an object with {', '.join(NEEDED)} is expected")
        at = end


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _text(value: Any) -> str:
    return str(value or "").strip()


def _booking(line: int, entry: Mapping[str, Any], mistakes: list[str]) -> MaiaBooking | None:
    texts = {name: _text(entry.get(name)) for name in (*NEEDED, "namespace")}
    wrong = [f"{name} is missing" for name in NEEDED if not texts[name]]
    times = dict[str, datetime]()
    for name in ("start_date", "end_date"):
        if texts[name]:
            try:
                given = datetime.fromisoformat(texts[name])
                times[name] = (given if given.tzinfo else given.replace(tzinfo=UTC)).astimezone(UTC)
            except (ValueError, OverflowError):
                wrong.append(f"{name} is {texts[name]!r}; expected a time such as 2026-11-20 08:00:00")
    mistakes += [f"line {line}: {why}" for why in wrong]
    if wrong:
        return None
    return MaiaBooking(
        line, texts["user_email"], texts["gpu"], times["start_date"], times["end_date"], texts["namespace"]
    )
