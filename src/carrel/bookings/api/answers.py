"""Makes the API's answers of our own types."""

from datetime import datetime
from typing import Any

from carrel.bookings.api.models import BookingOut, LogEntryOut, PreviewOut, ProblemItem, UseOut, WindowOut
from carrel.bookings.queries import Reader
from carrel.bookings.records import BookingRecord, LogEntry, MaintenanceWindow, PersonUsage, Preview
from carrel.bookings.rules import Booking
from carrel.cluster.coverage.coverage_words import BookingInUse
from carrel.parsing.time import seconds


def _what_is_booked(booking: Booking) -> dict[str, Any]:
    return {
        "user": booking.user,
        "model": booking.model,
        "start": seconds(booking.start),
        "end": seconds(booking.end),
        "gpus": booking.gpus,
        "share": booking.share,
        "group": booking.group,
    }


def booking_out(
    record: BookingRecord,
    reader: Reader,
    now: datetime,
    consequence: str | None = None,
    use: BookingInUse | None = None,
) -> BookingOut:
    """Without what only its person, the members of its group and lab admins may see, for everybody else. The map shows
    everybody all pods."""
    booking = record.booking
    is_private = not reader.may_see(record)
    return BookingOut(
        id=booking.id,
        **_what_is_booked(booking),
        state=record.state(now),
        ends=seconds(booking.ends),
        cancelled_at=seconds(booking.cancelled_at) if booking.cancelled_at else None,
        namespace=None if is_private else record.namespace,
        note=None if is_private else record.note,
        reason=None if is_private else record.reason,
        created_at=seconds(record.created_at),
        created_by=record.created_by,
        version=record.version,
        consequence=consequence,
        used=use.used if use else None,
        pods=list(use.pods) if use else [],
    )


def preview_out(seen: Preview) -> PreviewOut:
    booking = seen.booking
    return PreviewOut(
        allowed=seen.is_allowed,
        **_what_is_booked(booking),
        problems=[ProblemItem(code=p.rule, title=p.title, message=p.message) for p in seen.problems],
        earliest_start=seconds(seen.earliest_start) if seen.earliest_start else None,
        hint=seen.hint or None,
    )


def window_out(window: MaintenanceWindow) -> WindowOut:
    m = window.maintenance
    return WindowOut(
        id=window.id,
        model=m.model,
        start=seconds(m.start),
        end=seconds(m.end),
        gpus=m.gpus,
        why=window.why,
        created_by=window.created_by,
    )


def entry_out(entry: LogEntry) -> LogEntryOut:
    fields: dict[str, Any] = {name: getattr(entry, name) for name in ("number", "actor", "action", "subject")}
    return LogEntryOut(
        **fields, at=seconds(entry.at), booking=entry.booking, why=entry.why, details=dict(entry.details)
    )


def use_out(use: PersonUsage) -> UseOut:
    return UseOut(
        user=use.user,
        model=use.model,
        bookings=use.bookings,
        gpu_hours=round(use.gpu_hours, 2),
        group=use.group,
        covered_gpu_hours=_rounded(use.covered_hours),
        opportunistic_gpu_hours=_rounded(use.opportunistic_hours),
    )


def _rounded(hours: float | None) -> float | None:
    return None if hours is None else round(hours, 2)
