"""Reads the fields of forms and query strings: each gives a value, or raises `InvalidForm` with the reason."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, tzinfo

from starlette.datastructures import FormData, QueryParams

from carrel.bookings.rules import FIRST_YEAR, LAST_YEAR

MAX_TEXT = 500
MAX_GPUS = 10_000


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class InvalidForm(ValueError):
    """Everything that is wrong with a form, in words."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(" ".join(problems))


def texts(given: FormData | QueryParams) -> dict[str, str]:
    """The text fields. Files are ignored, long text is cut, control characters are removed.

    A terminal would obey control characters in another person's note.
    """
    return {name: _CONTROL.sub("", value).strip()[:MAX_TEXT] for name, value in given.items() if isinstance(value, str)}


def local_instant(text: str, zone: tzinfo) -> datetime:
    """Reads `2026-11-24T14:00` in the lab's zone. If the clock shows that time twice, it is the first."""
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidForm(f"“{text}” is not a date and time." if text else "The date and time are missing.") from None
    if not FIRST_YEAR <= local.year <= LAST_YEAR:
        raise InvalidForm(f"“{text}” is too far in the past or future.")
    if local.tzinfo is not None:
        return local.astimezone(UTC)
    instant = local.replace(tzinfo=zone).astimezone(UTC)
    shown = instant.astimezone(zone).replace(tzinfo=None)
    if shown != local:
        raise InvalidForm(f"{local:%H:%M} does not exist on {local:%d %b %Y}: the clock is set forward then.")
    return instant


def day(text: str) -> date | None:
    """None if the text is not a date, or too near the end of the calendar to draw a timeline."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if FIRST_YEAR <= found.year <= LAST_YEAR else None


def gpu_count(given: Mapping[str, str]) -> int:
    text = given.get("gpus", "") or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_GPUS):
        raise InvalidForm(f"“{text}” is not a number of GPUs.")
    return int(text)
