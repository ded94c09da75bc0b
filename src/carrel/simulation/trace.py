"""Reads Carrel's own traces: pods, one row each, and bookings that people wish for.

A pod: `name` and, where they apply, `owner`, `arrives_hours`, `lasts_hours`, `gpus`, `gpu_memory_mib` or `gpu_part` of
each, `model`, `cpu_cores`, `memory_gib`, `count` (so many alike). A booking: `user`, `model`, `gpus`, `asked_hours`,
`start_hours`, `lasts_hours`. Hours count from the start of the trace.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction

from carrel.ledger.gpus import MiB
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import WHOLE, Amount, Memory, Portion, Request
from carrel.parsing import Malformed
from carrel.simulation.rows import Row
from carrel.simulation.workload import HOUR_S, BookingWish, SimulatedPod, Trace

POD_COLUMNS = frozenset(
    (
        "name",
        "owner",
        "arrives_hours",
        "lasts_hours",
        "gpus",
        "gpu_memory_mib",
        "gpu_part",
        "model",
        "cpu_cores",
        "memory_gib",
        "count",
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
        yield SimulatedPod(one, request, machine, row.text("owner"), arrives, lasts)


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
    return BookingWish(row.text("user"), row.text("model"), gpus, asked, max(start, asked), lasts)
