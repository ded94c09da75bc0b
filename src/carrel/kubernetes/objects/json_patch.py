"""JSON Patch (RFC 6902) and JSON Pointer (RFC 6901), on plain Python values.

`apply` gives a new document and mutates neither the old one nor the operations. What did not change is shared with
them, so nobody may mutate it later. `diff` is the inverse: a webhook makes the pod it wants and sends the difference.
A patch that cannot be applied raises `Malformed`, which names the operation; then nothing was changed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from carrel.parsing.malformed import Malformed

Operation = Mapping[str, Any]
Tokens = tuple[str, ...]

# RFC 6901 §4: digits without leading zeros. No sane document has a list of ten billion items, and int() has its limits.
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_BAD_ESCAPE = re.compile(r"~(?![01])")

MOST_CHANGED = 100
"""Of more items in a row the whole list is replaced: whoever applies the patch moves all the others for each one."""


def escape(token: str) -> str:
    """One step of a pointer: `carrel.dev/tier` is spelled `carrel.dev~1tier`."""
    return token.replace("~", "~0").replace("/", "~1")


def pointer(*steps: str | int) -> str:
    return "".join(f"/{escape(str(step))}" for step in steps)


def apply(document: Any, operations: Sequence[Operation]) -> Any:
    """All operations in order, or none: the first that fails raises."""
    if not isinstance(operations, list | tuple):
        raise Malformed("JSON patch", "the patch", operations, "a list of operations")
    for number, operation in enumerate(operations):
        if not isinstance(operation, Mapping):
            raise Malformed("JSON patch", f"operation {number}", operation, "an object with op and path")
        document = _Step(number, operation).on(document)
    return document


def diff(before: Any, after: Any) -> list[dict[str, Any]]:
    """Operations that turn one document into the other. Lists are compared by position, between equal head and tail."""
    found: list[dict[str, Any]] = []
    _diff(before, after, "", found)
    return found


def annotate(document: Mapping[str, Any], annotations: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Operations that set annotations and (None) remove them, whether or not the object has an annotations map."""
    metadata = document.get("metadata") or {}
    present = metadata.get("annotations") or {}
    wanted = {key: value for key, value in {**present, **annotations}.items() if value is not None}
    if wanted == present:
        return []
    before = {"metadata": document["metadata"]} if "metadata" in document else {}
    return diff(before, {"metadata": {**metadata, "annotations": wanted}})


class _Step:
    """One operation of a patch, applied to one document."""

    def __init__(self, number: int, operation: Operation) -> None:
        self._number = number
        self._operation = operation

    def on(self, document: Any) -> Any:
        match self._operation.get("op"):
            case "add":
                return self._put(document, self._tokens("path"), self._value())
            case "remove":
                return self._take(document, self._tokens("path"))
            case "replace":
                return self._replace(document, self._tokens("path"), self._value())
            case "move":
                return self._move(document)
            case "copy":
                return self._put(document, self._tokens("path"), self._find(document, "from"))
            case "test":
                return self._test(document)
            case unknown:
                raise self._wrong("op", unknown, "add, remove, replace, move, copy or test")

    def _move(self, document: Any) -> Any:
        source, target = self._tokens("from"), self._tokens("path")
        if len(source) < len(target) and target[: len(source)] == source:
            # RFC 6902 §4.4: a value cannot be moved into one of its own children.
            raise self._wrong("path", self._operation["path"], "a place outside of what is moved")
        value = self._find(document, "from")
        if source == target:
            return document
        return self._put(self._take(document, source), target, value)

    def _test(self, document: Any) -> Any:
        wanted, found = self._value(), self._find(document, "path")
        if not same(found, wanted):
            raise self._wrong(f"the value at {self._operation['path']!r}", found, f"{wanted!r}, as the test asks")
        return document

    def _put(self, document: Any, tokens: Tokens, value: Any) -> Any:
        if not tokens:
            return value
        root, parent = self._opened(document, tokens)
        if isinstance(parent, dict):
            parent[tokens[-1]] = value
        elif tokens[-1] == "-":
            parent.append(value)
        else:
            parent.insert(self._index(tokens[-1], len(parent)), value)
        return root

    def _replace(self, document: Any, tokens: Tokens, value: Any) -> Any:
        if not tokens:
            return value
        root, parent = self._opened(document, tokens)
        parent[self._existing(parent, tokens[-1])] = value
        return root

    def _take(self, document: Any, tokens: Tokens) -> Any:
        if not tokens:
            raise self._wrong("path", "", "a place inside the document")
        root, parent = self._opened(document, tokens)
        del parent[self._existing(parent, tokens[-1])]
        return root

    def _find(self, document: Any, member: str) -> Any:
        for token in self._tokens(member):
            document = document[self._existing(document, token)]
        return document

    def _opened(self, document: Any, tokens: Tokens) -> tuple[Any, Any]:
        """The document with everything on the way to a place copied, and the copy of the container it is in."""
        root = parent = _copied(document)
        for token in tokens[:-1]:
            key = self._existing(parent, token)
            child = _copied(parent[key])
            parent[key] = child
            parent = child
        if not isinstance(parent, dict | list):
            raise self._nowhere(parent)
        return root, parent

    def _existing(self, container: Any, token: str) -> Any:
        """The key or the index of something that is there."""
        if isinstance(container, dict):
            if token not in container:
                raise self._wrong("path", token, "a key that exists")
            return token
        if isinstance(container, list):
            return self._index(token, len(container) - 1)
        raise self._nowhere(container)

    def _index(self, token: str, highest: int) -> int:
        if not _INDEX.fullmatch(token):
            raise self._wrong("path", token, "an index without leading zeros")
        if int(token) > highest:
            raise self._wrong(
                "path", token, f"an index up to {highest}" if highest >= 0 else "no index: the list is empty"
            )
        return int(token)

    def _tokens(self, member: str) -> Tokens:
        text = self._operation.get(member)
        if not isinstance(text, str) or (text and not text.startswith("/")) or _BAD_ESCAPE.search(text):
            raise self._wrong(member, text, "a JSON pointer such as /metadata/annotations/carrel.dev~1tier")
        return tuple(token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:])

    def _value(self) -> Any:
        if "value" not in self._operation:
            raise self._wrong("value", None, "a value (null is one, if it is written)")
        return self._operation["value"]

    def _nowhere(self, container: Any) -> Malformed:
        return self._wrong(
            "path", self._operation.get("path"), f"a place in an object or a list, not in {container!r:.40}"
        )

    def _wrong(self, field: str, value: object, expected: str) -> Malformed:
        op, path = self._operation.get("op"), self._operation.get("path")
        return Malformed(f"JSON patch, operation {self._number} ({op!s:.20} {path!s:.200})", field, value, expected)


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0 (RFC 6902 §4.6), and `true` is not 1, as it is in Python."""
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _copied(container: Any) -> Any:
    return container.copy() if isinstance(container, dict | list) else container


def _diff(before: Any, after: Any, at: str, found: list[dict[str, Any]]) -> None:
    # Into a list that is passed down: a generator within a generator would hand each operation up step by step.
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            if key not in after:
                found.append({"op": "remove", "path": f"{at}/{escape(key)}"})
        for key, value in after.items():
            if key not in before:
                found.append({"op": "add", "path": f"{at}/{escape(key)}", "value": value})
            elif before[key] is not value:  # most of a document is shared with what it was made from
                _diff(before[key], value, f"{at}/{escape(key)}", found)
    elif isinstance(before, list) and isinstance(after, list):
        _diff_lists(before, after, at, found)
    elif not same(before, after):
        found.append({"op": "replace", "path": at, "value": after})


def _diff_lists(before: list[Any], after: list[Any], at: str, found: list[dict[str, Any]]) -> None:
    shorter = min(len(before), len(after))
    head = next((i for i in range(shorter) if not same(before[i], after[i])), shorter)
    tail = next((i for i in range(shorter - head) if not same(before[-1 - i], after[-1 - i])), shorter - head)
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if max(len(old), len(new)) > MOST_CHANGED:
        found.append({"op": "replace", "path": at, "value": after})
        return
    both = min(len(old), len(new))
    for i in range(both):
        _diff(old[i], new[i], f"{at}/{head + i}", found)
    for i in reversed(range(both, len(old))):
        found.append({"op": "remove", "path": f"{at}/{head + i}"})
    for i in range(both, len(new)):
        found.append({"op": "add", "path": f"{at}/{head + i}", "value": new[i]})
