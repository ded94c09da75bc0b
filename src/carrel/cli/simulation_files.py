"""Reads the files of `carrel simulate`: traces and clusters, in the forms of openb and of Carrel."""

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from carrel.cluster_file import read_cluster, text_in
from carrel.ledger.gpus import Gpu, MiB, Node
from carrel.parsing import Malformed
from carrel.simulation import openb, snapshot
from carrel.simulation.rows import Row, csv_rows
from carrel.simulation.trace import trace_of
from carrel.simulation.workload import SimulatedCluster, Trace

MOST_ADDED = 10_000


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
    text = text_in(file)
    if not text.strip():
        raise Malformed(file.name, "the file", "empty", "what `carrel snapshot` writes")
    try:
        document = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise Malformed(file.name, "line 1", "JSON", "JSON that is nested less deeply") from None
    except json.JSONDecodeError as error:
        raise Malformed(file.name, f"line {error.lineno}", error.msg, "JSON, as `carrel snapshot` writes it") from None
    return snapshot.read(document, file.name)


def _no_number(text: str) -> float:
    raise json.JSONDecodeError(f"{text} is no number", "", 0)


def with_more(cluster: SimulatedCluster, added: str) -> SimulatedCluster:
    """With more nodes of up to eight GPUs: `8xNVIDIA-A100-SXM4-80GB:81920`. Raises `Malformed`.

    Nothing is said about their CPU: they have enough.
    """
    count, _, rest = added.partition("x")
    model, _, memory = rest.rpartition(":")
    is_right = count.isdecimal() and memory.isdecimal() and model and 0 < int(count) <= MOST_ADDED and int(memory) > 0
    if not is_right:
        raise Malformed("--add", "the value", added, "COUNTxMODEL:MIB, as 8xNVIDIA-A100-SXM4-80GB:81920")
    left, nodes = int(count), list[Node]()
    while left:
        name = f"added-{len(nodes)}"
        gpus = tuple(
            Gpu(f"{name}/{index}", name, index, model, MiB(int(memory)), "added") for index in range(min(left, 8))
        )
        nodes.append(Node(name, gpus))
        left -= len(gpus)
    return SimulatedCluster((*cluster.nodes, *nodes), cluster.machines)


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
