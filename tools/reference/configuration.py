"""configuration.md: each field of the configuration with its default, its reason, and when a change takes effect."""

import dataclasses
import inspect
import json
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_origin, get_type_hints

from carrel.configuration.fields import INFO, Change, Info, key_of
from carrel.configuration.moved import MOVED
from carrel.configuration.reading import PEOPLE_MAY_CHANGE, plain
from carrel.configuration.schema import Configuration
from tools.chart_config import MOVED_VALUES
from tools.reference import Page, code, document, table
from tools.reference.settings import reasons

EFFECT = {Change.AT_ONCE: "at once", Change.RESTART: "after a restart", Change.WHEN_FREE: "while no GPU is held"}

EXACTLY = {
    Change.AT_ONCE: "within seconds, in all components, without a restart",
    Change.RESTART: Change.RESTART.value,
    Change.WHEN_FREE: Change.WHEN_FREE.value,
}
MOVED_INTRODUCTION = (
    "Carrel 0.1 had these as options of its processes. Who gives one, or its variable, is told where it went."
)


def page() -> Page:
    missing: list[str] = []
    parts = [_section(path, kind, missing) for path, kind in _sections("", Configuration)]
    changed = " and ".join(code(each) for each in PEOPLE_MAY_CHANGE)
    effects = "\n".join(f"- **{EFFECT[each]}**: {EXACTLY[each]}." for each in Change)
    introduction = (
        "Everything that the admins of a cluster decide, in one file: how it is given and changed is in"
        f" [configuration.md](../configuration.md). What is not in the file has its default. People change {changed} on"
        " the admin page too.\n\nWhen a change takes effect:\n\n" + effects
    )
    parts += [
        "## Options that moved",
        MOVED_INTRODUCTION,
        _options_that_moved(),
        "Values of the chart:",
        _moved_values(),
    ]
    return Page("configuration.md", document("Configuration", introduction, *parts), tuple(missing))


def _options_that_moved() -> str:
    rows = [[code(each.option), code(each.variable), code(each.field), each.more] for each in MOVED]
    return table(["option", "variable", "field", "note"], rows)


def _moved_values() -> str:
    rows = [[code(value), code(where.split(",")[0]), where.partition(", ")[2]] for value, where in MOVED_VALUES.items()]
    return table(["value", "is now", "and"], rows)


def _sections(path: str, kind: type) -> Iterator[tuple[str, type]]:
    """Every section that has fields of its own, in the order of the file."""
    hints = get_type_hints(kind)
    if any(INFO in each.metadata for each in dataclasses.fields(kind)):
        yield path, kind
    for each in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[each.name]):
            here = f"{path}.{key_of(each.name)}" if path else key_of(each.name)
            yield from _sections(here, hints[each.name])


def _section(path: str, kind: type, missing: list[str]) -> str:
    hints, why, rows = get_type_hints(kind), reasons(kind), []
    for each in dataclasses.fields(kind):
        info: Info | None = each.metadata.get(INFO)
        if info is None:
            continue
        name = f"{path}.{key_of(each.name)}"
        if not info.help:
            missing.append(f"{name}: has no meaning")
        default = getattr(kind(), each.name)
        meaning = " ".join(filter(None, [info.help, why.get(each.name, ""), _words(hints[each.name], info)]))
        rows.append([code(name), code(_written(plain(default))), EFFECT[info.change], meaning])
    about = inspect.getdoc(kind) or ""
    return "\n\n".join(
        [f"## {path}", about, table(["field", "default", "a change is in force", "meaning, and why"], rows)]
    )


def _words(hint: Any, info: Info) -> str:
    """What may be written: the words, or the limits, or an example."""
    if get_origin(hint) is None and issubclass(hint, Enum):
        return f"One of {', '.join(code(str(each.value)) for each in hint)}."
    limits = [
        f"{word} {code(_written(plain(each)))}"
        for word, each in (("from", info.least), ("to", info.most))
        if each is not None
    ]
    known = f"{' '.join(limits).capitalize()}." if limits else ""
    return f"{known} Example: {code(info.example)}" if info.example else known


def _written(value: object) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)
