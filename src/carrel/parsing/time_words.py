"""Instants for people: `Tue 24 Nov 14:00`. Not by `strftime`, which pads the day and depends on the locale."""

from datetime import UTC, date, datetime, tzinfo

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
