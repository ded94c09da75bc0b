"""How memory is offered: what is safe for the kubelet, what never changes under pods, and how much the Node says."""

from dataclasses import replace

import pytest

from carrel.node.memory_offer import Decision, Holding, Situation, Way, decide, units_offered

PLUGIN, NODE = Way.PLUGIN, Way.NODE
FRESH = Situation(setting=None, devices=65_536, fits=True, kubelet_minor=37, holders=0, before=None)


@pytest.mark.parametrize(
    ("changes", "way"),
    [
        pytest.param({}, NODE, id="tens of thousands of devices, which a new kubelet compares with all given out"),
        pytest.param({"kubelet_minor": 36}, NODE, id="the first kubelet that compares"),
        pytest.param({"kubelet_minor": 35}, PLUGIN, id="the last kubelet that does not"),
        pytest.param({"kubelet_minor": 35, "fits": False}, NODE, id="more than one message takes"),
        pytest.param({"devices": 2048}, PLUGIN, id="as many as are safe"),
        pytest.param({"devices": 2049}, NODE, id="one more than is safe"),
        pytest.param({"devices": 0}, None, id="no card is seen yet, as after a boot"),
        pytest.param({"kubelet_minor": None}, None, id="the Node is not known yet"),
        pytest.param({"setting": PLUGIN}, PLUGIN, id="the admin wants a plugin, whatever it costs"),
        pytest.param({"setting": PLUGIN, "devices": 0, "kubelet_minor": None}, PLUGIN, id="and wants it at once"),
        pytest.param({"setting": NODE, "devices": 2}, NODE, id="the admin wants the Node"),
    ],
)
def test_what_is_begun_on_a_node_where_nothing_was_in_force(changes: dict[str, object], way: Way | None) -> None:
    assert decide(replace(FRESH, **changes)) == Decision(way)  # type: ignore[arg-type] # fields by name


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        pytest.param({"holders": 0}, Decision(NODE), id="nobody holds any: it changes"),
        pytest.param({"holders": 1}, Decision(PLUGIN, later=NODE), id="one pod holds some: it waits"),
        pytest.param({"holders": None}, Decision(PLUGIN, later=NODE), id="nobody knows whether any does: it waits"),
        pytest.param({"holders": 1, "setting": NODE}, Decision(PLUGIN, later=NODE), id="also if the admin says so"),
        pytest.param({"holders": 1, "devices": 2000}, Decision(PLUGIN), id="it is as it should be"),
        pytest.param({"devices": 0}, Decision(PLUGIN), id="no card is seen for a while"),
        pytest.param({"kubelet_minor": None}, Decision(PLUGIN), id="the Node is not known for a while"),
        pytest.param({"before": NODE, "devices": 2000, "holders": 3}, Decision(NODE, later=PLUGIN), id="and back"),
    ],
)
def test_a_way_in_force_changes_only_while_nobody_holds_memory(changes: dict[str, object], decision: Decision) -> None:
    assert decide(replace(FRESH, **{"before": PLUGIN, **changes})) == decision  # type: ignore[arg-type] # fields by name


CARDS = {"a": 1000, "b": 1000}


@pytest.mark.parametrize(
    ("usable", "holdings", "units"),
    [
        pytest.param("ab", [], 2000, id="all is well"),
        pytest.param("ab", [(400, "a"), (1000, "b")], 2000, id="what is held is part of it"),
        pytest.param("a", [], 1000, id="an ill card"),
        pytest.param("a", [(700, "b")], 1700, id="what is held of an ill card does not count against the other"),
        pytest.param("a", [(300, "a"), (700, "b")], 1700, id="what is held of the other is part of it"),
        pytest.param("", [(300, "a"), (700, "b")], 1000, id="all ill: no less than what is held, or pods would end"),
        pytest.param("", [(300, "")], 300, id="a pod that came round the scheduler holds on"),
        pytest.param("ab", [(1500, "a"), (1000, "b")], 2500, id="more than a card has, as after a change of the unit"),
        pytest.param("", [], 0, id="nothing at all"),
    ],
)
def test_how_much_the_node_says(usable: str, holdings: list[tuple[int, str]], units: int) -> None:
    held = [Holding(amount, frozenset(card)) for amount, card in holdings]
    assert units_offered(CARDS, set(usable), held) == units
