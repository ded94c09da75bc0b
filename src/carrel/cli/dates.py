"""Days and instants as people type and read them, in the lab's zone."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from carrel.bookings.rules import moment


class Unclear(Exception):
    """What was typed means no instant, or two."""


def instant_of(text: str, zone: ZoneInfo) -> datetime:
    """`2026-12-12` (midnight in the lab), `2026-12-12T09:00` (there), or with an offset. Raises `Unclear`."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise Unclear(f"{text!r} is no instant; write 2026-12-12, 2026-12-12T09:00 or 2026-12-12T09:00+01:00") from None
    if given.tzinfo is not None:
        return given.astimezone(UTC)
    first, second = (given.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first.astimezone(zone).replace(tzinfo=None) != given:
        raise Unclear(f"{text} does not exist in {zone}: the clocks are put forward then; write it with an offset")
    if first != second:
        raise Unclear(f"{text} exists twice in {zone}: the clocks are put back then; write it with an offset")
    return first


def shown(text: str | None, zone: ZoneInfo) -> str:
    """`Tue 24 Nov 2026 14:00 CET`."""
    return moment(datetime.fromisoformat(text), zone) if text else "–"


def length(start: str, end: str) -> timedelta:
    return datetime.fromisoformat(end) - datetime.fromisoformat(start)
