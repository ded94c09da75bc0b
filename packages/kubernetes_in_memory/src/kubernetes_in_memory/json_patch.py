"""Applies a JSON Patch (RFC 6902) to plain Python values.

The result is a new document; neither the old one nor the operations are mutated. What did not change is shared with
them, so nobody may mutate it later. A patch that cannot be applied raises `MalformedInput`, which names the operation;
then nothing was changed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes_in_memory.malformed_input import MalformedInput

Operation = Mapping[str, Any]
Tokens = tuple[str, ...]

# RFC 6901 §4: digits without leading zeros. No sane document has a list of ten billion items, and int() has its limits.
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_BAD_ESCAPE = re.compile(r"~(?![01])")


def apply(document: Any, operations: Sequence[Operation]) -> Any:
    """All operations in order, or none: the first that fails raises."""
    if not isinstance(operations, list | tuple):
        raise MalformedInput("JSON patch", "the patch", operations, "a list of operations")
    for number, operation in enumerate(operations):
        if not isinstance(operation, Mapping):
            raise MalformedInput("JSON patch", f"operation {number}", operation, "an object with op and path")
        document = _Operation(number, operation).apply_to(document)
    return document


class _Operation:
    """One operation of a patch, applied to one document."""

    def __init__(self, number: int, operation: Operation) -> None:
        self._number = number
        self._operation = operation

    def apply_to(self, document: Any) -> Any:
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
        if not equal(found, wanted):
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
        """A copy of the document along the path to a place, and the copy of the container of that place."""
        root = parent = _copied(document)
        for token in tokens[:-1]:
            key = self._existing(parent, token)
            child = _copied(parent[key])
            parent[key] = child
            parent = child
        if not isinstance(parent, dict | list):
            raise self._no_container(parent)
        return root, parent

    def _existing(self, container: Any, token: str) -> Any:
        """The key or the index of an existing value."""
        if isinstance(container, dict):
            if token not in container:
                raise self._wrong("path", token, "a key that exists")
            return token
        if isinstance(container, list):
            return self._index(token, len(container) - 1)
        raise self._no_container(container)

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
            raise self._wrong(member, text, "a JSON pointer such as /metadata/annotations/example.com~1owner")
        return tuple(token.replace("~1", "/").replace("~0", "~") for token in text.split("/")[1:])

    def _value(self) -> Any:
        if "value" not in self._operation:
            raise self._wrong("value", None, "a value (null is one, if it is written)")
        return self._operation["value"]

    def _no_container(self, container: Any) -> MalformedInput:
        return self._wrong(
            "path", self._operation.get("path"), f"a place in an object or a list, not in {container!r:.40}"
        )

    def _wrong(self, field: str, value: object, expected: str) -> MalformedInput:
        op, path = self._operation.get("op"), self._operation.get("path")
        return MalformedInput(
            f"JSON patch, operation {self._number} ({op!s:.20} {path!s:.200})", field, value, expected
        )


def equal(left: Any, right: Any) -> bool:
    """As RFC 6902 §4.6 compares JSON: 1 equals 1.0, and `true` does not equal 1, as it does in Python."""
    match left, right:
        case dict(), dict():
            return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
        case list(), list():
            return len(left) == len(right) and all(equal(*pair) for pair in zip(left, right, strict=True))
        case _:
            return (type(left) is bool) is (type(right) is bool) and bool(left == right)


def _copied(container: Any) -> Any:
    return container.copy() if isinstance(container, dict | list) else container
