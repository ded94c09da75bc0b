"""Instants on the wire: RFC 3339, read with any offset and fraction, written in UTC.

Kubernetes writes `metav1.Time` in whole seconds and `metav1.MicroTime` (Leases) with six digits. An instant without an
offset is refused: it is ambiguous. Writers cut a fraction off and never round up, so that no instant is written as
later than it is.
"""

import re
from datetime import UTC, datetime

from carrel.parsing.malformed import Malformed

_EXAMPLE = "an instant such as 2025-06-01T08:00:00Z or 2025-06-01T10:00:00+02:00"
_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,30}))?([Zz]|[+-][0-9]{2}:[0-9]{2})",
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
        # 30 February, 25 o'clock, or an offset that leads out of the years 1 to 9999.
        raise Malformed(subject, field, text, _EXAMPLE) from None


def seconds(moment: datetime) -> str:
    """As `metav1.Time`: `2025-06-01T08:00:00Z`."""
    return f"{_utc(moment).isoformat(timespec='seconds').removesuffix('+00:00')}Z"


def micro_seconds(moment: datetime) -> str:
    """As `metav1.MicroTime`: `2025-06-01T08:00:00.000000Z`."""
    return f"{_utc(moment).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
