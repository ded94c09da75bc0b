"""Label selectors and field selectors, in Kubernetes' own syntax.

Pure. Reading is as strict as the real API server: label keys and values are checked, an escape must be a known one, and
whatever cannot be understood raises `MalformedInput`. `str()` of a selector parses back to an equal selector.
Which fields a kind can be selected by is not known here; the caller looks at `FieldSelector.fields`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kubernetes_in_memory.malformed_input import MalformedInput

_TOKEN = re.compile(r"==|!=|[=!(),<>]|[^\s=!(),<>]+")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_SYMBOLS = frozenset(("==", "!=", "=", "!", "(", ")", ",", "<", ">"))
_WORDS = {
    "=": "In",
    "==": "In",
    "in": "In",
    "!=": "NotIn",
    "notin": "NotIn",
    ">": "Gt",
    "<": "Lt",
}
"""The operators as written in a query, and as `matchExpressions` names them: `a=b` asks the same as `a in (b)`."""


@dataclass(frozen=True, slots=True)
class Requirement:
    key: str
    operator: str
    """`In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`."""
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                # An object without the label is not in the set either.
                return value is None or value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        if value is None or not _INTEGER.fullmatch(value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == "Gt" else int(value) < bound

    def __str__(self) -> str:
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "Gt" | "Lt":
                return f"{self.key}{'>' if self.operator == 'Gt' else '<'}{next(iter(self.values))}"
        return f"{self.key} {self.operator.lower()} ({','.join(sorted(self.values))})"


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Matches labels that meet every requirement; without requirements it matches everything."""

    requirements: tuple[Requirement, ...] = ()
    EVERYTHING: ClassVar["LabelSelector"]
    NOTHING: ClassVar["LabelSelector"]

    @classmethod
    def parse(cls, text: str) -> "LabelSelector":
        return cls(tuple(_Reader(text).requirements()))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


LabelSelector.EVERYTHING = LabelSelector()
LabelSelector.NOTHING = LabelSelector((Requirement("nothing", "In"),))


def label_selector_of(document: Mapping[str, Any] | None) -> LabelSelector:
    """A spec's selector (`matchLabels`, `matchExpressions`). No selector selects nothing, an empty one everything."""
    if document is None:
        return LabelSelector.NOTHING
    subject = "label selector"
    found = [
        _checked(subject, key, "In", [value])
        for key, value in _mapping(subject, "matchLabels", document.get("matchLabels")).items()
    ]
    for index, expression in enumerate(document.get("matchExpressions") or ()):
        place = f"matchExpressions[{index}]"
        parts = _mapping(subject, place, expression)
        operator, values = parts.get("operator"), parts.get("values") or []
        if operator not in ("In", "NotIn", "Exists", "DoesNotExist"):
            raise MalformedInput(subject, f"{place}.operator", operator, "In, NotIn, Exists or DoesNotExist")
        if bool(values) != (operator in ("In", "NotIn")):
            raise MalformedInput(subject, f"{place}.values", values, "values for In and NotIn, none for the others")
        found.append(_checked(subject, parts.get("key"), operator, values))
    return LabelSelector(tuple(found))


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    field: str
    value: str
    equal: bool

    def __str__(self) -> str:
        escaped = re.sub(r"([\\,=])", r"\\\1", self.value)
        return f"{self.field}{'=' if self.equal else '!='}{escaped}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Matches an object whose fields all (do not) have the given values. A missing field counts as empty."""

    requirements: tuple[FieldRequirement, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "FieldSelector":
        return cls(tuple(_field_requirement(text, term) for term in _terms(text)))

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(requirement.field for requirement in self.requirements)

    def matches(self, lookup: Callable[[str], str]) -> bool:
        return all((lookup(want.field) == want.value) is want.equal for want in self.requirements)

    def __str__(self) -> str:
        return ",".join(map(str, self.requirements))


class _Reader:
    """Reads a label selector, token by token. `in` and `notin` are operators only where an operator is expected."""

    def __init__(self, text: str) -> None:
        self._subject = f"label selector {text!r}"
        self._tokens: list[str] = [*_TOKEN.findall(text), ""]
        self._at = 0

    def requirements(self) -> Iterable[Requirement]:
        if not self._next:
            return
        while True:
            yield self._requirement()
            if not self._next:
                return
            self._take(",")

    def _requirement(self) -> Requirement:
        if self._next == "!":
            self._take("!")
            return _checked(self._subject, self._word("a label key"), "DoesNotExist")
        key = self._word("! or a label key")
        if self._next in ("", ","):
            return _checked(self._subject, key, "Exists")
        sign = self._take(*_WORDS)
        return _checked(
            self._subject, key, _WORDS[sign], self._values() if sign in ("in", "notin") else [self._value()]
        )

    def _values(self) -> list[str]:
        self._take("(")
        values = [self._value()]
        while self._next == ",":
            self._take(",")
            values.append(self._value())
        self._take(")")
        return values

    def _value(self) -> str:
        """A value may be empty: `a=`, `a in ()` and `a in (,b)` all ask for the empty value."""
        return "" if self._next in ("", ",", ")") else self._word("a label value")

    def _word(self, expected: str) -> str:
        if not self._next or self._next in _SYMBOLS:
            raise self._unexpected(expected)
        return self._take(self._next)

    def _take(self, *expected: str) -> str:
        token = self._next
        if token not in expected:
            raise self._unexpected(" or ".join(repr(each) for each in expected))
        self._at += 1
        return token

    @property
    def _next(self) -> str:
        return self._tokens[self._at]

    def _unexpected(self, expected: str) -> MalformedInput:
        return MalformedInput(self._subject, f"word {self._at + 1}", self._next or "its end", expected)


def _checked(subject: str, key: Any, operator: str, values: Iterable[Any] = ()) -> Requirement:
    if not is_label_key(key):
        raise MalformedInput(
            subject, "a label key", key, "a name of at most 63 characters, with an optional DNS prefix/"
        )
    for value in values:
        if operator in ("Gt", "Lt"):
            if not _INTEGER.fullmatch(value):
                raise MalformedInput(subject, f"the bound of {key}", value, "an integer")
        elif not is_label_value(value):
            raise MalformedInput(subject, f"a value of {key}", value, "at most 63 letters, digits, '-', '_' or '.'")
    return Requirement(key, operator, frozenset(values))


def is_label_key(key: Any) -> bool:
    """`name` or `prefix/name`, as labels and annotations are keyed."""
    if not isinstance(key, str):
        return False
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _NAME.fullmatch(name) is not None


def is_label_value(value: Any) -> bool:
    return isinstance(value, str) and (not value or (len(value) <= 63 and _NAME.fullmatch(value) is not None))


def _mapping(subject: str, place: str, value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MalformedInput(subject, place, value, "an object")
    return value


def _terms(text: str) -> list[str]:
    """Cut at commas that no backslash escapes; empty terms ask nothing."""
    terms: list[str] = re.findall(r"(?:\\.|\\\Z|[^,\\])+", text, re.DOTALL)
    return terms


def _field_requirement(text: str, term: str) -> FieldRequirement:
    subject = f"field selector {text!r}"
    found = re.fullmatch(r"((?:\\.|[^\\=!]|!(?!=))*)(!=|==|=)(.*)", term, re.DOTALL)
    if not found:
        raise MalformedInput(subject, "a requirement", term, "field=value, field==value or field!=value")
    field, operator, escaped = found.groups()
    if not re.fullmatch(r"(\\[\\,=]|[^\\,=])*", escaped, re.DOTALL):
        raise MalformedInput(
            subject, f"the value of {field}", escaped, r"'\', ',' and '=' written as '\\', '\,' and '\='"
        )
    return FieldRequirement(field, re.sub(r"\\(.)", r"\1", escaped), operator != "!=")
