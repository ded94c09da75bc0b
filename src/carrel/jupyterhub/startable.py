"""What a person may start now, as the booking service answers. It reads; `booking_service` asks."""

from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class StartableBooking(msgspec.Struct, frozen=True):
    gpus: int
    used: int
    start: Instant
    end: Instant
    runs: bool
    model: str = ""
    """Empty: any."""
    group: str = ""
    why_short: str = ""
    """Why its GPUs may have to be waited for."""

    @property
    def left(self) -> int:
        return max(0, self.gpus - self.used)


class FreeModel(msgspec.Struct, frozen=True):
    model: str
    gpus: int
    next_free: Instant | None = None


class StartableAnswer(msgspec.Struct, frozen=True):
    """What a person may start now."""

    bookings: tuple[StartableBooking, ...]
    free: tuple[FreeModel, ...]
    book_url: str = ""
    notices: tuple[str, ...] = ()
    waits_when_full: bool = False
    """A notebook for which no GPU is free waits for one; else it runs on CPU."""
    zone: str = "UTC"
    """In which the person reads times."""

    def local(self, at: datetime) -> str:
        """Return `Fri 20 Nov 18:00 CET`: with the zone's name."""
        try:
            zone: tzinfo = ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # the hub's image may know fewer
            zone = UTC
        return f"{at.astimezone(zone):%a %d %b %H:%M %Z}"


def read_startable(answer: Any) -> StartableAnswer:
    """Raises `ValueError` if it is not what was agreed; the message names the field."""
    return msgspec.convert(answer, StartableAnswer)
