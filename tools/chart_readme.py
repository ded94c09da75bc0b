"""`python -m tools.chart_readme`: writes what is generated in the charts.

The block `config:` of the chart carrel, in its values.yaml and in the schema of its values, from the schema of the
configuration; the table of values in each README from the comments in its values.yaml; and the schema of the chart
gpu-booking, which has that of the chart carrel in it.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools import chart_config
from tools.reference import code, table

CHARTS = Path(__file__).parents[1] / "charts"
CHART, GPU_BOOKING = CHARTS / "carrel", CHARTS / "gpu-booking"
SCHEMA = "values.schema.json"
BEGIN, END = "<!-- values: written by `make reference` -->", "<!-- end of values -->"


@dataclass(frozen=True)
class Value:
    path: str
    default: Any
    comment: str
    """Empty: a sentence is missing."""


def values(chart: Path) -> Iterator[Value]:
    """Every value with its comment, in the order of the file. A map with a comment of its own is one value."""
    text = (chart / "values.yaml").read_text()
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


def readme(chart: Path) -> str:
    """The README with the table that belongs into it."""
    rows = [[code(each.path), code(json.dumps(each.default)), each.comment] for each in values(chart)]
    before, rest = (chart / "README.md").read_text().split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table(['value', 'default', 'meaning'], rows)}\n\n{END}{after}"


def values_with_config() -> str:
    """The values of the chart carrel with the block that belongs into them."""
    text = (CHART / "values.yaml").read_text()
    before, rest = text.split(chart_config.BEGIN)
    return (
        f"{before}{chart_config.BEGIN}\n\n{chart_config.block()}\n{chart_config.END}{rest.split(chart_config.END)[1]}"
    )


def carrel_schema() -> str:
    """The schema of the chart carrel with the part that belongs into it."""
    schema = json.loads((CHART / SCHEMA).read_text())
    chart_config.complete(schema)
    return f"{json.dumps(schema, indent=2)}\n"


def gpu_booking_schema() -> str:
    """Helm reads no schema of another file."""
    carrel = json.loads(carrel_schema().replace("#/definitions/", "#/properties/carrel/definitions/"))
    version = carrel.pop("$schema")
    texts = {name: {"type": "string"} for name in ("apiUrl", "gpuStatsUrl", "apiToken", "namespace")}
    schema = {
        "$schema": version,
        "title": "Values of the chart gpu-booking",
        "type": "object",
        "additionalProperties": False,
        "properties": {**texts, "carrel": carrel, "global": {"type": "object"}},
    }
    return f"{json.dumps(schema, indent=2)}\n"


def main() -> int:
    (CHART / "values.yaml").write_text(values_with_config())
    (CHART / SCHEMA).write_text(carrel_schema())
    for chart in (CHART, GPU_BOOKING):
        (chart / "README.md").write_text(readme(chart))
    (GPU_BOOKING / SCHEMA).write_text(gpu_booking_schema())
    return 0


if __name__ == "__main__":
    sys.exit(main())
