"""What a person may start now, as the booking service answers. It reads; `booking_service` asks."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class StartableBooking:
    model: str
    """Empty: any."""
    gpus: int
    used: int
    start: datetime
    end: datetime
    runs: bool
    group: str = ""
    why_short: str = ""
    """Why its GPUs may have to be waited for."""

    @property
    def left(self) -> int:
        return max(0, self.gpus - self.used)


@dataclass(frozen=True, slots=True)
class FreeModel:
    model: str
    gpus: int
    next_free: datetime | None = None


@dataclass(frozen=True, slots=True)
class StartableAnswer:
    """What a person may start now."""

    bookings: tuple[StartableBooking, ...] = ()
    free: tuple[FreeModel, ...] = ()
    book_url: str = ""
    notices: tuple[str, ...] = ()


def read_startable(answer: Any) -> StartableAnswer:
    """Raises `ValueError` if it is not what was agreed."""
    try:
        return StartableAnswer(
            bookings=tuple(_booking(each) for each in answer["bookings"]),
            free=tuple(
                FreeModel(str(each["model"]), int(each["gpus"]), _optional(each.get("next_free")))
                for each in answer["free"]
            ),
            book_url=str(answer.get("book_url") or ""),
            notices=tuple(str(each) for each in answer.get("notices") or ()),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its answer lacks {error}") from None


def _booking(each: Any) -> StartableBooking:
    return StartableBooking(
        model=str(each.get("model") or ""),
        gpus=int(each["gpus"]),
        used=int(each["used"]),
        start=_instant(each["start"]),
        end=_instant(each["end"]),
        runs=bool(each["runs"]),
        group=str(each.get("group") or ""),
        why_short=str(each.get("why_short") or ""),
    )


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone")
    return found


def _optional(text: str | None) -> datetime | None:
    return _instant(text) if text else None
