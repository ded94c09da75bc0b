"""Reads the files of `carrel simulate`: traces and clusters, in the forms of openb and of Carrel."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import yaml

from carrel.cluster_file import read_cluster, text_in
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.parsing import Malformed
from carrel.simulation import openb, snapshot
from carrel.simulation.rows import Row, csv_rows
from carrel.simulation.trace import trace_of
from carrel.simulation.workload import SimulatedCluster, Trace

MOST_ADDED = 10_000

_AT_BYTE = re.compile(r"\(byte ([0-9]+)\)")
"""Where JSON ends to be JSON, in msgspec's message."""
_WORD = re.compile(rb"[^\s,\]}]{1,20}")
_WORD_OR_NUMBER = re.compile(r'"(?:\\.|[^"\\])*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?')


def read_nodes(file: Path) -> SimulatedCluster:
    """openb's CSV, or a file as `carrel demo --cluster` reads it. Raises `Malformed` or `OSError`."""
    text = text_in(file)
    if file.suffix == ".csv":
        return openb.read_nodes(text, file.name)
    return SimulatedCluster(tuple(read_cluster(text, file.name)))


def read_trace(file: Path) -> tuple[Trace, bool]:
    """With whether it is openb's, whose pods arrive in random order. Raises `Malformed` or `OSError`."""
    text = text_in(file)
    if file.suffix != ".csv":
        return trace_of(*_yaml_rows(text, file.name), file.name), False
    if openb.is_openb(text):
        return Trace(openb.read_pods(text, file.name)), True
    return trace_of(csv_rows(text, file.name, ("name",)), (), file.name), False


def read_snapshot(file: Path) -> tuple[SimulatedCluster, Trace]:
    """Raises `Malformed` or `OSError`."""
    text = text_in(file).removeprefix("\ufeff")  # as some editors begin a file
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


def with_more(cluster: SimulatedCluster, added: str) -> SimulatedCluster:
    """With more nodes of up to eight GPUs: `8xNVIDIA-A100-SXM4-80GB:81920`. Raises `Malformed`.

    Nothing is said about their CPU, labels and taints: they have enough, and every pod may run there.
    """
    count, _, rest = added.partition("x")
    model, _, memory = rest.rpartition(":")
    is_right = count.isdecimal() and memory.isdecimal() and model and 0 < int(count) <= MOST_ADDED and int(memory) > 0
    if not is_right:
        raise Malformed("--add", "the value", added, "COUNTxMODEL:MIB, as 8xNVIDIA-A100-SXM4-80GB:81920")
    left, nodes = int(count), list[Node]()
    taken = {node.name for node in cluster.nodes}
    names = (name for number in itertools.count() if (name := f"added-{number}") not in taken)
    while left:
        name = next(names)
        gpus = tuple(
            Gpu(f"{name}/{index}", name, index, model, MiB(int(memory)), "added") for index in range(min(left, 8))
        )
        nodes.append(Node(name, gpus, cluster.labels_of_added))
        left -= len(gpus)
    return replace(cluster, nodes=(*cluster.nodes, *nodes))


def _yaml_rows(text: str, source: str) -> tuple[list[Row], list[Row]]:
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise Malformed(source, "line 1", text[:40], "YAML that is nested less deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "the file"
        raise Malformed(source, where, getattr(error, "problem", "") or str(error), "YAML") from None
    if not isinstance(tree, yaml.MappingNode):
        raise Malformed(source, "line 1", text[:40], "a mapping with pods and bookings")
    rows: dict[str, list[Row]] = {"pods": [], "bookings": []}
    for key, value in tree.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in rows:
            raise Malformed(source, f"line {_line(key)}", key.value, "pods or bookings")
        if not isinstance(value, yaml.SequenceNode):
            raise Malformed(source, f"line {_line(value)}", key.value, "a list")
        rows[key.value] = list(_items(value, source))
    return rows["pods"], rows["bookings"]


def _items(items: yaml.SequenceNode, source: str) -> Iterator[Row]:
    for item in items.value:
        if not isinstance(item, yaml.MappingNode):
            raise Malformed(source, f"line {_line(item)}", getattr(item, "value", ""), "a mapping")
        values = {}
        for key, value in item.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Malformed(source, f"line {_line(key)}", "a list or mapping", "the name of a column")
            if not isinstance(value, yaml.ScalarNode):
                raise Malformed(source, f"line {_line(value)}, {key.value}", "a list or mapping", "a text or a number")
            values[key.value] = value.value
        yield Row(source, _line(item), values)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
