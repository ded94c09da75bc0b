"""Reads the files of `carrel simulate`: traces and clusters, in the forms of openb and of Carrel."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from carrel.cluster_file import read_cluster, text_in, yaml_errors
from carrel.parsing import Malformed
from carrel.simulation import openb, snapshot
from carrel.simulation.trace import Row, csv_rows, trace_of
from carrel.simulation.workload import SimulatedCluster, Trace

NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class TraceFile:
    workload: Trace
    is_openb: bool = False
    """Of the published traces, whose pods arrive in random order if nothing else is asked for."""
    has_times: bool = True
    """Whether it can be run by the clock."""


_AT_BYTE = re.compile(r"\(byte ([0-9]+)\)")
"""Where JSON ends to be JSON, in msgspec's message."""
_WORD = re.compile(rb"[^\s,\]}]{1,20}")
_WORD_OR_NUMBER = re.compile(r'"(?:\\.|[^"\\])*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?')


def read_nodes(file: Path) -> SimulatedCluster:
    """openb's CSV, or a file as `carrel demo --cluster` reads it. Raises `Malformed` or `OSError`."""
    text = text_in(file)
    if _is_csv(file):
        return openb.read_nodes(text, file.name)
    return SimulatedCluster(tuple(read_cluster(text, file.name)))


def read_trace(file: Path) -> TraceFile:
    """Raises `Malformed` or `OSError`."""
    text = text_in(file)
    if not _is_csv(file):
        return TraceFile(trace_of(*_yaml_rows(text, file.name), file.name))
    if openb.is_openb(text):
        return TraceFile(Trace(openb.read_pods(text, file.name)), is_openb=True, has_times=openb.has_times(text))
    return TraceFile(trace_of(csv_rows(text, file.name, ("name",)), (), file.name))


def _is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


def read_snapshot(file: Path) -> tuple[SimulatedCluster, Trace]:
    """Raises `Malformed` or `OSError`."""
    text = text_in(file)
    if not text.strip():
        raise Malformed(file.name, "the file", "empty", "what `carrel snapshot` writes")
    return snapshot.read(_json_in(text, file.name), file.name)


def _json_in(text: str, source: str) -> object:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise Malformed(source, "line 1", "JSON", "JSON that is nested less deeply") from None
    except ValueError as error:  # msgspec's own errors are some; others come of numbers with thousands of digits
        raise _why_no_json(str(error), text, source) from None


def _why_no_json(message: str, text: str, source: str) -> Malformed:
    expected = "JSON, as `carrel snapshot` writes it"
    if at := _AT_BYTE.search(message):
        data, byte = text.encode(), int(at[1])
        line, found = data.count(b"\n", 0, byte) + 1, _WORD.match(data, byte)
        return Malformed(source, f"line {line}", found[0].decode(errors="replace") if found else "", expected)
    if "truncated" in message:
        last = len(text.splitlines())
        return Malformed(source, f"line {last}", "the end of the file", f"the rest of it: {expected}")
    words = (each for each in _WORD_OR_NUMBER.finditer(text) if not each[0].startswith('"'))
    too_large = next((each for each in words if math.isinf(float(each[0]))), None)
    line = text.count("\n", 0, too_large.start()) + 1 if too_large else 1
    return Malformed(source, f"line {line}", too_large[0] if too_large else message, "a smaller number")


def _yaml_rows(text: str, source: str) -> tuple[list[Row], list[Row]]:
    with yaml_errors(text, source):
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(tree, yaml.MappingNode):
        raise Malformed(source, "line 1", text[:40], "a mapping with pods and bookings")
    rows: dict[str, list[Row]] = {}
    for key, value in tree.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in ("pods", "bookings"):
            raise Malformed(source, f"line {_line(key)}", key.value, "pods or bookings")
        if key.value in rows:
            raise Malformed(source, f"line {_line(key)}", key.value, "each word once: put all items into one list")
        if not isinstance(value, yaml.SequenceNode):
            raise Malformed(source, f"line {_line(value)}", key.value, "a list")
        rows[key.value] = list(_items(value, source))
    return rows.get("pods", []), rows.get("bookings", [])


def _items(items: yaml.SequenceNode, source: str) -> Iterator[Row]:
    for item in items.value:
        if not isinstance(item, yaml.MappingNode):
            raise Malformed(source, f"line {_line(item)}", getattr(item, "value", ""), "a mapping")
        values = dict[str, str]()
        for key, value in item.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Malformed(source, f"line {_line(key)}", "a list or mapping", "the name of a column")
            if not isinstance(value, yaml.ScalarNode):
                raise Malformed(source, f"line {_line(value)}, {key.value}", "a list or mapping", "a text or a number")
            if key.value in values:
                raise Malformed(source, f"line {_line(key)}", key.value, "each column once in an item")
            values[key.value] = "" if value.tag == NULL else value.value
        yield Row(source, _line(item), values)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
