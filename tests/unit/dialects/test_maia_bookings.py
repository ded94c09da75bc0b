"""MAIA's bookings in files: JSON and CSV, and everything that is wrong at once, with its line."""

import json
from datetime import UTC, datetime

import pytest

from carrel.dialects.maia_bookings import MaiaBooking, UnreadableBookings, read_bookings

START, END = datetime(2026, 11, 10, tzinfo=UTC), datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
COLUMNS = "the columns user_email, start_date, end_date"
BOOKING = {
    "user_email": "ada@lab.example",
    "start_date": "2026-11-10",
    "end_date": "2026-11-20 08:30:00",
    "gpu": "NVIDIA-RTX-A6000",
    "namespace": "vision_lab",
}


def expected(line: int) -> MaiaBooking:
    return MaiaBooking(line, "ada@lab.example", "NVIDIA-RTX-A6000", START, END, "vision_lab")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(json.dumps([BOOKING]), 1, id="JSON"),
        pytest.param(json.dumps([BOOKING], indent=2), 2, id="JSON over several lines"),
        pytest.param(json.dumps(BOOKING), 1, id="one object"),
        pytest.param(json.dumps([{"model": "gpu.booking", "pk": 7, "fields": BOOKING}]), 1, id="as dumpdata writes it"),
        pytest.param(f"{','.join(BOOKING)}\n{','.join(BOOKING.values())}\n", 2, id="CSV"),
        pytest.param(f"\ufeffid,{','.join(BOOKING)}\r\n7,{','.join(BOOKING.values())}\r\n", 2, id="a BOM"),
        pytest.param(f"\ufeff{';'.join(BOOKING)}\r\n{';'.join(BOOKING.values())}\r\n", 2, id="semicolons"),
        pytest.param(f"{','.join(BOOKING)}\n,,,,\n{','.join(BOOKING.values())}\n,,,,,,\n", 3, id="empty rows"),
        pytest.param("\ufeff" + json.dumps([BOOKING]), 1, id="JSON with a BOM"),
    ],
)
def test_json_and_csv_are_read_with_the_line_of_each_booking(text: str, line: int) -> None:
    assert read_bookings(text) == [expected(line)]


@pytest.mark.parametrize(
    "until", ["2026-11-20T08:30:00Z", "2026-11-20T09:30:00+01:00", "2026-11-20T08:30:00", "2026-11-20 08:30:00.000000"]
)
def test_a_time_without_an_offset_is_in_utc(until: str) -> None:
    (found,) = read_bookings(json.dumps([{**BOOKING, "end_date": until}]))
    assert found.end == END


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        pytest.param(
            json.dumps([BOOKING, {**BOOKING, "gpu": "", "end_date": "soon"}, 7], indent=0),
            [
                "line 9: gpu is missing",
                "line 9: end_date is 'soon'; expected a time such as 2026-11-20 08:00:00",
                "line 16: an object with user_email, start_date, end_date, gpu is expected",
            ],
            id="several mistakes",
        ),
        pytest.param(
            "user,gpu\na,b\n",
            ["line 1: the columns user_email, start_date, end_date are missing; it has user, gpu"],
            id="columns",
        ),
        pytest.param('[{"user_email": }]', ["line 1: this is no JSON: Expecting value"], id="no JSON"),
        pytest.param(json.dumps([BOOKING])[:-1], ["line 1: the list does not end"], id="cut off"),
        pytest.param("[]", ["it has no bookings"], id="an empty list"),
        pytest.param("x" * 131_073, ["line 1: field larger than field limit (131072)"], id="a column without an end"),
        pytest.param(
            "", ["line 1: the columns user_email, start_date, end_date, gpu are missing; it has none"], id="empty"
        ),
    ],
)
def test_everything_that_is_wrong_is_said_with_its_line(text: str, mistakes: list[str]) -> None:
    with pytest.raises(UnreadableBookings) as caught:
        read_bookings(text)
    assert caught.value.mistakes == mistakes
