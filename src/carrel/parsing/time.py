"""Instants and lengths of time: on the wire, and for people.

On the wire instants are RFC 3339, read with any offset and fraction, written in UTC. Kubernetes writes `metav1.Time` in
whole seconds and `metav1.MicroTime` (Leases) with six digits. An instant without an offset is refused: it is ambiguous.
Writers cut a fraction off and never round up, so that no instant is written as later than it is.

For people: `strftime` would pad the day and depend on the locale.
"""

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carrel.parsing.malformed import Malformed

_EXAMPLE = "an instant such as 2025-06-01T08:00:00Z or 2025-06-01T10:00:00+02:00"
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]((?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,30}))?([Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


def instant(text: str, subject: str, field: str) -> datetime:
    """In UTC; digits beyond microseconds are cut off."""
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise Malformed(subject, field, text, _EXAMPLE)
    day, time, fraction, offset = match.groups()
    try:
        return datetime.fromisoformat(
            f"{day}T{time}.{(fraction or '')[:6]:0<6}{'+00:00' if offset in 'Zz' else offset}"
        ).astimezone(UTC)
    except (ValueError, OverflowError):
        # 30 February, minute 60, or an offset that leads out of the years 1 to 9999.
        raise Malformed(subject, field, text, _EXAMPLE) from None


def seconds(moment: datetime) -> str:
    """An instant as `metav1.Time`: `2025-06-01T08:00:00Z`."""
    return f"{_utc(moment).isoformat(timespec='seconds').removesuffix('+00:00')}Z"


def micro_seconds(moment: datetime) -> str:
    """An instant as `metav1.MicroTime`: `2025-06-01T08:00:00.000000Z`."""
    return f"{_utc(moment).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def day(when: date) -> str:
    """`Tue 24 Nov`."""
    return f"{WEEKDAYS[when.weekday()]} {when.day} {MONTHS[when.month - 1]}"


def at(instant: datetime, zone: tzinfo) -> str:
    """`Tue 24 Nov 14:00`."""
    there = _in_zone(instant, zone)
    return f"{day(there)} {there:%H:%M}"


def _in_zone(instant: datetime, zone: tzinfo) -> datetime:
    """In UTC where the zone leads out of the years 1 to 9999: others write such instants."""
    try:
        return instant.astimezone(zone)
    except OverflowError:
        return instant.astimezone(UTC)


def zone_named(name: str) -> ZoneInfo | None:
    """Return the IANA zone of this name; None: there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def local(instant: datetime, zone: tzinfo) -> str:
    """`Tue 24 Nov 14:00 CET`: for sentences that stand alone, with the zone's name."""
    return f"{at(instant, zone)} {_in_zone(instant, zone):%Z}"


def moment(instant: datetime, zone: tzinfo) -> str:
    """`Tue 24 Nov 2026 14:00 CET`; seconds only if there are any."""
    there = _in_zone(instant, zone)
    clock = "%H:%M:%S" if there.second or there.microsecond else "%H:%M"
    return there.strftime(f"%a %d %b %Y {clock} %Z")


def words(length: timedelta) -> str:
    """`3 d 4 h`, exact to the second: `14 d 23 h 59 min 59 s`."""
    seconds = int(abs(length).total_seconds())
    parts = [
        (seconds // 86400, "d"),
        (seconds % 86400 // 3600, "h"),
        (seconds % 3600 // 60, "min"),
        (seconds % 60, "s"),
    ]
    shown = " ".join(f"{amount} {unit}" for amount, unit in parts if amount)
    return ("-" if length < timedelta(0) else "") + (shown or "0 s")
