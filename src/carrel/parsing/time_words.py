"""Instants and lengths of time for people. `strftime` would pad the day and depend on the locale."""

from datetime import UTC, date, datetime, timedelta, tzinfo

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def day(when: date) -> str:
    """`Tue 24 Nov`."""
    return f"{WEEKDAYS[when.weekday()]} {when.day} {MONTHS[when.month - 1]}"


def at(instant: datetime, zone: tzinfo) -> str:
    """`Tue 24 Nov 14:00`."""
    local = instant.astimezone(zone)
    return f"{day(local)} {local:%H:%M}"


def in_utc(instant: datetime) -> str:
    """`Tue 24 Nov 14:00 UTC`: where the lab's zone is not known."""
    return f"{at(instant, UTC)} UTC"


def moment(instant: datetime, zone: tzinfo) -> str:
    """`Tue 24 Nov 2026 14:00 CET`; seconds only if there are any."""
    local = instant.astimezone(zone)
    clock = "%H:%M:%S" if local.second or local.microsecond else "%H:%M"
    return local.strftime(f"%a %d %b %Y {clock} %Z")


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
