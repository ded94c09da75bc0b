"""How the command line reads dates and prints dates and lists."""

import json
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from carrel.cli.dates import InvalidDate, date_text, parse_date
from carrel.cli.options import DataFormat, ListFormat
from carrel.cli.output import aligned, as_csv, print_data, print_lines, print_list

LAB = ZoneInfo("Europe/Stockholm")

READ = {
    "2026-12-12": "2026-12-11T23:00:00+00:00",
    "2026-12-12T09:00": "2026-12-12T08:00:00+00:00",
    "2026-07-01T09:00": "2026-07-01T07:00:00+00:00",
    "2026-12-12T09:00+05:30": "2026-12-12T03:30:00+00:00",
    "2026-12-12T09:00:30Z": "2026-12-12T09:00:30+00:00",
    "2026-10-25T02:30+02:00": "2026-10-25T00:30:00+00:00",
    "2026-10-25T02:30+01:00": "2026-10-25T01:30:00+00:00",
}


@pytest.mark.parametrize(("typed", "meant"), READ.items())
def test_a_date_is_read_in_the_zone_of_the_lab(typed: str, meant: str) -> None:
    assert parse_date(typed, LAB).isoformat() == meant


NOW = datetime(2026, 11, 18, 9, 30, tzinfo=UTC)
"""A Wednesday, 10:30 in the lab."""

SAID = {
    "now": "2026-11-18T10:30",
    "today": "2026-11-18T10:30",
    "Tomorrow": "2026-11-19T00:00",
    "tomorrow 9:00": "2026-11-19T09:00",
    "mon": "2026-11-23T00:00",
    " Mon   9:00 ": "2026-11-23T09:00",
    "thursday 23:59": "2026-11-19T23:59",
    "wed": "2026-11-25T00:00",
    "wed 10:00": "2026-11-25T10:00",
    "wed 11:00": "2026-11-18T11:00",
    "9:00": "2026-11-19T09:00",
    "11:00": "2026-11-18T11:00",
    "+3d": "2026-11-21T10:30",
    "+1.5h": "2026-11-18T12:00",
    "+90min": "2026-11-18T12:00",
    "+2 w": "2026-12-02T10:30",
    "2026-12-12 09:00": "2026-12-12T09:00",
}
SAID_OF_THE_PAST = {
    "today": "2026-11-18T00:00",
    "yesterday": "2026-11-17T00:00",
    "mon": "2026-11-16T00:00",
    "wed 10:00": "2026-11-18T10:00",
    "wed 11:00": "2026-11-11T11:00",
    "11:00": "2026-11-17T11:00",
    "-7d": "2026-11-11T10:30",
}


@pytest.mark.parametrize(("typed", "meant"), SAID.items())
def test_a_date_is_read_as_people_say_it(typed: str, meant: str) -> None:
    assert parse_date(typed, LAB, NOW).astimezone(LAB).strftime("%Y-%m-%dT%H:%M") == meant


@pytest.mark.parametrize(("typed", "meant"), SAID_OF_THE_PAST.items())
def test_where_the_past_is_meant_a_weekday_is_the_last_one(typed: str, meant: str) -> None:
    assert parse_date(typed, LAB, NOW, is_past=True).astimezone(LAB).strftime("%Y-%m-%dT%H:%M") == meant


NO_DATES = ("", "soon", "12.12.2026", "2026-13-01", "monster 9:00", "mo", "mon 24:00", "mon 9", "9:60", "3d", "+3x")
NO_TIMES = ("2026-03-29T02:30", "2026-10-25T02:30", "+999999d", "tomorrow tomorrow", "\u0663:\u0660\u0660")


@pytest.mark.parametrize("typed", [*NO_DATES, *NO_TIMES])
def test_what_is_no_date_does_not_exist_or_exists_twice_is_refused(typed: str) -> None:
    with pytest.raises(InvalidDate):
        parse_date(typed, LAB, NOW)


def test_an_hour_that_the_clock_skips_is_refused_also_by_its_weekday() -> None:
    with pytest.raises(InvalidDate, match="does not exist"):
        parse_date("sun 2:30", LAB, datetime(2026, 3, 27, tzinfo=UTC))


@given(st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC)))
def test_a_time_with_an_offset_is_read_back(instant: datetime) -> None:
    assert parse_date(instant.astimezone(LAB).isoformat(), LAB) == instant


@given(st.dates(datetime(2020, 1, 1).date(), datetime(2035, 1, 1).date()))
def test_every_day_has_a_midnight_in_the_lab(day: object) -> None:
    midnight = parse_date(str(day), LAB).astimezone(LAB)
    assert (midnight.date(), midnight.time().isoformat()) == (day, "00:00:00")


def test_dates_are_shown_in_the_zone_of_the_lab() -> None:
    assert date_text("2026-11-24T13:00:00Z", LAB) == "Tue 24 Nov 2026 14:00 CET"
    assert date_text(None, LAB) == "–"


ROWS = [["MODEL", "FREE"], ["NVIDIA-RTX-A6000-Ada-Generation", "3 of 8"]]


def test_a_table_is_as_wide_as_it_needs_to_be() -> None:
    assert aligned(ROWS) == ["MODEL                            FREE", "NVIDIA-RTX-A6000-Ada-Generation  3 of 8"]


@given(st.integers(18, 60))
def test_a_table_fits_the_terminal_and_keeps_its_columns(width: int) -> None:
    lines = aligned(ROWS, width)

    assert max(map(len, lines)) <= width
    assert lines[1].endswith("3 of 8")
    assert ("…" in lines[1]) == (width < 39)


def test_the_text_of_others_keeps_to_its_cell_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    nasty = "\x1b[2J\x9b31m\u202ea\nb"
    assert aligned([["NOTE"], [nasty]]) == ["NOTE", "\\x1b[2J\\x9b31m\\u202ea\\nb"]
    print_lines(f"it says {nasty}", "the next line")
    for output in (DataFormat.JSON, DataFormat.YAML):
        print_data({"note": nasty}, output)
    print_list([{"note": nasty}], ListFormat.CSV, [])
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert printed.startswith("it says \\x1b[2J\\x9b31m\\u202ea\\nb\nthe next line\n")


def test_data_for_programs_is_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"note": "Åsa: \x1b[2J\u202e\U0001f9ff\nb"}
    print_data(document, DataFormat.JSON)
    assert json.loads(capsys.readouterr().out) == document
    print_data(document, DataFormat.YAML)
    assert yaml.safe_load(capsys.readouterr().out) == document


def test_csv_has_plain_fields_and_no_formulas() -> None:
    items = [{"id": "1", "note": "=cmd()", "days": [{"free": 1}], "hours": -2.5, "share": True, "end": None}]

    assert as_csv(items) == "id,note,hours,share,end\n1,'=cmd(),-2.5,true,\n"
    assert as_csv([]) == "\n"


def test_lists_of_words_and_details_are_in_the_csv() -> None:
    items: list[dict[str, object]] = [
        {"gpus": [], "details": {}, "hit": {}},
        {"gpus": ["=n1", "n2"], "details": {"model": "A6000", "gpus": 2}, "hit": {"pods": []}},
    ]

    assert as_csv(items) == 'gpus,details\n,\n"\'=n1, n2","model=A6000, gpus=2"\n'


def test_a_day_of_a_clock_change_has_25_hours() -> None:
    assert parse_date("2026-10-26", LAB) - parse_date("2026-10-25", LAB) == timedelta(hours=25)
