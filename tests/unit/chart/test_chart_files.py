"""The files of the charts say what the program says, and what each other say. What helm makes of them: tests/e2e."""

import json
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml

from carrel import __version__
from carrel.admission.settings import PluginMode
from carrel.dialects.options import DeviceList, HideFrom, Unit
from carrel.dialects.tier import WhenFull
from carrel.ledger.tiers import AtEnd
from carrel.node.settings import MemoryResource
from carrel.scheduling.scheduler_config import PEERS_SERVED
from carrel.scheduling.settings import PlacementStyle
from carrel.settings import LogLevel
from tools.chart_readme import CHART, GPU_BOOKING, gpu_booking_schema, readme, values
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
    return given, known | {f"{path}{key}" for key in schema.get("properties", {})}


def test_values_and_schema_have_the_same_keys() -> None:
    given, known = paths(VALUES, SCHEMA)
    assert known - given == {"global"}  # helm's own
    assert given <= known


def words(path: str) -> list[str]:
    found = SCHEMA
    for key in path.split("."):
        found = found["properties"][key]
    return list(found["enum"])


@pytest.mark.parametrize(
    ("path", "enum"),
    [
        ("mode", PluginMode),
        ("memoryUnit", Unit),
        ("whenFull", WhenFull),
        ("hideGpusFrom", HideFrom),
        ("deviceList", DeviceList),
        ("logLevel", LogLevel),
        ("scheduler.placement", PlacementStyle),
        ("controller.atEnd", AtEnd),
        ("agent.memoryResource", MemoryResource),
    ],
)
def test_the_schema_allows_the_words_that_the_program_knows(path: str, enum: type[Enum]) -> None:
    assert sorted(words(path)) == sorted(each.value for each in enum)


def test_the_peers_schedulers_are_those_that_the_program_serves() -> None:
    assert tuple(VALUES["scheduler"]["peers"]) == PEERS_SERVED


def test_every_variable_in_the_templates_is_a_setting_of_the_program() -> None:
    used = set[str]()
    for template in (CHART / "templates").rglob("*.*"):
        used |= set(re.findall(r"\bCARREL_[A-Z_]+", template.read_text()))
    known = set(re.findall(r"`(CARREL_[A-Z_]+)`", (FOLDER / "commands.md").read_text()))
    assert used - known == set()
