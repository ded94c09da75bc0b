"""Bookings as iCalendar events (RFC 5545), for the feed and for mails. Decision 24 says why no library is used."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from carrel.bookings.rules import Booking


@dataclass(frozen=True, slots=True)
class CalendarEvent:
    uid: str
    """The same for the same booking, so that a calendar replaces the event that it has."""
    sequence: int
    """One more with every change: a calendar ignores an event with a lower number than the one it has."""
    start: datetime
    end: datetime
    summary: str
    description: str = ""
    is_cancelled: bool = False


def booking_event(booking: Booking, version: int, description: str) -> CalendarEvent:
    """Return the event for the feed and for mails. One that was cancelled before it began is cancelled there, too."""
    end = booking.ends if booking.counts else booking.end
    amount = "a share of " if booking.share else f"{booking.gpus} × " if booking.gpus > 1 else ""
    return CalendarEvent(
        uid=f"{booking.id}@carrel",
        sequence=version,
        start=booking.start,
        end=max(booking.start, end),
        summary=f"GPU: {amount}{booking.model}" + (f" ({booking.group})" if booking.group else ""),
        description=description,
        is_cancelled=not booking.counts,
    )


def calendar(events: Iterable[CalendarEvent], now: datetime, name: str = "", method: str = "") -> str:
    """`method` is for mail: it tells the calendar program what to do with the events."""
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
    for character in ("\\", ";", ","):
        text = text.replace(character, f"\\{character}")
    return "\\n".join(text.splitlines())


def _folded(line: str) -> Iterable[str]:
    """Lines have at most 75 octets; a continuation begins with a space. No character is cut in two."""
    piece = ""
    for character in line:
        if len((piece + character).encode()) > 75:
            yield piece
            piece = " "
        piece += character
    yield piece
