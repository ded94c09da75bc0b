"""Whoever comes from another system finds in the documents where Carrel does something else on purpose."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from carrel.configuration.reading import every_field, read
from carrel.configuration.schema import Configuration

DOCS = Path(__file__).parents[2] / "docs"
LIST: dict[str, list[dict[str, str]]] = yaml.safe_load((DOCS / "deviations.yaml").read_text())


def rows(section: str) -> list[str]:
    """Return the rows of the tables of that section."""
    text = (DOCS / "differences.md").read_text()
    _, found, after = text.partition(f"\n## {section}\n")
    assert found, f"differences.md has no section {section}"
    return [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("| ")]


@pytest.mark.parametrize(
    ("section", "deviation"), [(section, each) for section, entries in LIST.items() for each in entries]
)
def test_a_deviation_has_one_row_with_the_setting_that_gives_the_documented_behaviour(
    section: str, deviation: dict[str, str]
) -> None:
    found = [row for row in rows(section) if deviation["row"] in row]
    assert len(found) == 1, f"one row of {section} in differences.md says: {deviation['row']}"
    assert found[0].count(" | ") == 2, "what the document says, what Carrel does, why"
    if setting := deviation.get("setting"):
        ((path, value),) = chosen(setting)
        assert f"`{path}" in found[0], f"the row names {path}"
        assert value in found[0], f"the row says {value}"


def chosen(setting: str) -> list[tuple[str, str]]:
    """Return the field that the setting gives, and its value. The configuration must take it."""
    read(setting)
    known = {each.path for each in every_field(Configuration())}

    def below(part: Any, path: str) -> list[tuple[str, str]]:
        if path in known:
            value = part[0] if isinstance(part, list) else part
            return [(path, str(value))]
        return [each for key, more in part.items() for each in below(more, f"{path}.{key}".lstrip("."))]

    return below(yaml.safe_load(setting), "")


def test_the_systems_that_documents_describe_are_all_there() -> None:
    assert {*LIST} == {"MAIA", "gpushare's manifests", "gpushare's node side", "GpuClaim scheduler", "KAI"}
