"""How the configuration is written for people: tables, one field with its reason, and a file to start from."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from itertools import takewhile
from typing import Any

import yaml

from carrel.cli.output import aligned
from carrel.cluster.configuration_changes import Source, recorded_at
from carrel.cluster.configuration_record import Record
from carrel.configuration.current import FieldChange
from carrel.configuration.fields import Change
from carrel.configuration.reading import Leaf, every_field, may_people_change, plain
from carrel.configuration.reasons import reasons
from carrel.configuration.schema import Configuration

WIDTH = 100
"""Of comments in a file."""
INDENT = "  "


def value_text(value: Any) -> str:
    """A value in one line, as it can be written in the file: `14d`, `[a, b]`, `""`."""
    text: str = yaml.safe_dump(
        dict(value) if isinstance(value, Mapping) else value, default_flow_style=True, width=10_000, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...").strip() if value != "" else '""'


def refused_lines(record: Record, zone: tzinfo) -> list[str]:
    """Loud, if what is given is not in force."""
    if not record.refused.mistakes:
        return []
    since = recorded_at(record.refused.at, zone)
    return [
        f"✗ What is given now is refused since {since}. The last good configuration goes on:",
        *(f"    {mistake}" for mistake in record.refused.mistakes),
        "",
    ]


def table(leaves: Iterable[Leaf], sources: Mapping[str, Source]) -> list[str]:
    rows = [[leaf.path, value_text(leaf.value), str(sources[leaf.path])] for leaf in leaves]
    return aligned([["FIELD", "VALUE", "SOURCE"], *rows])


def one_field(leaf: Leaf, source: Source) -> list[str]:
    """All that is known of a field."""
    why = f" ({source.reason})" if source.reason else ""
    said = [
        f"{leaf.path}: {value_text(leaf.value)}",
        "",
        f"  Meaning:  {leaf.info.help}",
        f"  Reason:   {reasons().get(leaf.path, '')}",
        f"  Default:  {value_text(leaf.default)}",
        f"  Example:  {leaf.info.example}" if leaf.info.example else "",
        f"  Limits:   {limits(leaf)}" if limits(leaf) else "",
        f"  Source:   {source}{why}",
        f"  Changes:  take effect {leaf.info.change.value}",
        f"  Change:   {how_to_change(leaf.path)}",
    ]
    return [line for number, line in enumerate(said) if number == 1 or line.partition(":")[2].strip()]


def limits(leaf: Leaf) -> str:
    least, most = leaf.info.least, leaf.info.most
    said = [
        f"at least {plain(least)}" if least is not None else "",
        f"at most {plain(most)}" if most is not None else "",
    ]
    return ", ".join(filter(None, said))


def how_to_change(path: str) -> str:
    helm = f"the helm value config.{path}"
    return f"carrel config set {path} VALUE --reason …, or {helm}" if may_people_change(path) else helm


def changes_table(changes: Iterable[FieldChange]) -> list[str]:
    """What changes, and when each change takes effect."""
    rows = [[each.path, value_text(each.old), value_text(each.new), WHEN[each.change]] for each in changes]
    return aligned([["FIELD", "NOW", "THEN", "TAKES EFFECT"], *rows])


WHEN = {
    Change.AT_ONCE: "at once",
    Change.RESTART: "after components have started again, by themselves",
    Change.WHEN_FREE: "only while no pod holds a GPU",
}


def defaults_file() -> str:
    """A file with all fields, each with its default and what it means. Fields without a default are shown by an example
    in the comment."""
    lines = [
        "# The configuration of Carrel: all fields with their defaults.",
        "# Leave out what you do not change. Lengths of time are written 90s, 10m, 24h or 14d.",
    ]
    open_sections: list[str] = []
    for leaf in every_field(Configuration()):
        *sections, key = leaf.path.split(".")
        start = len([*takewhile(lambda pair: pair[0] == pair[1], zip(sections, open_sections, strict=False))])
        if start == 0:
            lines.append("")
        lines += [f"{INDENT * depth}{sections[depth]}:" for depth in range(start, len(sections))]
        open_sections = sections
        lines += _commented(leaf, INDENT * len(sections), key)
    return "\n".join(lines) + "\n"


def _commented(leaf: Leaf, indent: str, key: str) -> Iterator[str]:
    example = f" Example: {leaf.info.example}" if leaf.info.example else ""
    for line in textwrap.wrap(f"{leaf.info.help}{example}", WIDTH - len(indent)):
        yield f"{indent}# {line}"
    yield f"{indent}{key}: {value_text(leaf.value)}"
