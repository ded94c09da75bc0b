"""Reads what kube-scheduler sends: a pod and the nodes it may run on, or a pod to bind.

What kube-scheduler of today sends (capitalised keys, node names) is decoded straight into small views; anything else
(other letter case, node objects, nulls where Go writes them) is read again field by field, slower and with a complaint
that names the field. A pod that cannot be read in full is refused, never taken for one that asks for nothing.

A scheduler that asks about the same nodes in the same order as before is given the same tuple as before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from carrel.kubernetes.decoding import read_strictly
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.parsing import Malformed
from carrel.scheduling import extender_calls
from carrel.scheduling.extender_calls import Binding, Question


class NotJson(Exception):
    """No scheduler wrote this. The message is a sentence about why."""


@dataclass(frozen=True, slots=True)
class Asked:
    pod: Pod
    nodes: Sequence[str]
    objects: Mapping[str, Mapping[str, Any]] | None = None
    """The nodes themselves, where the scheduler sent them."""


class _Args(msgspec.Struct, rename="pascal", forbid_unknown_fields=True):
    pod: Pod
    node_names: msgspec.Raw
    nodes: None = None


_read_args = msgspec.json.Decoder(_Args).decode


class _Names:
    """Reads a list of names, unless it is the last one again. To compare 60 kB of text is much less than to read it."""

    def __init__(self) -> None:
        self._text = b"[]"
        self._names: tuple[str, ...] = ()
        self._decode = msgspec.json.Decoder(tuple[str, ...]).decode

    def read(self, text: bytes) -> tuple[str, ...]:
        if text != self._text:
            self._text, self._names = text, self._decode(text)
        return self._names


_names = _Names()


def read_question(body: bytes) -> Asked:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    try:
        args = _read_args(body)
        return Asked(args.pod, _names.read(bytes(args.node_names)))
    except (ValueError, RecursionError):
        pass
    question = extender_calls.read_question(_json(body))
    return Asked(_pod(question), question.nodes, question.objects)


def read_binding(body: bytes) -> Binding:
    """Raises `NotJson`, or `Malformed` with the field that is wrong."""
    return extender_calls.read_binding(_json(body))


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except ValueError as error:
        raise NotJson(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise NotJson("the body is nested too deeply") from None


def _pod(question: Question) -> Pod:
    try:
        return read_strictly(PODS, question.pod)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at `$")
        raise Malformed("ExtenderArgs", f"Pod{path.rstrip('`')}", "something else", expected) from None
    except RecursionError:
        raise NotJson("the pod is nested too deeply") from None
