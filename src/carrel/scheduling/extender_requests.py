"""Reads what kube-scheduler sends: a pod and the nodes it may run on, or a pod to bind.

The Go types have no JSON tags today and had lower-case ones before, and Go reads keys in any letter case. So does
Carrel. Of a node object only the name is read, and the rest stays the bytes that it was. An error names the field. A
pod that cannot be read completely is refused, never treated as one that asks for nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar, overload

import msgspec

from carrel.kubernetes.decoding import strict_reader_of
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.parsing import Malformed
from carrel.parsing.nesting import is_nested_too_deeply
from carrel.parsing.validation import malformed
from carrel.scheduling.extender_calls import BindArgs

B = TypeVar("B", bytes, msgspec.Raw)
T = TypeVar("T")

SomeText = Annotated[str, msgspec.Meta(min_length=1)]


class NotJson(Exception):
    """No scheduler wrote this. The message says why."""


class NodeNames(Sequence[str]):
    """Names that know at once whether a node is one of them: scoring asks that about the best nodes first."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._known = frozenset(names)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._names[index]


@dataclass(frozen=True, slots=True)
class PodAndNodes:
    pod: Pod
    nodes: Sequence[str]
    objects: Mapping[str, object] | None = None
    """The nodes themselves, where the scheduler sent them."""


class _NodeMetadata(msgspec.Struct):
    name: SomeText


class _NodeName(msgspec.Struct):
    metadata: _NodeMetadata


_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_names = msgspec.json.Decoder(tuple[str, ...]).decode
_read_items = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode
_read_node_name = msgspec.json.Decoder(_NodeName).decode
_read_some_text = msgspec.json.Decoder(SomeText).decode
_read_pod = strict_reader_of(PODS)

ARGS, BIND_ARGS = "ExtenderArgs", "ExtenderBindingArgs"
LARGEST_POD = 4 * 1024 * 1024
"""etcd stores no object that is half as large. If a pod has nulls, twenty times its size is needed to read it."""


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
        return PodAndNodes(pod, NodeNames(_read(_read_names, fields["NodeNames"], ARGS, "NodeNames")))
    items = _fields(fields["Nodes"], ARGS, ("items",), "Nodes").get("items", b"[]")
    nodes = enumerate(_read(_read_items, items, ARGS, "Nodes.items"))
    objects = {_read(_read_node_name, node, ARGS, f"Nodes.items[{i}]").metadata.name: node for i, node in nodes}
    return PodAndNodes(pod, NodeNames(tuple(objects)), objects)


def read_bind_args(body: bytes) -> BindArgs:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    keys = ("PodNamespace", "PodName", "PodUID", "Node")
    fields = _fields(body, BIND_ARGS, keys)
    return BindArgs(*(_read(_read_some_text, fields.get(key, b"null"), BIND_ARGS, key) for key in keys))


def _fields(body: bytes, subject: str, keys: Sequence[str], within: str = "") -> dict[str, bytes]:
    """Those of the fields that are there and not null, by their names as they are given, in whatever letter case they
    were sent."""
    if not within and is_nested_too_deeply(body):
        raise NotJson("the body is nested too deeply")
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
