"""`python -m tools.chart_readme`: writes the table of values in the chart's README from the comments in values.yaml."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.reference import code, table

CHART = Path(__file__).parents[1] / "charts/carrel"
BEGIN, END = "<!-- values: written by `make reference` -->", "<!-- end of values -->"


@dataclass(frozen=True)
class Value:
    path: str
    default: Any
    comment: str
    """Empty: a sentence is missing."""


def values() -> Iterator[Value]:
    """Every value with its comment, in the order of the file. A map with a comment of its own is one value."""
    text = (CHART / "values.yaml").read_text()
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode)
    yield from _below(node, "", yaml.safe_load(text), text.splitlines())


def _below(node: yaml.MappingNode, path: str, content: Any, lines: list[str]) -> Iterator[Value]:
    for key, each in node.value:
        name, comment = f"{path}{key.value}", _comment_above(key.start_mark.line, lines)
        if isinstance(each, yaml.MappingNode) and not comment:
            yield from _below(each, f"{name}.", content[key.value], lines)
        else:
            yield Value(name, content[key.value], comment)


def _comment_above(line: int, lines: list[str]) -> str:
    found: list[str] = []
    while line > 0 and (words := re.match(r"\s*# (.*)", lines[line - 1])):
        found.insert(0, words[1])
        line -= 1
    return " ".join(found)


def readme() -> str:
    """The README with the table that belongs into it."""
    rows = [[code(each.path), code(json.dumps(each.default)), each.comment] for each in values()]
    before, rest = (CHART / "README.md").read_text().split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table(['value', 'default', 'meaning'], rows)}\n\n{END}{after}"


def main() -> int:
    (CHART / "README.md").write_text(readme())
    return 0


if __name__ == "__main__":
    sys.exit(main())
