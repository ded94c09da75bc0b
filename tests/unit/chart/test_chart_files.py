"""The files of the charts say what the program says, and what each other say. What helm makes of them: tests/e2e."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from carrel import __version__
from carrel.configuration.moved import MOVED
from carrel.configuration.reading import every_field, read
from carrel.configuration.schema import Configuration
from carrel.scheduling.scheduler_config import PEERS_SERVED
from carrel.settings import LogLevel
from tools.chart_config import MOVED_VALUES, is_moved
from tools.chart_readme import CHART, GPU_BOOKING, carrel_schema, gpu_booking_schema, readme, values, values_with_config
from tools.image import contents
from tools.reference import FOLDER

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


EACH_CHART = pytest.mark.parametrize("chart", [CHART, GPU_BOOKING], ids=lambda chart: chart.name)
REFERENCE = "run `make reference`, and commit what it wrote"


@EACH_CHART
def test_the_chart_has_the_version_of_the_program(chart: Path) -> None:
    described = yaml.safe_load((chart / "Chart.yaml").read_text())
    assert described["appVersion"] == __version__ == contents.version()
    assert described["version"] == yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]


@EACH_CHART
def test_the_readme_has_every_value_with_a_sentence(chart: Path) -> None:
    assert [each.path for each in values(chart) if not each.comment] == []
    assert (chart / "README.md").read_text() == readme(chart), REFERENCE


def test_the_configuration_in_the_chart_is_written_from_the_program() -> None:
    assert (CHART / "values.yaml").read_text() == values_with_config(), REFERENCE
    assert (CHART / "values.schema.json").read_text() == carrel_schema(), REFERENCE


def test_the_configuration_of_the_chart_says_what_the_program_does_without_one() -> None:
    assert read(yaml.safe_dump(VALUES["config"])) == Configuration()


def test_templates_read_only_fields_that_the_values_have() -> None:
    shown = {each.path for each in values(CHART)}
    for template in (CHART / "templates").rglob("*.*"):
        read_there = set(re.findall(r"(?:Values\.|\$)(config\.[A-Za-z.]+[A-Za-z])", template.read_text()))
        assert {each for each in read_there if each not in shown} == set(), template.name


def test_whoever_gives_what_moved_is_told_where_it_went() -> None:
    known = {leaf.path for leaf in every_field(Configuration())}
    assert {each.field for each in MOVED if each.field} <= known
    for where in MOVED_VALUES.values():
        path = where.split(",")[0].removeprefix("config.")
        assert any(f"{each}.".startswith(f"{path}.") for each in known), where
    assert SCHEMA["properties"]["whenFull"] == {"const": "moved to config.tiers.whenFull"}
    variables = SCHEMA["definitions"]["env"]["properties"]
    assert variables["CARREL_STRICT"] == {"const": "moved to config.pods.strict"}
    assert variables["CARREL_CDI_FOLDER"] == {"const": "moved to nowhere: leave it out"}


def test_gpu_booking_has_its_own_values_and_all_of_carrels() -> None:
    assert (GPU_BOOKING / "values.schema.json").read_text() == gpu_booking_schema(), REFERENCE
    given = yaml.safe_load((GPU_BOOKING / "values.yaml").read_text())
    assert {*given, "global"} == set(json.loads(gpu_booking_schema())["properties"])


def test_gpu_booking_has_every_file_that_carrels_templates_read() -> None:
    own = {"Chart.yaml", "README.md", "values.yaml", "values.schema.json", "templates", "examples"}
    read = {each.name for each in CHART.iterdir()} - own
    for name in read:
        assert (GPU_BOOKING / name).resolve() == (CHART / name).resolve(), f"ln -s ../carrel/{name}"
    assert (GPU_BOOKING / "carrel-templates").resolve() == CHART / "templates"
    assert (GPU_BOOKING / "templates/_carrel.tpl").resolve() == CHART / "templates/_helpers.tpl"
    assert [each.name for each in (CHART / "templates").glob("*.tpl")] == ["_helpers.tpl"], "link the others too"


def paths(content: dict[str, Any], schema: dict[str, Any], path: str = "") -> tuple[set[str], set[str]]:
    """Which keys the values have, and which the schema has, down to where the schema lets anything be written."""
    given, known = set[str](), set[str]()
    for key, each in content.items():
        given.add(f"{path}{key}")
        below = schema.get("properties", {}).get(key, {})
        if isinstance(each, dict) and "properties" in below:
            more_given, more_known = paths(each, below, f"{path}{key}.")
            given, known = given | more_given, known | more_known
    return given, known | {f"{path}{key}" for key, each in schema.get("properties", {}).items() if not is_moved(each)}


def test_values_and_schema_have_the_same_keys() -> None:
    given, known = paths(VALUES, SCHEMA)
    assert {each for each in known - given if not each.startswith("config.")} == {"global"}  # helm's own
    assert given <= known


def test_the_schema_allows_the_words_that_the_program_knows() -> None:
    assert sorted(SCHEMA["properties"]["logLevel"]["enum"]) == sorted(each.value for each in LogLevel)


def test_the_peers_schedulers_are_those_that_the_program_serves() -> None:
    assert tuple(VALUES["scheduler"]["peers"]) == PEERS_SERVED


def test_every_variable_in_the_templates_is_a_setting_of_the_program() -> None:
    used = set[str]()
    for template in (CHART / "templates").rglob("*.*"):
        used |= set(re.findall(r"\bCARREL_[A-Z_]+", template.read_text()))
    known = set(re.findall(r"`(CARREL_[A-Z_]+)`", (FOLDER / "commands.md").read_text()))
    assert used - known == set()
