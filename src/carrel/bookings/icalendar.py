"""Bookings as iCalendar events (RFC 5545), for the feed and for mails. Decision 24 says why no library is used."""

from collections.abc import Iterable
from datetime import UTC, datetime

from carrel.bookings.rules import Booking


def booking_event(booking: Booking, version: int, description: str, now: datetime) -> Iterable[str]:
    """Yield the lines of the event, for the feed and for mails. One that was cancelled before it began is cancelled
    there, too.

    The same booking has the same uid, so that a calendar replaces the event that it has; it ignores one with a lower
    sequence than that of its own.
    """
    end = booking.ends if booking.counts else booking.end
    amount = "a share of " if booking.share else f"{booking.gpus} × " if booking.gpus > 1 else ""
    group = f" ({booking.group})" if booking.group else ""
    yield "BEGIN:VEVENT"
    yield f"UID:{booking.id}@carrel"
    yield f"SEQUENCE:{version}"
    yield f"DTSTAMP:{_stamp(now)}"
    yield f"DTSTART:{_stamp(booking.start)}"
    yield f"DTEND:{_stamp(max(booking.start, end))}"
    yield f"STATUS:{'CONFIRMED' if booking.counts else 'CANCELLED'}"
    yield f"SUMMARY:{_escaped(f'GPU: {amount}{booking.model}{group}')}"
    yield f"DESCRIPTION:{_escaped(description)}"
    yield "END:VEVENT"


def calendar(events: Iterable[Iterable[str]], name: str = "", method: str = "") -> str:
    """`method` is for mail: it tells the calendar program what to do with the events."""
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Carrel//Bookings//EN"]
    lines += [f"METHOD:{method}"] if method else []
    lines += [f"X-WR-CALNAME:{_escaped(name)}"] if name else []
    lines += [line for event in events for line in event]
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
