"""Reads the Alibaba GPU trace 2023 (`openb_*.csv`), as its files are: text in, nodes and pods out.

A GPU counts 1,000 milli there. The trace does not say how much memory a GPU has, so a GPU has 1,000 MiB here, and a
share of 470 milli is the portion 47/100 of it. `gpu_spec` names the models that will do, separated by `|`.
"""

import csv
from collections.abc import Iterator
from fractions import Fraction

from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.ledger.machines import MachineRoom
from carrel.ledger.requests import ANY_GPU, WHOLE, GpuSelector, Portion, Request
from carrel.parsing import Malformed
from carrel.simulation.workload import SimulatedCluster, SimulatedPod

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
WHOLE_MILLI = 1000


def is_openb(text: str) -> bool:
    """By the first line: whether these are openb's pods."""
    first = text.partition("\n")[0].strip().split(",")
    return set(POD_COLUMNS) <= set(first)


def read_nodes(text: str, source: str) -> SimulatedCluster:
    """Only nodes with GPUs. Raises `Malformed` with the line and the reason."""
    nodes, machines, lines = [], {}, {}
    for row in _rows(text, source, NODE_COLUMNS):
        name, cards = row.text("sn"), row.number("gpu")
        if not name:
            raise row.wrong("sn", "the name of a node")
        if name in lines:
            raise row.wrong("sn", f"another name: line {lines[name]} has it already")
        lines[name] = row.line
        if not cards:
            continue
        gpus = (Gpu(f"{name}/{index}", name, index, row.text("model"), MiB(WHOLE_MILLI)) for index in range(cards))
        nodes.append(Node(name, tuple(gpus)))
        machines[name] = MachineRoom(row.number("cpu_milli"), row.number("memory_mib"))
    if not nodes:
        raise Malformed(source, "the file", "no node with a GPU", "at least one")
    return SimulatedCluster(tuple(nodes), machines)


def read_pods(text: str, source: str) -> tuple[SimulatedPod, ...]:
    """Raises `Malformed` with the line and the reason."""
    pods, lines = [], dict[str, int]()
    for row in _rows(text, source, POD_COLUMNS):
        name = row.text("name")
        if not name:
            raise row.wrong("name", "the name of a pod")
        if name in lines:
            raise row.wrong("name", f"another name: line {lines[name]} has it already")
        lines[name] = row.line
        machine = MachineRoom(row.number("cpu_milli"), row.number("memory_mib"))
        created = row.number("creation_time") if row.text("creation_time") else 0
        deleted = row.number("deletion_time") if row.text("deletion_time") else None
        if deleted is not None and deleted < created:
            raise row.wrong("deletion_time", f"a time after the creation at {created}")
        lasts = None if deleted is None else float(deleted - created)
        pods.append(SimulatedPod(name, _request(row), machine, "", float(created), lasts))
    if not pods:
        raise Malformed(source, "the file", "no pod", "at least one")
    return tuple(pods)


def _request(row: "_Row") -> Request | None:
    cards, milli = row.number("num_gpu"), row.number("gpu_milli")
    if not cards:
        return None
    if not 0 < milli <= WHOLE_MILLI:
        raise row.wrong("gpu_milli", "1 to 1000")
    models = tuple(sorted({each for each in row.text("gpu_spec").split("|") if each}))
    selector = GpuSelector(models) if models else ANY_GPU
    return Request(cards, WHOLE if milli == WHOLE_MILLI else Portion(Fraction(milli, WHOLE_MILLI)), selector=selector)


class _Row:
    def __init__(self, source: str, line: int, values: dict[str, str]) -> None:
        self.line = line
        self._source = source
        self._values = values

    def text(self, column: str) -> str:
        return (self._values.get(column) or "").strip()

    def number(self, column: str) -> int:
        try:
            number = float(self.text(column) or "0")
            if number < 0 or number != int(number):
                raise ValueError
        except (ValueError, OverflowError):
            raise self.wrong(column, "a whole number, not below zero") from None
        return int(number)

    def wrong(self, column: str, expected: str) -> Malformed:
        return Malformed(self._source, f"line {self.line}, {column}", self.text(column), expected)


def _rows(text: str, source: str, columns: tuple[str, ...]) -> Iterator[_Row]:
    reader = csv.DictReader(text.splitlines())
    try:
        header = reader.fieldnames or ()
        if missing := [column for column in columns if column not in header]:
            raise Malformed(source, "line 1", ",".join(header), f"a header with the columns {', '.join(missing)}")
        for values in reader:
            if None in values or None in values.values():
                raise Malformed(
                    source, f"line {reader.line_num}", "another number of columns", f"{len(header)} columns"
                )
            yield _Row(source, reader.line_num, values)
    except csv.Error as error:
        raise Malformed(source, f"line {reader.line_num}", str(error), "comma-separated values") from None
