"""How dates are read, as people say them, and written: in the zone of the person, who may have that of the lab."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from carrel.parsing.time import moment, words

UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
DAYS = {"today": 0, "tomorrow": 1, "yesterday": -1}
FORMS = "2026-12-12, 2026-12-12T09:00, 2026-12-12T09:00+01:00, tomorrow, mon 9:00, +3d or +2h"
_LENGTH = re.compile(r"([+-][0-9]{1,5}(?:\.[0-9]{1,3})?) ?(min|h|d|w)")
_DAY_AND_TIME = re.compile(r"([a-z]{3,})?(?: ?([01]?[0-9]|2[0-3]):([0-5][0-9]))?", re.ASCII)


class InvalidDate(Exception):
    """The text is not a date, or the time does not exist or exists twice."""


def parse_date(text: str, zone: ZoneInfo, now: datetime | None = None, *, is_past: bool = False) -> datetime:
    """Read a date in this zone, a time with an offset, or a length of time from now.

    A weekday, or a time without a day, is the next one. `is_past`: it is the last one. What counts from now has whole
    minutes: nobody wants to end at 14:03:27.
    """
    now = now or datetime.now(UTC)
    said = " ".join(text.lower().split())
    if said == "now" or (said == "today" and not is_past):
        return now
    try:
        if length := _LENGTH.fullmatch(said):
            return (now + float(length[1]) * UNITS[length[2]]).replace(second=0, microsecond=0)
        if said and (found := _DAY_AND_TIME.fullmatch(said)):
            return _in_zone(_meant(found, now.astimezone(zone).replace(tzinfo=None), is_past), text, zone)
        given = datetime.fromisoformat(text.strip())
        return given.astimezone(UTC) if given.tzinfo is not None else _in_zone(given, text, zone)
    except (ValueError, OverflowError):
        raise InvalidDate(f"{text!r} is not a date; write {FORMS}") from None


def _meant(found: re.Match[str], now: datetime, is_past: bool) -> datetime:
    """The local time of `tomorrow`, `mon 9:00` or `9:00`. Raises `ValueError`."""
    word, hour, minute = found[1] or "", int(found[2] or 0), int(found[3] or 0)
    today = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if word in DAYS:
        return today + timedelta(days=DAYS[word])
    weekday = next((number for number, name in enumerate(WEEKDAYS) if name.startswith(word)), None) if word else None
    if word and weekday is None:
        raise ValueError(word)
    first, step = (weekday - now.weekday(), 7) if weekday is not None else (0, 1)
    near = [today + timedelta(days=first + days) for days in (-step, 0, step)]
    return max(each for each in near if each <= now) if is_past else min(each for each in near if each > now)


def _in_zone(given: datetime, text: str, zone: ZoneInfo) -> datetime:
    first, second = (given.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first.astimezone(zone).replace(tzinfo=None) != given:
        raise InvalidDate(f"{text} does not exist in {zone}: the clock is set forward then; write it with an offset")
    if first != second:
        raise InvalidDate(f"{text} exists twice in {zone}: the clock is set back then; write it with an offset")
    return first


def later(start: datetime, length: timedelta) -> datetime:
    """Raises `InvalidDate` where the calendar ends before."""
    try:
        return start + length
    except OverflowError:
        raise InvalidDate(f"{words(length)} after {start.date()} there is no date; the last year is 9999") from None


def date_text(text: str | None, zone: ZoneInfo) -> str:
    """`Tue 24 Nov 2026 14:00 CET`."""
    return moment(datetime.fromisoformat(text), zone) if text else "–"


def duration(start: str, end: str) -> timedelta:
    return datetime.fromisoformat(end) - datetime.fromisoformat(start)
