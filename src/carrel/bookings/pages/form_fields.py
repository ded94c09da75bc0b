"""What forms and addresses say, read with care: each answer is a value, or in words what is wrong with it."""

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, tzinfo

from starlette.datastructures import FormData, QueryParams

from carrel.bookings.rules import FIRST_YEAR, LAST_YEAR

MOST_TEXT = 500
MOST_CARDS = 10_000


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Unreadable(ValueError):
    """Everything that is wrong with what was sent, in words."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__(" ".join(problems))


def texts(given: FormData | QueryParams) -> dict[str, str]:
    """Files are not asked for, and not taken. What no person would write is cut off, and left out.

    A terminal would obey control characters in a note of somebody else.
    """
    return {
        name: _CONTROL.sub("", value).strip()[:MOST_TEXT] for name, value in given.items() if isinstance(value, str)
    }


def local_instant(text: str, zone: tzinfo) -> datetime:
    """`2026-11-24T14:00` in the lab's zone. Of an hour that the clock shows twice, the first is meant."""
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise Unreadable(f"“{text}” is not a date and a time." if text else "A date and a time are missing.") from None
    if not FIRST_YEAR <= local.year <= LAST_YEAR:
        raise Unreadable(f"“{text}” is too far away.")
    if local.tzinfo is not None:
        return local.astimezone(UTC)
    instant = local.replace(tzinfo=zone).astimezone(UTC)
    shown = instant.astimezone(zone).replace(tzinfo=None)
    if shown != local:
        raise Unreadable(f"The clock never shows {local:%H:%M} on {local:%d %b %Y}: it is set forward then.")
    return instant


def day(text: str) -> date | None:
    """None if it is none, or at the end of the calendar, where no timeline can be drawn."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        return None
    return found if FIRST_YEAR <= found.year <= LAST_YEAR else None


def cards(given: Mapping[str, str]) -> int:
    text = given.get("cards", "") or "1"
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_CARDS):
        raise Unreadable(f"“{text}” is not a number of cards.")
    return int(text)
