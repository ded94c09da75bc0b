"""What is wrong in a document, in our words: msgspec's message says where and what, and of the value only its kind."""

import re
from dataclasses import dataclass

from carrel.parsing.malformed import Malformed

_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "null": "nothing",
}
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_GOT = re.compile(r", got `([^`]*)`")
_BOUND = re.compile(r"(a (?:whole )?number) (>=|<=) (-?[0-9]+)(?:\.0)?")
_OUT_OF_RANGE = " out of range"
"""How msgspec's messages end about a number of thousands of digits, or with a huge exponent."""
_CHOICE = re.compile(r"a text matching regex '\^\(([^()]*)\)\$'")


@dataclass(frozen=True, slots=True)
class Mistake:
    path: str
    """As `$.nodes[0].gpus`; `$` is the whole document."""
    value: object
    expected: str


class _Words(str):
    """Stands for a value that is not known: shown without quotes."""

    __repr__ = str.__str__


def malformed(subject: str, error: Exception, within: str = "") -> Malformed:
    """The error for a document that msgspec could not read; `within`: the path of what it read."""
    what, _, rest = str(error).partition(" - at `")
    path = f"{within}{rest.removeprefix('key` in `').rstrip('`').removeprefix('$')}"
    missing = _MISSING.fullmatch(what)
    if missing:
        value, path, expected = "missing", f"{path}.{missing[1]}", "a value"
    else:
        kind, expected = _GOT.search(what), _expected(what)
        is_number = "number" in expected.partition(",")[0]
        otherwise = "another number" if is_number else "something else"
        value = _WORDS.get(kind[1], kind[1]) if kind else otherwise
    return Malformed(subject, path.removeprefix(".") or "the document", _Words(value), expected)


def mistake_in(document: object, message: str) -> Mistake:
    """`message` is msgspec's, of that document."""
    what, _, rest = message.partition(" - at `")
    path = rest.rstrip("`") or "$"
    return Mistake(path, _value_at(document, path), _expected(what))


def steps(path: str) -> list[str | int]:
    """`$.nodes[0].gpus` as ["nodes", 0, "gpus"]."""
    found: list[str | int] = []
    for part in path.removeprefix("$").replace("[", ".[").split("."):
        if part.startswith("["):
            found.append(int(part[1:-1]) if part[1:-1].isdigit() else part)
        elif part:
            found.append(part)
    return found


def _expected(what: str) -> str:
    """The end of our sentence, which already has the value."""
    if what.startswith("Expected "):
        kinds, _, more = what.removeprefix("Expected `").partition(", got ")[0].partition("`")
        words = " or ".join(_WORDS.get(kind, kind) for kind in kinds.split(" | "))
        found = f"{words} {more.strip()}".strip()
        if bound := _BOUND.fullmatch(found):
            return f"{bound[1]}, {bound[3]} {'or more' if bound[2] == '>=' else 'at most'}"
        choice = _CHOICE.fullmatch(found)
        return f"one of {', '.join(choice[1].split('|'))}" if choice else found
    if what.endswith(_OUT_OF_RANGE):
        return "a smaller number"
    return what.replace("Object contains", "no").replace("Object missing required", "the")


def _value_at(document: object, path: str) -> object:
    for step in steps(path):
        try:
            document = document[step]  # type: ignore[index] # a value that has no parts ends the loop
        except (TypeError, LookupError):
            break
    return document
