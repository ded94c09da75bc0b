"""Reads Carrel's own traces: pods, one row each, and bookings that people wish for.

A pod: `name` and, where they apply, `owner`, `arrives_hours`, `lasts_hours`, `gpus`, `gpu_memory_mib` or `gpu_part` of
each, `model`, `cpu_cores`, `memory_gib`, `count` (so many alike). A booking: `user`, `model`, `gpus`, `asked_hours`,
`start_hours`, `lasts_hours`. Hours count from the start of the trace.

Each row knows its file and line, so that what is wrong can be found; `openb` reads its files by rows too.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from carrel.ids import PersonId, PodUid
from carrel.ledger.gpus import MiB
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Amount, Memory, Portion, Request
from carrel.parsing import Malformed
from carrel.simulation.workload import HOUR_S, BookingWish, SimulatedPod, Trace

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


POD_COLUMNS = frozenset(
    (
        *("name", "owner", "arrives_hours", "lasts_hours", "gpus", "gpu_memory_mib", "gpu_part", "model"),
        *("cpu_cores", "memory_gib", "count"),
    )
)
BOOKING_COLUMNS = frozenset(["user", "model", "gpus", "asked_hours", "start_hours", "lasts_hours"])
MOST_PODS = 1_000_000
"""Of one trace. A run with a million takes hours."""
MOST_ALIKE = 100_000
MOST_CORES, MOST_GIB = 1e6, 1e6
"""No machine has more."""
MOST_HOURS = 100 * 366 * 24.0
"""Times beyond a hundred years are mistakes."""


def trace_of(pods: Iterable[Row], bookings: Iterable[Row], source: str) -> Trace:
    """Raises `Malformed` with the line and the reason."""
    lines = dict[str, int]()
    found = list[SimulatedPod]()
    for row in pods:
        found += _pods(row.only(POD_COLUMNS), lines)
        if len(found) > MOST_PODS:
            raise row.wrong("count", f"at most {MOST_PODS:,} pods in all, and these are {len(found):,}")
    wishes = tuple(_wish(row.only(BOOKING_COLUMNS)) for row in bookings)
    if not found and not wishes:
        raise Malformed(source, "the file", "no pod and no booking", "at least one")
    return Trace(tuple(found), wishes)


def _pods(row: Row, lines: dict[str, int]) -> Iterator[SimulatedPod]:
    name, count = row.name("name", lines), row.number("count", 1)
    if not 1 <= count <= MOST_ALIKE:
        raise row.wrong("count", f"1 to {MOST_ALIKE}")
    cores, gib = row.decimal("cpu_cores", most=MOST_CORES), row.decimal("memory_gib", most=MOST_GIB)
    machine = MachineRoom(int(cores * 1000), int(gib * 1024))
    lasts = _seconds(row, "lasts_hours") if row.text("lasts_hours") else None
    arrives = _seconds(row, "arrives_hours")
    request = _request(row)
    for number in range(count):
        one = f"{name}-{number}" if count > 1 else name
        if one != name and one in lines:
            raise row.wrong("name", f"another name: line {lines[one]} has {one} already")
        lines[one] = row.line
        yield SimulatedPod(PodUid(one), request, machine, PersonId(row.text("owner")), arrives, lasts)


def _request(row: Row) -> Request | None:
    gpus = row.number("gpus", 1 if row.text("gpu_memory_mib") or row.text("gpu_part") else 0)
    if not gpus:
        return None
    if row.text("gpu_memory_mib") and row.text("gpu_part"):
        raise row.wrong("gpu_part", "either a part of a GPU or MiB of it, not both")
    amount: Amount = WHOLE
    if row.text("gpu_memory_mib"):
        amount = Memory(MiB(row.number("gpu_memory_mib")))
        if not row.number("gpu_memory_mib"):
            raise row.wrong("gpu_memory_mib", "at least 1")
    elif row.text("gpu_part"):
        part = row.decimal("gpu_part")
        if not 0 < part <= 1:
            raise row.wrong("gpu_part", "more than 0, and at most 1")
        amount = Portion(Fraction(repr(part)))
    return Request(gpus, amount, row.text("model"))


def _seconds(row: Row, column: str, default_hours: float = 0.0) -> float:
    hours = row.decimal(column, default_hours)
    if hours > MOST_HOURS:
        raise row.wrong(column, f"at most {MOST_HOURS:,.0f} hours")
    return hours * HOUR_S


def _wish(row: Row) -> BookingWish:
    for column in ("user", "model", "lasts_hours"):
        if not row.text(column):
            raise row.wrong(column, "something: a booking needs it")
    asked = _seconds(row, "asked_hours")
    start = _seconds(row, "start_hours", asked / HOUR_S)
    gpus, lasts = row.number("gpus", 1), _seconds(row, "lasts_hours")
    if not gpus or not lasts:
        raise row.wrong("gpus" if not gpus else "lasts_hours", "more than zero")
    return BookingWish(PersonId(row.text("user")), row.text("model"), gpus, asked, max(start, asked), lasts)
