"""The timeline: lanes, positions and labels."""

import re
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.bookings.pages.timeline import (
    Bar,
    BarKind,
    DateRange,
    ModelRow,
    SelectedSpan,
    Viewer,
    assign_lanes,
    draw,
    merge_intervals,
    selection_position,
)

STOCKHOLM = ZoneInfo("Europe/Stockholm")
MONDAY = date(2026, 11, 16)
NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_bar(start: int, end: int, gpus: int = 1, **more: object) -> Bar:
    """Start and end are hours after the first Monday."""
    zero = datetime(2026, 11, 16, tzinfo=UTC)
    fields = {"kind": BarKind.OTHER, "label": "bob", "title": f"{start} to {end}", **more}
    return Bar(start=zero + start * HOUR, end=zero + end * HOUR, gpus=gpus, **fields)  # type: ignore[arg-type] # passed through


def a_row(*bars: Bar, gpus: int = 2, **more: object) -> ModelRow:
    return ModelRow(**{"model": "NVIDIA-RTX-A6000", "gpus": gpus, "bars": bars, "free": [gpus] * 14, **more})  # type: ignore[arg-type] # passed through


def a_window(first: date = MONDAY, days: int = 14) -> DateRange:
    return DateRange(first, days, STOCKHOLM)


@pytest.mark.parametrize(
    ("bars", "lanes"),
    [
        pytest.param([(0, 5), (5, 9)], [[0], [0]], id="bookings one after the other share a lane"),
        pytest.param([(0, 5), (4, 9)], [[0], [1]], id="bookings at the same time have different lanes"),
        pytest.param([(0, 5, 2), (1, 3), (5, 9)], [[0, 1], [2], [0]], id="two GPUs take two lanes"),
        pytest.param([(0, 9), (0, 3), (0, 9), (3, 9, 1)], [[1], [0], [2], [0]], id="the lowest free lane is taken"),
    ],
)
def test_bars_never_overlap(bars: list[tuple[int, ...]], lanes: list[list[int]]) -> None:
    given_bars = [a_bar(*bar) for bar in bars]
    placed = [(bar, [lane for lane, _ in slots]) for bar, slots in assign_lanes(given_bars)]

    assert sorted(placed, key=lambda each: each[1]) == sorted(
        zip(given_bars, lanes, strict=True), key=lambda each: each[1]
    )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30), st.integers(1, 3)), max_size=30))
def test_no_more_lanes_are_used_than_gpus_are_booked_at_once(times: list[tuple[int, int, int]]) -> None:
    bars = [a_bar(start, start + length, gpus) for start, length, gpus in times]
    placed = assign_lanes(bars)

    lanes = max((lane + 1 for _, slots in placed for lane, _ in slots), default=0)
    busiest = max((sum(b.gpus for b in bars if b.start <= bar.start < b.end) for bar in bars), default=0)
    assert lanes == busiest
    for bar, slots in placed:
        assert len(set(slots)) == bar.gpus
        for other, taken in placed:
            if other is not bar and other.start < bar.end and bar.start < other.end:
                assert not set(slots) & set(taken)


def test_shares_of_one_gpu_are_in_one_lane() -> None:
    bars = [a_bar(0, 9, is_share=True), a_bar(1, 9, is_share=True), a_bar(2, 9), a_bar(3, 9, is_share=True)]

    slots = [slots for _, slots in assign_lanes(bars, shares=2)]

    assert slots == [[(0, 0)], [(0, 1)], [(1, 0)], [(2, 0)]]


def test_the_picture_is_well_formed_and_escapes_user_input() -> None:
    nasty = '"><script>alert(1)</script>&'
    row = a_row(a_bar(0, 50, label=nasty, title=nasty, link=f"/bookings/{nasty}", kind=BarKind.MINE), model=nasty)

    picture = draw(row, a_window(), Viewer(NOW, selection=SelectedSpan(nasty, NOW, NOW + 48 * HOUR)))

    ElementTree.fromstring(picture)
    assert "<script" not in picture


def test_past_days_cannot_be_chosen() -> None:
    picture = draw(a_row(), a_window(), Viewer(NOW))

    assert re.findall(r'data-day="([^"]+)"', picture)[:2] == ["2026-11-18", "2026-11-19"]
    assert picture.count('tabindex="0"') == 1


def test_a_day_has_a_label_with_its_number_of_free_gpus() -> None:
    picture = draw(a_row(free=[2, 2, 1, 0, -1, *[2] * 9]), a_window(), Viewer(NOW))

    assert "Wed 18 Nov: 1 of 2 free all day. Book from this day." in picture
    assert re.search(r'class="day none"[^>]*data-day="2026-11-19"', picture)
    assert re.search(r'class="day over"[^>]*data-day="2026-11-20"', picture)
    assert "−1" in picture


def test_an_overbooked_model_is_marked_above_the_bars() -> None:
    bars = [a_bar(0, 50), a_bar(0, 50), a_bar(0, 50)]
    picture = draw(a_row(*bars, free=[-1] * 14), a_window(), Viewer(NOW))

    assert picture.rindex('class="bar') < picture.index("Overbooked")
    assert "Overbooked" not in draw(a_row(*bars[:2], free=[0] * 14), a_window(), Viewer(NOW))


def test_a_day_of_a_clock_change_is_as_wide_as_it_is_long() -> None:
    spring = a_window(date(2026, 3, 23), 14)
    hours = [(after - before) / HOUR for before, after in pairwise(spring.midnights)]

    assert hours[6] == 23
    assert sum(hours) == 14 * 24 - 1
    assert spring.position(spring.start) == 0
    assert spring.position(spring.end) == 100
    assert spring.position(spring.end + HOUR) == 100


def test_a_selection_outside_the_dates_is_not_drawn_at_the_edge() -> None:
    later = SelectedSpan("m", NOW + 900 * HOUR, NOW + 950 * HOUR)
    partly = SelectedSpan("m", NOW - 900 * HOUR, NOW)

    assert selection_position(later, a_window()) == ("0", "0")
    assert selection_position(partly, a_window())[0] == "0.000%"


def test_cooldowns_that_touch_are_merged() -> None:
    first, second, third = NOW, NOW + 5 * HOUR, NOW + 20 * HOUR

    assert merge_intervals([(third, third + HOUR), (second, second + 9 * HOUR), (first, first + 6 * HOUR)]) == [
        (first, second + 9 * HOUR),
        (third, third + HOUR),
    ]


def test_bookings_outside_the_dates_are_not_drawn() -> None:
    picture = draw(a_row(a_bar(-90, -80), a_bar(900, 990), a_bar(-5, 5)), a_window(), Viewer(NOW))

    assert picture.count('class="bar') == 1


def test_a_booking_of_two_gpus_is_one_rectangle() -> None:
    picture = draw(a_row(a_bar(0, 50, 2)), a_window(), Viewer(NOW))

    assert picture.count('class="bar') == 1
    assert 'height="44"' in picture


# --- months ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "days", "names"),
    [
        pytest.param(date(2026, 11, 16), 42, ["November 2026", "December 2026"], id="two months"),
        pytest.param(date(2026, 12, 14), 42, ["December 2026", "January 2027"], id="a new year"),
        pytest.param(date(2026, 11, 2), 28, ["November 2026"], id="within one month"),
        pytest.param(date(2026, 8, 31), 42, ["Aug", "September 2026", "October 2026"], id="one day of a month"),
        pytest.param(date(2027, 1, 18), 42, ["January 2027", "February 2027"], id="until the last day of February"),
        pytest.param(date(2027, 1, 25), 42, ["January 2027", "February 2027", "March 2027"], id="a whole February"),
    ],
)
def test_the_timeline_names_each_month_where_it_begins(first: date, days: int, names: list[str]) -> None:
    window = a_window(first, days)
    picture = draw(a_row(free=[2] * days), window, Viewer(NOW))

    named = re.findall(r'<text class="month" x="([0-9.]+)%"[^>]*>([^<]+)<', picture)
    assert [name for _, name in named] == names
    firsts = [0, *(number for number, when in enumerate(window.dates) if number and when.day == 1)]
    assert [float(left) for left, _ in named] == pytest.approx([window.edges[number] for number in firsts], abs=0.001)


def test_a_months_name_is_repeated_each_week_because_a_narrow_screen_shows_twelve_days() -> None:
    picture = draw(a_row(free=[2] * 42), a_window(MONDAY, 42), Viewer(NOW))

    assert re.findall(r'class="month again"[^>]*>([^<]+)<', picture) == ["Nov", "Dec", "Dec", "Dec"]
    assert picture.index('class="weekend"') < picture.index('class="month"'), "a weekend would hide the name"
