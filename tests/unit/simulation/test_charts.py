"""Drawings: nothing outside the page, no text on another, steps where values jump."""

import re
from xml.etree import ElementTree

import pytest

from carrel.simulation import charts

LONG = "carrel, with 8xNVIDIA-A100-SXM4-80GB:81920, 16xNVIDIA-H100-80GB-HBM3:81559, cooldown 7 d, at most 2 GPUs"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(*panels: charts.Panel) -> ElementTree.Element:
    return ElementTree.fromstring(charts.document(panels))


def texts(panel: charts.Panel) -> list[tuple[float, float, float, str]]:
    """Left and right end, height and words of each text in small letters, as wide as letters may be."""
    found = []
    for each in drawn(panel).iter(f"{SVG}text"):
        words = each.text or ""
        x, y, width = float(each.attrib["x"]), float(each.attrib["y"]), charts.LETTER * len(words)
        left = x - {"start": 0, "middle": width / 2, "end": width}[each.attrib["text-anchor"]]
        found.append((left, left + width, y, words))
    return found


def a_chart(lines: int) -> charts.Panel:
    return charts.chart("T", "hours", "%", {f"{number} {LONG}": [(0.0, 0.0), (9.0, 50.0)] for number in range(lines)})


def some_bars(groups: int) -> charts.Panel:
    waited = {"no GPU free": 12.5, "no CPU or memory free": 1234.5}
    return charts.bars("W", "hours", {f"{number} {LONG}": waited for number in range(groups)})


@pytest.mark.parametrize("panel", [a_chart(1), a_chart(16), some_bars(1), some_bars(16)])
def test_no_text_is_cut_at_the_edge_or_lies_on_another(panel: charts.Panel) -> None:
    found = texts(panel)

    assert all(left >= 0 and right <= charts.WIDTH and 0 < y < panel.height for left, right, y, _ in found)
    for number, (left, right, y, words) in enumerate(found):
        for other_left, other_right, other_y, other in found[:number]:
            apart = right <= other_left or other_right <= left or abs(y - other_y) >= charts.SMALL
            assert apart, f"{words!r} lies on {other!r}"


def test_panels_lie_below_each_other_however_high_they_are() -> None:
    page = drawn(a_chart(16), some_bars(16))

    assert float(page.attrib["height"]) == pytest.approx(a_chart(16).height + some_bars(16).height, abs=1)
    assert a_chart(16).height > charts.HEIGHT


def test_what_changes_at_an_instant_is_drawn_as_a_step() -> None:
    line = {"carrel": [(0.0, 100.0), (10.0, 0.0), (20.0, 0.0)]}

    stepped = charts.chart("T", "hours", "%", line, charts.Curves(are_steps=True))
    straight = charts.chart("T", "arrived", "%", line)

    assert re.findall(r'polyline points="(.*?)"', stepped.drawing) == ["52.0,52.0 351.0,52.0 351.0,248.0 650.0,248.0"]
    assert re.findall(r'polyline points="(.*?)"', straight.drawing) == ["52.0,52.0 351.0,248.0 650.0,248.0"]


def test_a_policy_has_the_same_colour_in_each_case_and_is_dashed_in_the_second() -> None:
    lines = {f"{policy}, {case}": [(0.0, 1.0), (1.0, 1.0)] for case in ("as it is", "with") for policy in "ab"}

    drawing = charts.chart("T", "hours", "%", lines, charts.Curves(colours=2)).drawing

    styles = re.findall(r'<polyline .*?stroke="(.*?)".*?(stroke-dasharray|/>)', drawing)
    first, second = charts.COLOURS[:2]
    assert styles == [(first, "/>"), (second, "/>"), (first, "stroke-dasharray"), (second, "stroke-dasharray")]


def test_text_of_others_cannot_break_the_drawing() -> None:
    name = "<script>&\"'\x1b\x00\udcff"
    panels = (charts.chart(name, name, name, {name: [(0.0, 1.0)]}), charts.bars(name, name, {name: {name: 1.0}}))

    page = drawn(*panels)

    assert not list(page.iter(f"{SVG}script"))
    assert "<script>&\"'\\x1b\\x00\\udcff" in {each.text for each in page.iter(f"{SVG}text")}
    assert charts.document(panels).encode()


@pytest.mark.parametrize(
    "panel",
    [
        pytest.param(charts.chart("T", "hours", "%", {}), id="no line"),
        pytest.param(charts.chart("T", "hours", "%", {"a": []}), id="a line without a point"),
        pytest.param(charts.chart("T", "hours", "%", {"a": []}, charts.Curves(1, are_steps=True)), id="no step"),
        pytest.param(charts.chart("T", "hours", "%", {"a": [(0.0, 0.0)]}), id="all is zero"),
        pytest.param(charts.bars("T", "hours", {}), id="no group"),
        pytest.param(charts.bars("T", "hours", {"carrel": {}}), id="nobody waited"),
        pytest.param(charts.bars("T", "hours", {"carrel": {"no GPU free": 0.0}}), id="for no time"),
    ],
)
def test_little_can_be_drawn_too(panel: charts.Panel) -> None:
    assert len(drawn(panel)) > 0


def test_the_axes_of_a_chart_have_round_numbers() -> None:
    drawing = charts.chart("T", "hours", "%", {"carrel": [(0.0, 0.0), (216.0, 92.3)]}).drawing

    assert [number for number in (0, 20, 40, 60, 80, 50, 100, 150, 200) if f">{number}</text>" not in drawing] == []
    assert "92.3" not in drawing
