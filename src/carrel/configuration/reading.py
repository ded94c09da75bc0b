"""Reads and writes the configuration's file: all mistakes at once, and nothing of a file that has one."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, TypeVar, get_origin, get_type_hints

import yaml

from carrel.configuration.contradictions import contradictions
from carrel.configuration.fields import INFO, Info, key_of
from carrel.configuration.schema import Configuration
from carrel.parsing.printable import printable

T = TypeVar("T")

LARGEST = 256 * 1024
"""Bytes. A lab's file has a few hundred; one with the addresses of all users of a university has more. The record has
two such files, and an object of Kubernetes at most a megabyte."""
DEEPEST = 20
"""Sections within sections. A file of the schema has five."""
SHOWN = 60
"""Characters of a wrong value that are shown."""
LONGEST_NUMBER = 40
"""Characters. Longer ones are no number of anything here, and Python does not write those of thousands of digits."""
MOST_SAID, LONGEST_SAID = 20, 400
"""Mistakes, and characters of each, that are said of one configuration: they are written into the record and Events."""
UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}
_TIME = re.compile(r"([0-9]{1,9})([dhms])", re.ASCII)
GIVEN, CHANGED = "carrel.yaml", "what people changed"
"""What the two texts are called in mistakes."""
PEOPLE_MAY_CHANGE = ("bookings.rules", "tiers")
"""Sections that the second object may have: what people change on the admin page and by `carrel config set`."""


class Unusable(Exception):
    """A configuration that cannot be used: everything that is wrong with it."""

    def __init__(self, mistakes: list[str]) -> None:
        self.mistakes = [shortened(each, LONGEST_SAID) for each in mistakes[:MOST_SAID]]
        if len(mistakes) > MOST_SAID:
            self.mistakes.append(f"and {len(mistakes) - MOST_SAID:,} more mistakes")
        super().__init__("; ".join(self.mistakes))


def read(text: str, changed_by_people: str = "") -> Configuration:
    """Return what the file says, with what people have changed laid over it.

    Raises `Unusable`, with all that is wrong in both.
    """
    mistakes: list[str] = []
    first, second = _content(text, GIVEN, mistakes), {}
    _section(Configuration, first, "", mistakes)
    if changed_by_people.strip():
        second, theirs = _content(changed_by_people, CHANGED, mistakes), list[str]()
        mistakes += _not_theirs(second)
        _section(Configuration, second, "", theirs)
        mistakes += [f"{each} ({CHANGED})" for each in theirs]
    if not mistakes:
        made = _section(Configuration, laid_over(first, second), "", mistakes)
        mistakes += contradictions(made)
    if mistakes:
        raise Unusable(mistakes)
    return made


def content_of(text: str, name: str = GIVEN) -> dict[str, Any]:
    """Return what a file says, as it is written: none of its fields is looked at. Empty, if the file is.

    Raises `Unusable`.
    """
    mistakes: list[str] = []
    content = _content(text, name, mistakes) if text.strip() else {}
    if mistakes:
        raise Unusable(mistakes)
    return content


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both; where both have a value, that of the second."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = laid_over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def leaves(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of everything in a file that is no section."""
    for key, value in content.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping) and here != "hubs.users":
            yield from leaves(value, here)
        else:
            yield here, value


def may_people_change(path: str) -> bool:
    return path.startswith(tuple(f"{section}." for section in PEOPLE_MAY_CHANGE))


def _not_theirs(content: Mapping[str, Any]) -> Iterator[str]:
    for path, _ in leaves(content):
        if not may_people_change(path) and path not in PEOPLE_MAY_CHANGE:
            shown = printable(path)[:SHOWN]
            yield f"{shown} cannot be changed here, only {' and '.join(PEOPLE_MAY_CHANGE)}: change carrel.yaml"


def _content(text: str, name: str, mistakes: list[str]) -> dict[str, Any]:
    """Return the file as a mapping. One that is none is a mistake, and so is one that only pretends to be short."""
    if (size := len(text.encode(errors="replace"))) > LARGEST:
        mistakes.append(f"{name} has {size:,} bytes; at most {LARGEST:,} are read")
        return {}
    try:
        content = _loaded(text)
    except _Unread as error:
        mistakes.append(f"{name}, {error}")
        return {}
    except ValueError as error:
        mistakes.append(f"{name} is no YAML: {' '.join(str(error).split())[:300]}")
        return {}
    if content is None:
        mistakes.append(f"{name} is empty; write {{}} if you want all defaults")
    elif not isinstance(content, dict):
        mistakes.append(f"{name} is {_shown(content)}; expected sections such as memory: {{unit: GiB}}")
    return content if isinstance(content, dict) else {}


class _Unread(Exception):
    """YAML that has more than is read here."""


def _loaded(text: str) -> object:
    """Return what a text says. Raises `ValueError` if it is no YAML, or `_Unread`."""
    try:
        _refuse_unread(text)
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 # a safe loader that refuses repeated keys
    except (yaml.YAMLError, ArithmeticError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _refuse_unread(text: str) -> None:
    """What a short text can do to its reader: it may mean much by aliases, and be so deep that nobody can go through
    it; and PyYAML stumbles over tags that do not fit their value. Raises `_Unread` or `YAMLError`."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Unread(f"{line}: anchors and aliases are not read")
        if getattr(event, "tag", None) is not None:
            raise _Unread(f"{line}: tags such as !!str are not read")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise _Unread(f"{line}: more than {DEEPEST} levels are not read")


class _PlainLoader(yaml.CSafeLoader):
    """Reads plain values only; a key that is there twice is an error instead of one value by chance."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        words = Counter(str(key.value) for key, _ in node.value)
        why = "<< is not read" if "<<" in words else ""
        if twice := [word for word, count in words.items() if count > 1]:
            why = f"{twice[0]} is there twice"
        if why:
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found

    def construct_number(self, node: Any) -> int | float:
        if len(node.value) > LONGEST_NUMBER:
            why = f"{shortened(node.value, SHOWN)} is too long for a number"
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        is_whole = node.tag == "tag:yaml.org,2002:int"
        made: int | float = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
        return made


for _kind in ("int", "float"):
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _PlainLoader.construct_number)


def _section(kind: type[T], content: object, path: str, mistakes: list[str]) -> T:
    """Return a section. What is wrong in it has its default, and is added to the mistakes."""
    assert is_dataclass(kind)
    if not isinstance(content, dict):
        mistakes.append(f"{path} is {_shown(content)}; expected a section with fields")
        return kind()
    hints = get_type_hints(kind)
    known = {key_of(each.name): each for each in fields(kind)}
    unknown = [str(each) for each in content if each not in known]
    # Looking for the nearest known word takes time: not for thousands.
    mistakes.extend(_unknown(_joined(path, key), key, known) for key in unknown[:MOST_SAID])
    mistakes.extend(f"{printable(_joined(path, key))} is no field" for key in unknown[MOST_SAID:])
    given: dict[str, Any] = {}
    for key, each in known.items():
        if key not in content:
            continue
        here = _joined(path, key)
        hint = hints[each.name]
        if is_dataclass(hint):
            given[each.name] = _section(hint, content[key], here, mistakes)  # type: ignore[arg-type] # a class
        else:
            try:
                given[each.name] = _value(hint, content[key], each.metadata[INFO])
            except ValueError as error:
                mistakes.append(f"{here} is {_shown(content[key])}; expected {error}")
    return kind(**given)


OFF = "off"
"""YAML reads it as false where it has no quotes."""


def _value(hint: Any, value: object, info: Info) -> object:
    """Raises `ValueError` with what was expected."""
    if get_origin(hint) is tuple:
        if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            return tuple(value)
        raise ValueError(f"a list of words{_such_as(info)}")
    if get_origin(hint) is not None:
        if isinstance(value, dict) and all(isinstance(each, str) for pair in value.items() for each in pair):
            return dict(value)
        raise ValueError(f"a word for each name{_such_as(info)}")
    if isinstance(hint, type) and issubclass(hint, Enum):
        word = OFF if value is False else value
        if word in [each.value for each in hint]:
            return hint(word)
        raise ValueError(" or ".join(str(each.value) for each in hint))
    if hint is bool or hint is str:
        if type(value) is hint:
            return value
        raise ValueError(
            "true or false" if hint is bool else f"a word, in quotes if it looks like something else{_such_as(info)}"
        )
    if hint is int:
        if type(value) is not int or not _is_within(value, info):
            raise ValueError(f"a whole number{_range(info)}")
        return value
    assert hint is timedelta
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    length = int(match[1]) * UNITS[match[2]] if match and int(match[1]) <= timedelta.max // UNITS[match[2]] else None
    if length is None or not _is_within(length, info):
        raise ValueError(f"a length of time such as 90s, 10m, 24h or 14d{_range(info)}")
    return length


def _is_within(value: Any, info: Info) -> bool:
    return (info.least is None or info.least <= value) and (info.most is None or value <= info.most)


def _range(info: Info) -> str:
    least = "" if info.least is None else f" from {plain(info.least)}"
    return f",{least}" + ("" if info.most is None else f" to {plain(info.most)}") if least or info.most else ""


def _such_as(info: Info) -> str:
    return f" such as {info.example}" if info.example else ""


def _unknown(path: str, key: str, known: Mapping[str, object]) -> str:
    near = nearest(key, known)
    meant = f"; did you mean {near}?" if near else f"; there are {', '.join(known)}"
    return f"{printable(path)[:SHOWN]} is no field{meant}"


def nearest(key: str, known: Iterable[str]) -> str:
    """Return the known word that was probably meant; empty: none."""
    words = {each.lower(): each for each in known}
    return next((words[near] for near in difflib.get_close_matches(key.lower(), words, 1, 0.6)), "")


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(value: object) -> str:
    return repr(shortened(printable(str(value)), SHOWN))


def shortened(text: str, most: int) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= most else f"{text[:most]}…"


def typed(text: str) -> object:
    """Return a value that somebody typed, as the file would have it: `4`, `true`, `14d`, `[a, b]`."""
    try:
        return _loaded(text)
    except (ValueError, _Unread):
        return text


def with_value(content: Mapping[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return the file's content with another value at a path; None takes it out."""
    first, _, rest = path.partition(".")
    inner = content.get(first)
    new = with_value(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value
    left = {key: each for key, each in content.items() if key != first}
    return left if new is None or new == {} else {**content, first: new}


# --- writing ---------------------------------------------------------------------------------------------------------


def plain(value: object) -> Any:
    """Return a value as it is written in the file."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, timedelta):
        unit = next((each for each, length in UNITS.items() if value and not value % length), "s")
        return f"{value // UNITS[unit]}{unit}"
    return value


@dataclass(frozen=True, slots=True)
class Leaf:
    """One field of the configuration, with its value."""

    path: str
    value: Any
    """As it is written in the file."""
    info: Info
    default: Any = None
    choices: Sequence[str] = ()
    """All values that there are; empty: any number."""


def every_field(of: object, path: str = "", usual: object = None) -> Iterator[Leaf]:
    """Yield all fields of a configuration, or of one of its sections."""
    usual = usual if usual is not None else type(of)()
    for each in fields(of):  # type: ignore[arg-type] # a dataclass
        here, value = _joined(path, key_of(each.name)), getattr(of, each.name)
        if is_dataclass(value):
            yield from every_field(value, here, getattr(usual, each.name))
        else:
            yield Leaf(here, plain(value), each.metadata[INFO], plain(getattr(usual, each.name)), _choices(value))


def _choices(value: object) -> Sequence[str]:
    if isinstance(value, Enum):
        return [each.value for each in type(value)]
    return ("true", "false") if isinstance(value, bool) else ()


def written(of: Configuration) -> str:
    """Return the file that says this configuration, with all that differs from the defaults."""
    return as_text(content_with(leaf for leaf in every_field(of) if leaf.value != leaf.default))


def content_with(fields: Iterable[Leaf]) -> dict[str, Any]:
    """Return the content of a file that has these fields."""
    content: dict[str, Any] = {}
    for leaf in fields:
        content = with_value(content, leaf.path, leaf.value)
    return content


def as_text(content: Mapping[str, Any]) -> str:
    """Return the file with this content."""
    text: str = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
    # Some characters that end a line are read as blanks; escaped, they are not.
    return (
        text if yaml.load(text, Loader=yaml.CSafeLoader) == content else yaml.safe_dump(dict(content), sort_keys=False)
    )
