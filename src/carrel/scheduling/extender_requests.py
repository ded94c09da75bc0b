"""Reads what kube-scheduler sends: a pod and the nodes it may run on, or a pod to bind.

What today's kube-scheduler sends (capitalised keys, node names or node objects) is decoded straight into small views;
of a node object only the name is read, and the rest stays the bytes that it was. Anything else (other letter case,
nulls where Go writes them) is read again field by field, with an error that names the field. That takes twenty times
the memory of the body, so a large body is refused instead. A pod that cannot be read completely is refused, never
treated as one that asks for nothing.

If the nodes are the same in the same order as in the call before, the result is the same object.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, overload

import msgspec

from carrel.kubernetes.decoding import read_strictly
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.parsing import Malformed
from carrel.parsing.nesting import is_nested_too_deeply
from carrel.scheduling import extender_calls
from carrel.scheduling.extender_calls import BindArgs, ExtenderArgs

SomeText = Annotated[str, msgspec.Meta(min_length=1)]


class NotJson(Exception):
    """No scheduler wrote this. The message says why."""


@dataclass(frozen=True, slots=True)
class PodAndNodes:
    pod: Pod
    nodes: Sequence[str]
    objects: Mapping[str, object] | None = None
    """The nodes themselves, where the scheduler sent them."""


class _Args(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    pod: Pod
    node_names: msgspec.Raw
    nodes: None = None


class _NodeList(msgspec.Struct):
    items: tuple[msgspec.Raw, ...]


class _ArgsWithObjects(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    pod: Pod
    nodes: _NodeList
    node_names: None = None


class _NodeMetadata(msgspec.Struct):
    name: SomeText


class _NodeName(msgspec.Struct):
    metadata: _NodeMetadata


class _BindArgs(msgspec.Struct, forbid_unknown_fields=True):
    namespace: SomeText = msgspec.field(name="PodNamespace")
    pod: SomeText = msgspec.field(name="PodName")
    uid: SomeText = msgspec.field(name="PodUID")
    node: SomeText = msgspec.field(name="Node")


_read_args = msgspec.json.Decoder(_Args).decode
_read_args_with_objects = msgspec.json.Decoder(_ArgsWithObjects).decode
_read_node_name = msgspec.json.Decoder(_NodeName).decode
_read_bind = msgspec.json.Decoder(_BindArgs).decode

READ_BY_FIELD = 4 * 1024 * 1024
"""The largest body that is read field by field."""


_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class NodeNames(Sequence[str]):
    """Names as they were sent. Mostly it is only asked whether some node is one of them, and to look that up in the
    text takes a hundredth of the time that reading 5,000 names does. They are read when they are needed one by one."""

    def __init__(self, text: bytes) -> None:
        """`text` is a JSON list of strings, without anything that is escaped."""
        self._text = text

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return _decode_names(self._text)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and b'"%b"' % name.encode() in self._text

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


class _NodeNamesReader:
    """Remembers the last list of names: comparing 60 kB of text is much faster than reading it."""

    def __init__(self) -> None:
        self._text = b"[]"
        self._names: Sequence[str] = ()

    def read(self, text: bytes) -> Sequence[str]:
        """Raises `ValueError` if it is something else than names."""
        if text != self._text:
            self._names = NodeNames(text) if _are_plain_strings(text) else _decode_names(text)
            self._text = text
        return self._names


_IN_NODE_NAMES = b"abcdefghijklmnopqrstuvwxyz0123456789-."
"""Kubernetes allows nothing else there."""


def _are_plain_strings(text: bytes) -> bool:
    """Whether JSON is a list of strings that could be names of nodes, and has nothing between two of them but a comma.
    Without the characters of names only `["","",""]` is left then: to see that is three times as fast as to count."""
    left = text.translate(None, delete=_IN_NODE_NAMES)
    return left == b'["%b"]' % (b'","' * (len(left) // 3 - 1))


_names = _NodeNamesReader()


def read_pod_and_nodes(body: bytes) -> PodAndNodes:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    _refuse_deep(body)
    try:
        args = _read_args(body)
        return PodAndNodes(args.pod, _names.read(bytes(args.node_names)))
    except ValueError:
        pass
    try:
        with_objects = _read_args_with_objects(body)
        objects = {_read_node_name(node).metadata.name: node for node in with_objects.nodes.items}
        return PodAndNodes(with_objects.pod, tuple(objects), objects)
    except ValueError:
        pass
    if len(body) > READ_BY_FIELD:
        raise NotJson(f"the body has {len(body)} bytes, and is not what kube-scheduler sends")
    slower = extender_calls.read_extender_args(_json(body))
    return PodAndNodes(_pod(slower), slower.nodes, slower.objects)


def read_bind_args(body: bytes) -> BindArgs:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    _refuse_deep(body)
    try:
        args = _read_bind(body)
    except ValueError:
        return extender_calls.read_bind_args(_json(body))
    return BindArgs(args.namespace, args.pod, args.uid, args.node)


def _refuse_deep(body: bytes) -> None:
    if is_nested_too_deeply(body):
        raise NotJson("the body is nested too deeply")


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except ValueError as error:
        raise NotJson(f"the body is not JSON: {error}") from None


def _pod(args: ExtenderArgs) -> Pod:
    try:
        return read_strictly(PODS, args.pod)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at `$")
        raise Malformed("ExtenderArgs", f"Pod{path.rstrip('`')}", "something else", expected) from None
