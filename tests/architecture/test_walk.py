"""`make walk` counts what runs, and a stage stays within the component that answers it."""

from pathlib import Path

import pytest

from tests.architecture.test_components import COMPONENTS
from tools.walk import GOALS, Stage, table, walk

COMPONENTS_OF_STAGES = {
    "admission": {"admission"},
    "filter": {"scheduling"},
    "prioritize": {"scheduling"},
    "bind": {"scheduling"},
    "collect": {"lifecycle"},
    "revocation": {"lifecycle", "scheduling"},
    "report": {"node", "scheduling"},
}


async def test_each_stage_runs_in_its_component_and_in_what_all_may_use() -> None:
    stages = await walk()

    folders = {stage.name: {file.parts[0] for file in stage.files} for stage in stages}
    assert {name: found.intersection(COMPONENTS) for name, found in folders.items()} == COMPONENTS_OF_STAGES
    assert "| filter | " in table(stages)
    assert GOALS.keys() <= folders.keys()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A module that counts as one of Carrel's."""
    file = tmp_path / "counted.py"
    file.write_text(
        "class Pod:\n"
        "    @property\n"
        "    def name(self): return 'train'\n"
        "    def __len__(self): return 1\n"
        "def names(pods):\n"
        "    return sorted([pod.name for pod in pods], key=lambda name: (len(pods), any(True for _ in name)))\n"
    )
    monkeypatch.setattr("tools.walk.PACKAGE", tmp_path)
    found: dict[str, object] = {}
    exec(compile(file.read_text(), file, "exec"), found)
    return found


async def test_properties_and_dunder_methods_count_and_comprehensions_and_lambdas_do_not(
    module: dict[str, object],
) -> None:
    with Stage("test", "").running() as stage:
        pods = [module["Pod"]()]  # type: ignore[operator]
        len(pods[0])
        module["names"](pods)  # type: ignore[operator]

    assert {code.co_qualname for code in stage.functions} == {"Pod.name", "Pod.__len__", "names"}
    assert stage.files == {Path("counted.py")}


async def test_what_is_outside_the_stage_does_not_count(module: dict[str, object]) -> None:
    with Stage("test", "").running() as stage, stage.outside():
        module["names"]([])  # type: ignore[operator]
    module["names"]([])  # type: ignore[operator]

    assert not stage.functions
