"""kube-scheduler's calls: reads what it sends (a pod and the nodes it may run on, or a pod to bind), and writes the
answers to `filter`, `prioritize` and `bind`, with the capitalised keys of Go's types.

The Go types have no JSON tags today and had lower-case ones before, and Go reads keys in any letter case. So does
Carrel. Of a node object only the name is read, and the rest stays the bytes that it was. An error names the field. A
pod that cannot be read completely is refused, never treated as one that asks for nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from carrel.ids import NodeName, PodUid
from carrel.kubernetes.decoding import reader_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.parsing import Malformed
from carrel.parsing.printable import printable
from carrel.parsing.validation import malformed

B = TypeVar("B", bytes, msgspec.Raw)
T = TypeVar("T")

SomeText = Annotated[str, msgspec.Meta(min_length=1)]


class NotJson(Exception):
    """No scheduler wrote this. The message says why."""


@dataclass(frozen=True, slots=True)
class PodAndNodes:
    pod: Pod
    nodes: tuple[NodeName, ...]
    objects: Mapping[NodeName, object] | None = None
    """The nodes themselves, where the scheduler sent them."""


@dataclass(frozen=True, slots=True)
class BindArgs:
    namespace: str
    pod: str
    uid: PodUid
    node: NodeName


class _NodeMetadata(msgspec.Struct):
    name: Annotated[NodeName, msgspec.Meta(min_length=1)]


class _NodeName(msgspec.Struct):
    metadata: _NodeMetadata


_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_names = msgspec.json.Decoder(tuple[NodeName, ...]).decode
_read_items = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode
_read_node_name = msgspec.json.Decoder(_NodeName).decode
_read_some_text = msgspec.json.Decoder(SomeText).decode
_read_pod = reader_of(PODS, is_strict=True)

ARGS, BIND_ARGS = "ExtenderArgs", "ExtenderBindingArgs"
HIGHEST_SCORE = 10
"""Scores go from 0 to 10 (`MaxExtenderPriority`); the scheduler scales them."""
LARGEST_POD = 4 * 1024 * 1024
"""etcd stores no object that is half as large. If a pod has nulls, twenty times its size is needed to read it."""


# --- questions -------------------------------------------------------------------------------------------------------


def read_pod_and_nodes(body: bytes) -> PodAndNodes:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    fields = _fields(body, ARGS, ("Pod", "Nodes", "NodeNames"))
    if "Pod" not in fields:
        raise Malformed(ARGS, "Pod", None, "the pod to schedule")
    if len(fields) != 2:
        both_or_none = "not both" if "Nodes" in fields else "not neither"
        raise Malformed(ARGS, "NodeNames", None, f"either Nodes or NodeNames, {both_or_none}")
    if (size := len(fields["Pod"])) > LARGEST_POD:
        raise NotJson(f"the pod has {size} bytes, more than any that is stored")
    pod = _read(_read_pod, fields["Pod"], ARGS, "Pod")
    if "NodeNames" in fields:
        return PodAndNodes(pod, _read(_read_names, fields["NodeNames"], ARGS, "NodeNames"))
    items = _fields(fields["Nodes"], ARGS, ("items",), "Nodes").get("items", b"[]")
    nodes = enumerate(_read(_read_items, items, ARGS, "Nodes.items"))
    objects = {_read(_read_node_name, node, ARGS, f"Nodes.items[{i}]").metadata.name: node for i, node in nodes}
    return PodAndNodes(pod, tuple(objects), objects)


def read_bind_args(body: bytes) -> BindArgs:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    keys = ("PodNamespace", "PodName", "PodUID", "Node")
    fields = _fields(body, BIND_ARGS, keys)
    texts = (_read(_read_some_text, fields.get(key, b"null"), BIND_ARGS, key) for key in keys)
    namespace, pod, uid, node = texts
    return BindArgs(namespace, pod, PodUid(uid), NodeName(node))


def _fields(body: bytes, subject: str, keys: Sequence[str], within: str = "") -> dict[str, bytes]:
    """Those of the fields that are there and not null, by their names as they are given, in whatever letter case they
    were sent."""
    names = {key.lower(): key for key in keys}
    found: dict[str, bytes] = {}
    spellings: dict[str, str] = {}
    for spelling, value in _read(_read_fields, body, subject, within).items():
        key = names.get(spelling.lower())
        if key is None:
            continue
        if key in spellings:
            both = " and ".join(sorted((spelling, spellings[key])))
            raise Malformed(subject, within or "the document", both, f"{key} once")
        spellings[key] = spelling
        if (text := bytes(value)) != b"null":
            found[key] = text
    return found


def _read(read: Callable[[B], T], body: B, subject: str, within: str) -> T:
    try:
        return read(body)
    except msgspec.ValidationError as error:
        raise malformed(subject, error, within) from None
    except ValueError as error:
        raise NotJson(f"the body is not JSON: {error}") from None


# --- answers ---------------------------------------------------------------------------------------------------------


def filter_result(
    objects: Mapping[NodeName, object] | None, fitting: Collection[NodeName], refused: Mapping[NodeName, str]
) -> dict[str, Any]:
    """The nodes that fit, and why the others do not.

    `Nodes` is set only if the scheduler sent objects: a scheduler that sends names reads names.
    """
    nodes = None if objects is None else {"items": [objects[name] for name in fitting]}
    return {"Nodes": nodes, "NodeNames": fitting, "FailedNodes": refused, "Error": ""}


def filter_failed(error: str) -> dict[str, Any]:
    """An error: the scheduler tries the pod again later."""
    return {"Nodes": None, "NodeNames": None, "FailedNodes": None, "Error": printable(error)}


def host_priorities(best_first: Mapping[NodeName, bool]) -> list[dict[str, Any]]:
    """The scores. Only the best node has the highest one: among equals the scheduler chooses at random. Of each node it
    is said whether it may have a score at all: the scheduler adds scores of its own, and ten points outweigh them, one
    does not."""
    places = enumerate(best_first.items())
    return [
        {"Host": node, "Score": max(HIGHEST_SCORE - place, 0) if is_preferred else 0}
        for place, (node, is_preferred) in places
    ]


def bind_failed(error: str) -> dict[str, str]:
    return {"Error": printable(error)}


BOUND = {"Error": ""}
