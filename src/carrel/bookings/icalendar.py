"""iCalendar (RFC 5545), as far as bookings need it: events that are, that changed, and that are no more."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    uid: str
    """The same for the same booking, so that calendars replace what they have."""
    sequence: int
    """Higher for what is newer."""
    start: datetime
    end: datetime
    summary: str
    description: str = ""
    is_cancelled: bool = False


def calendar(events: Iterable[CalendarEvent], now: datetime, name: str = "", method: str = "") -> str:
    """`method` is for mail: it tells the reader's calendar what to do with it."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Carrel//Bookings//EN"]
    lines += [f"METHOD:{method}"] if method else []
    lines += [f"X-WR-CALNAME:{_escaped(name)}"] if name else []
    for event in events:
        lines += [
            "BEGIN:VEVENT",
            f"UID:{event.uid}",
            f"SEQUENCE:{event.sequence}",
            f"DTSTAMP:{_stamp(now)}",
            f"DTSTART:{_stamp(event.start)}",
            f"DTEND:{_stamp(event.end)}",
            f"STATUS:{'CANCELLED' if event.is_cancelled else 'CONFIRMED'}",
            f"SUMMARY:{_escaped(event.summary)}",
            f"DESCRIPTION:{_escaped(event.description)}",
            "END:VEVENT",
        ]
    lines.append("END:VCALENDAR")
    return "".join(f"{folded}\r\n" for line in lines for folded in _folded(line))


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def _escaped(text: str) -> str:
    for letter in ("\\", ";", ","):
        text = text.replace(letter, f"\\{letter}")
    return "\\n".join(text.splitlines())


def _folded(line: str) -> Iterable[str]:
    """Lines are at most 75 octets long; what follows begins with a space. No character is cut in two."""
    piece = ""
    for letter in line:
        if len((piece + letter).encode()) > 75:
            yield piece
            piece = " "
        piece += letter
    yield piece
