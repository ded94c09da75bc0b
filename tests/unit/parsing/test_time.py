"""Instants on the wire."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from carrel.parsing import Malformed
from carrel.parsing.time import at, instant, local, micro_seconds, moment, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2025-06-01T08:00:00Z", datetime(2025, 6, 1, 8, tzinfo=UTC), id="UTC"),
        pytest.param("2025-06-01T10:00:00+02:00", datetime(2025, 6, 1, 8, tzinfo=UTC), id="an offset to the east"),
        pytest.param("2025-05-31T20:30:00-11:30", datetime(2025, 6, 1, 8, tzinfo=UTC), id="an offset to the west"),
        pytest.param("2025-06-01t08:00:00z", datetime(2025, 6, 1, 8, tzinfo=UTC), id="small letters"),
        pytest.param(
            "2025-06-01T08:00:00.123456Z", datetime(2025, 6, 1, 8, 0, 0, 123456, UTC), id="a Lease's microseconds"
        ),
        pytest.param("2025-06-01T08:00:00.5Z", datetime(2025, 6, 1, 8, 0, 0, 500000, UTC), id="half a second"),
        pytest.param(
            "2025-06-01T08:00:00.123456999Z", datetime(2025, 6, 1, 8, 0, 0, 123456, UTC), id="nanoseconds are cut off"
        ),
        pytest.param("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC), id="a leap day"),
    ],
)
def test_an_instant_is_read_with_any_offset_and_fraction(text: str, expected: datetime) -> None:
    found = instant(text, "pod lab/train", "terminate-at")
    assert found == expected
    assert found.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("2025-06-01", id="a day"),
        pytest.param("2025-06-01T08:00:00", id="no offset"),
        pytest.param("2025-06-01 08:00:00Z", id="a space for the T"),
        pytest.param("2025-02-30T08:00:00Z", id="30 February"),
        pytest.param("2025-06-01T24:00:00Z", id="24 o'clock"),
        pytest.param("2025-06-01T08:00:60Z", id="a leap second"),
        pytest.param("2025-06-01T08:00Z", id="no seconds"),
        pytest.param("2025-06-01T08:00:00.Z", id="a point without digits"),
        pytest.param("2025-06-01T08:00:00+0200", id="an offset without its colon"),
        pytest.param("2025-06-01T08:00:00+25:00", id="an offset of more than a day"),
        pytest.param("0000-01-01T00:00:00Z", id="the year 0"),
        pytest.param("0001-01-01T00:00:00+01:00", id="before the year 1"),
        pytest.param("9999-12-31T23:59:59-01:00", id="after the year 9999"),
        pytest.param("12025-06-01T08:00:00Z", id="a year of five digits"),
        pytest.param("2025-06-01T08:00:00Z\n", id="a line's end"),
        pytest.param("٢025-06-01T08:00:00Z", id="a digit of another script"),
        pytest.param("1717228800", id="seconds since 1970"),
    ],
)
def test_what_is_no_instant_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match=r"2025-06-01T08:00:00Z"):
        instant(text, "pod lab/train", "terminate-at")


def test_instants_are_written_in_utc_and_never_rounded_up() -> None:
    late = datetime(2025, 6, 1, 10, 0, 0, 999999, timezone(timedelta(hours=2)))
    assert seconds(late) == "2025-06-01T08:00:00Z"
    assert micro_seconds(late) == "2025-06-01T08:00:00.999999Z"
    assert micro_seconds(datetime(2025, 6, 1, 8, tzinfo=UTC)) == "2025-06-01T08:00:00.000000Z"


def test_an_instant_without_a_zone_is_never_written() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        seconds(datetime(2025, 6, 1, 8))


@pytest.mark.parametrize(
    ("when", "zone"),
    [
        pytest.param(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), "Europe/Stockholm", id="the last, in the east"),
        pytest.param(datetime(1, 1, 1, tzinfo=UTC), "America/New_York", id="the first, in the west"),
    ],
)
def test_an_instant_that_has_no_time_in_a_zone_is_written_in_utc(when: datetime, zone: str) -> None:
    """Anybody who writes an object may write such an instant."""
    there = ZoneInfo(zone)
    assert at(when, there) == at(when, UTC)
    assert local(when, there).endswith(" UTC")
    assert moment(when, there).endswith(" UTC")
