"""Dates and times as people type and read them, in the zone of the lab."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from carrel.parsing.time_words import moment


class InvalidDate(Exception):
    """The text is not a date, or the time does not exist or exists twice."""


def parse_date(text: str, zone: ZoneInfo) -> datetime:
    """Reads `2026-12-12` (midnight in the lab), `2026-12-12T09:00` (in the lab), or a time with an offset."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        examples = "2026-12-12, 2026-12-12T09:00 or 2026-12-12T09:00+01:00"
        raise InvalidDate(f"{text!r} is not a date; write {examples}") from None
    if given.tzinfo is not None:
        return given.astimezone(UTC)
    first, second = (given.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first.astimezone(zone).replace(tzinfo=None) != given:
        raise InvalidDate(f"{text} does not exist in {zone}: the clock is set forward then; write it with an offset")
    if first != second:
        raise InvalidDate(f"{text} exists twice in {zone}: the clock is set back then; write it with an offset")
    return first


def date_text(text: str | None, zone: ZoneInfo) -> str:
    """`Tue 24 Nov 2026 14:00 CET`."""
    return moment(datetime.fromisoformat(text), zone) if text else "–"


def duration(start: str, end: str) -> timedelta:
    return datetime.fromisoformat(end) - datetime.fromisoformat(start)
