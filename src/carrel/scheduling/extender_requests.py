"""Reads what kube-scheduler sends: a pod and the nodes it may run on, or a pod to bind.

What today's kube-scheduler sends (capitalised keys, node names or node objects) is decoded straight into small views;
of a node object only the name is read, and the rest stays the bytes that it was. Anything else (other letter case,
nulls where Go writes them) is read again field by field, with an error that names the field. That takes twenty times
the memory of the body, so a large body is refused instead. A pod that cannot be read completely is refused, never
treated as one that asks for nothing.

If the nodes are the same in the same order as in the call before, the result is the same tuple.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from carrel.kubernetes.decoding import read_strictly
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.parsing import Malformed
from carrel.scheduling import extender_calls
from carrel.scheduling.extender_calls import BindArgs, ExtenderArgs


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
    name: Annotated[str, msgspec.Meta(min_length=1)]


class _NodeName(msgspec.Struct):
    metadata: _NodeMetadata


_read_args = msgspec.json.Decoder(_Args).decode
_read_args_with_objects = msgspec.json.Decoder(_ArgsWithObjects).decode
_read_node_name = msgspec.json.Decoder(_NodeName).decode

READ_BY_FIELD = 4 * 1024 * 1024
"""The largest body that is read field by field."""


class _NodeNamesReader:
    """Decodes a list of names, unless it is the last one again: comparing 60 kB of text is much faster."""

    def __init__(self) -> None:
        self._text = b"[]"
        self._names: tuple[str, ...] = ()
        self._decode = msgspec.json.Decoder(tuple[str, ...]).decode

    def read(self, text: bytes) -> tuple[str, ...]:
        if text != self._text:
            self._text, self._names = text, self._decode(text)
        return self._names


_names = _NodeNamesReader()


def read_pod_and_nodes(body: bytes) -> PodAndNodes:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    try:
        args = _read_args(body)
        return PodAndNodes(args.pod, _names.read(bytes(args.node_names)))
    except (ValueError, RecursionError):
        pass
    try:
        with_objects = _read_args_with_objects(body)
        objects = {_read_node_name(node).metadata.name: node for node in with_objects.nodes.items}
        return PodAndNodes(with_objects.pod, tuple(objects), objects)
    except (ValueError, RecursionError):
        pass
    if len(body) > READ_BY_FIELD:
        raise NotJson(f"the body has {len(body)} bytes, and is not what kube-scheduler sends")
    slower = extender_calls.read_extender_args(_json(body))
    return PodAndNodes(_pod(slower), slower.nodes, slower.objects)


def read_bind_args(body: bytes) -> BindArgs:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    return extender_calls.read_bind_args(_json(body))


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except ValueError as error:
        raise NotJson(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise NotJson("the body is nested too deeply") from None


def _pod(args: ExtenderArgs) -> Pod:
    try:
        return read_strictly(PODS, args.pod)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at `$")
        raise Malformed("ExtenderArgs", f"Pod{path.rstrip('`')}", "something else", expected) from None
    except RecursionError:
        raise NotJson("the pod is nested too deeply") from None
