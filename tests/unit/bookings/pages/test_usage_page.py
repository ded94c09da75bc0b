"""The pictures and tables of the usage page."""

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from carrel.bookings.pages import heat_map
from carrel.bookings.pages.heat_map import GpuHours
from carrel.bookings.pages.usage_chart import HEIGHT, ModelUsage, StepNames, bar, by_model, draw
from carrel.bookings.pages.usage_page import as_csv, fragmentation, hours_by_gpu
from carrel.bookings.usage.figures import HeldHours, UsageRow
from carrel.bookings.usage.sums import Gap, Step, UsageSum
from carrel.ids import GpuUuid
from carrel.ledger.ledger import Ledger
from tests.kit.gpus import A6000, a_node, held

MIDNIGHT = datetime(2026, 11, 16, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NAMES = StepNames(Step.DAY, UTC)


def a_row(
    day: int = 0, booked: float | None = None, of: HeldHours | None = None, person: str = "", group: str = ""
) -> UsageRow:
    start, end = MIDNIGHT + day * DAY, MIDNIGHT + (day + 1) * DAY
    return UsageRow(start, end, person, group, A6000, booked=booked, held=of)


def drawn(rows: Sequence[UsageRow], gpus: int = 2, *gaps: Gap) -> ElementTree.Element:
    return ElementTree.fromstring(draw(ModelUsage(A6000, gpus, rows), NAMES, gaps))


def heights(picture: ElementTree.Element) -> dict[str, tuple[object, object]]:
    """Of each part: where it begins from above, and how high it is."""
    found = {each.get("class", ""): each for each in picture.iter("rect")}
    return {
        name: (float(found[name].get("y", "")), float(found[name].get("height", "")))
        for name in ("use-active", "use-unknown", "use-idle")
        if name in found
    }


def test_the_parts_of_what_was_held_stand_on_each_other_with_what_is_idle_on_top() -> None:
    picture = drawn([a_row(booked=24.0, of=HeldHours(36.0, 12.0, 18.0))])
    pixel = HEIGHT / 48
    assert heights(picture) == {
        "use-active": (pytest.approx(36 * pixel), pytest.approx(12 * pixel)),
        "use-unknown": (pytest.approx(30 * pixel), pytest.approx(6 * pixel)),
        "use-idle": (pytest.approx(12 * pixel), pytest.approx(18 * pixel)),
    }
    (line,) = (each for each in picture.iter("line") if each.get("class") == "booked-line")
    assert float(line.get("y1", "")) == pytest.approx(24 * pixel)
    (title,) = picture.iter("title")
    assert title.text == "Mon 16 Nov: booked 24, held 36: active 12, idle 18, unknown 6.0 GPU hours"


def test_where_more_was_held_than_there_are_gpus_now_the_edge_is_higher() -> None:
    usage = ModelUsage(A6000, 1, [a_row(of=HeldHours(72.0, 72.0))])
    assert usage.top == 3.0
    assert heights(drawn(usage.rows, 1)) == {"use-active": (0.0, float(HEIGHT))}


def test_a_time_in_which_nobody_counted_is_hatched_where_it_was() -> None:
    rows = [a_row(0), a_row(1)]
    before = Gap(MIDNIGHT - DAY, MIDNIGHT + 12 * HOUR)
    gaps = [
        each
        for each in drawn(rows, 2, before, Gap(MIDNIGHT - DAY, MIDNIGHT)).iter("rect")
        if each.get("class") == "gap"
    ]
    assert [(each.get("x"), each.get("width")) for each in gaps] == [("0.000%", "25.000%")]


def test_every_model_that_is_or_was_has_a_picture_with_a_column_for_each_step() -> None:
    times = [(MIDNIGHT + day * DAY, MIDNIGHT + (day + 1) * DAY) for day in range(3)]
    pictures = by_model([a_row(1, 5.0, HeldHours(4.0))], {"T4": 8}, times, is_held_known=True)
    assert [(each.model, each.gpus, [row.booked for row in each.rows]) for each in pictures] == [
        (A6000, 0, [0.0, 5.0, 0.0]),
        ("T4", 8, [0.0, 0.0, 0.0]),
    ]
    assert pictures[0].held == HeldHours(4.0)
    without = by_model([a_row(1, 5.0)], {}, times, is_held_known=False)
    assert (without[0].booked, without[0].held) == (5.0, None)


@pytest.mark.parametrize(
    ("step", "name", "short"),
    [(Step.DAY, "Mon 16 Nov", "16 Nov"), (Step.WEEK, "week from 16 Nov", "16 Nov"), (Step.MONTH, "Nov 2026", "Nov")],
    ids=["day", "week", "month"],
)
def test_steps_have_names(step: Step, name: str, short: str) -> None:
    names = StepNames(step, UTC)
    assert (names.name(a_row()), names.short(a_row())) == (name, short)


def test_a_bar_says_its_figures_to_who_does_not_see_it() -> None:
    picture = ElementTree.fromstring(bar(a_row(booked=10.0, of=HeldHours(20.0, 5.0, 15.0)), 40.0))
    assert picture.get("aria-label") == "booked 10, held 20: active 5.0, idle 15, unknown 0 GPU hours"
    widths = {each.get("class"): float(each.get("width", "")) for each in picture.iter("rect")}
    assert widths["use-idle"] == pytest.approx(3 * widths["use-active"], abs=0.1)
    assert ElementTree.fromstring(bar(a_row(booked=0.0), 0.0)).get("aria-label") == "booked 0 GPU hours"


def test_the_heat_map_is_well_formed_and_joins_hours_of_one_shade() -> None:
    picture = heat_map.draw([GpuHours("<a&b>", [0, 0.5, 0.5, 1.0])], MIDNIGHT, UTC, [Gap(MIDNIGHT, MIDNIGHT + HOUR)])
    ElementTree.fromstring(picture)

    assert picture.count('class="heat3"') == 1
    assert picture.count('class="heat5"') == 1
    assert "for 2 hours" in picture
    assert '<rect class="gap" x="0.000%" width="25.000%"' in picture


@pytest.mark.parametrize(("part", "shade"), [(0, 0), (0.01, 1), (0.2, 2), (0.99, 5), (1, 5)])
def test_more_usage_has_a_darker_shade(part: float, shade: int) -> None:
    assert heat_map.step(part) == shade


def test_the_hours_of_a_gpu_are_parts_and_the_last_one_only_of_what_was_counted() -> None:
    one, gone = GpuUuid("GPU-1"), GpuUuid("GPU-9")
    sums = [
        UsageSum(MIDNIGHT, 0.5, gpu=one),
        UsageSum(MIDNIGHT + 2 * HOUR, 0.25, gpu=one),
        UsageSum(MIDNIGHT, 1.0, gpu=gone),
    ]
    (row,) = hours_by_gpu(sums, {one: "n1 · 0"}, MIDNIGHT, MIDNIGHT + 2.5 * HOUR)
    assert row == GpuHours("n1 · 0", [0.5, 0.0, 0.5])


def test_free_memory_that_is_too_small_is_counted_for_each_size() -> None:
    ledger = Ledger([a_node("n1", gpus=3)], [held("a", "n1", 0, 10000), held("b", "n1", 1, None)])

    found = {each.size: (each.fitting, each.lost, each.lost_memory) for each in fragmentation(ledger)}

    assert found == {"4 GiB": (2, 0, 0), "8 GiB": (1, 1, 6276), "a whole GPU": (1, 1, 6276)}
    assert fragmentation(Ledger()) == []


def test_a_name_that_looks_like_a_formula_is_not_run_by_a_spreadsheet() -> None:
    rows = [
        a_row(booked=1.5, of=HeldHours(7 / 60, 0.1, 0.0, 7 / 60), person='=HYPERLINK("x")'),
        a_row(booked=None, person="ada", group="+vision"),
    ]
    first, second = csv.DictReader(io.StringIO(as_csv(rows)))

    assert (first["person"], second["group"]) == ('\'=HYPERLINK("x")', "'+vision")
    assert (first["held_hours"], first["active_hours"], first["unknown_hours"]) == ("0.1167", "0.1", "0.0167")
    assert (second["booked_hours"], second["held_hours"]) == ("", ""), "what is not known is empty"
