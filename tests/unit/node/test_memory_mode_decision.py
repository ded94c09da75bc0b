"""How memory is advertised: which mode is safe for the kubelet, when it may change, and the amount on the Node."""

from dataclasses import replace

import pytest

from carrel.ids import GpuUuid
from carrel.node.memory_mode_decision import (
    MemoryMode,
    ModeDecision,
    ModeInputs,
    PodMemory,
    decide_mode,
    units_advertised,
)

PLUGIN, NODE = MemoryMode.PLUGIN, MemoryMode.NODE
FRESH = ModeInputs(setting=None, devices=65_536, fits=True, kubelet_minor=37, holders=0, before=None)


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        pytest.param({}, NODE, id="tens of thousands of devices, and a kubelet that compares"),
        pytest.param({"kubelet_minor": 36}, NODE, id="the first kubelet that compares"),
        pytest.param({"kubelet_minor": 35}, PLUGIN, id="the last kubelet that does not"),
        pytest.param({"kubelet_minor": 35, "fits": False}, NODE, id="more than one message takes"),
        pytest.param({"devices": 2048}, PLUGIN, id="as many as are safe"),
        pytest.param({"devices": 2049}, NODE, id="one more than is safe"),
        pytest.param({"devices": 0}, None, id="no GPU is known yet, as after a boot"),
        pytest.param({"kubelet_minor": None}, None, id="the Node is not known yet"),
        pytest.param({"setting": PLUGIN}, PLUGIN, id="the admin wants a plugin"),
        pytest.param({"setting": PLUGIN, "devices": 0, "kubelet_minor": None}, PLUGIN, id="and wants it at once"),
        pytest.param({"setting": NODE, "devices": 2}, NODE, id="the admin wants the Node"),
    ],
)
def test_the_first_mode_of_a_node(changes: dict[str, object], mode: MemoryMode | None) -> None:
    assert decide_mode(replace(FRESH, **changes)) == ModeDecision(mode)  # type: ignore[arg-type] # fields by name


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        pytest.param({"holders": 0}, ModeDecision(NODE), id="no pod holds any: it changes"),
        pytest.param({"holders": 1}, ModeDecision(PLUGIN, later=NODE), id="one pod holds some: it waits"),
        pytest.param({"holders": None}, ModeDecision(PLUGIN, later=NODE), id="not known whether one does: it waits"),
        pytest.param(
            {"holders": 1, "setting": NODE}, ModeDecision(PLUGIN, later=NODE), id="also if the admin wants it"
        ),
        pytest.param({"holders": 1, "devices": 2000}, ModeDecision(PLUGIN), id="no change is due"),
        pytest.param({"devices": 0}, ModeDecision(PLUGIN), id="no GPU is known for a while"),
        pytest.param({"kubelet_minor": None}, ModeDecision(PLUGIN), id="the Node is not known for a while"),
        pytest.param({"before": NODE, "devices": 2000, "holders": 3}, ModeDecision(NODE, later=PLUGIN), id="and back"),
    ],
)
def test_the_mode_changes_only_while_no_pod_holds_memory(changes: dict[str, object], decision: ModeDecision) -> None:
    assert decide_mode(replace(FRESH, **{"before": PLUGIN, **changes})) == decision  # type: ignore[arg-type] # fields by name


GPUS = {GpuUuid("a"): 1000, GpuUuid("b"): 1000}


@pytest.mark.parametrize(
    ("usable", "pods", "units"),
    [
        pytest.param("ab", [], 2000, id="all healthy"),
        pytest.param("ab", [(400, "a"), (1000, "b")], 2000, id="what is held is part of it"),
        pytest.param("a", [], 1000, id="an unhealthy GPU"),
        pytest.param("a", [(700, "b")], 1700, id="what is held of an unhealthy GPU does not count against the other"),
        pytest.param("a", [(300, "a"), (700, "b")], 1700, id="what is held of the other is part of it"),
        pytest.param(
            "", [(300, "a"), (700, "b")], 1000, id="all unhealthy: no less than what is held, or pods would end"
        ),
        pytest.param("", [(300, "")], 300, id="a pod that bypassed the scheduler keeps its memory"),
        pytest.param("ab", [(1500, "a"), (1000, "b")], 2500, id="more than a GPU has, as after a change of the unit"),
        pytest.param("", [], 0, id="nothing at all"),
    ],
)
def test_the_amount_on_the_node(usable: str, pods: list[tuple[int, str]], units: int) -> None:
    held = [PodMemory(amount, frozenset(map(GpuUuid, gpu))) for amount, gpu in pods]
    assert units_advertised(GPUS, set(map(GpuUuid, usable)), held) == units
