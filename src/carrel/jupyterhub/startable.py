"""Asks the booking service what a person may start now, with the token of the hub's ServiceAccount."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import AsyncHTTPClient

TIMEOUT_S = 5.0
"""The person waits for the page."""


class BookingServiceAway(Exception):
    """It does not answer, or its answer cannot be used. The message says why."""


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

    @property
    def left(self) -> int:
        return max(0, self.gpus - self.used)


@dataclass(frozen=True, slots=True)
class FreeGpus:
    model: str
    gpus: int
    next_free: datetime | None = None


@dataclass(frozen=True, slots=True)
class Startable:
    """What a person may start now."""

    bookings: tuple[StartableBooking, ...] = ()
    free: tuple[FreeGpus, ...] = ()
    book_url: str = ""
    notices: tuple[str, ...] = ()


async def ask_startable(url: str, token_file: str, user: str) -> Startable:
    """Raises `BookingServiceAway`."""
    asked = f"{url.rstrip('/')}/api/v1/startable?{urlencode({'user': user})}"
    try:
        token = Path(token_file).read_text().strip()  # noqa: ASYNC240 # a small file, which the kubelet renews
        headers = {"Authorization": f"Bearer {token}"}
        answer = await AsyncHTTPClient().fetch(asked, headers=headers, request_timeout=TIMEOUT_S)
        return read_startable(json.loads(answer.body))
    except (OSError, ValueError) as error:
        raise BookingServiceAway(f"The booking service at {url} cannot be asked about {user!r}: {error}") from error
    except Exception as error:  # tornado's errors have no common class
        raise BookingServiceAway(f"The booking service at {url} does not answer: {error}") from error


def read_startable(answer: Any) -> Startable:
    """Raises `ValueError` if it is not what was agreed."""
    try:
        return Startable(
            bookings=tuple(_booking(each) for each in answer["bookings"]),
            free=tuple(
                FreeGpus(str(each["model"]), int(each["gpus"]), _optional(each.get("next_free")))
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
    )


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the time {text!r} has no zone")
    return found


def _optional(text: str | None) -> datetime | None:
    return _instant(text) if text else None
