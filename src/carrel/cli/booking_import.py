"""`carrel import`: takes bookings over from MAIA's dashboard."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from carrel.cli.booking_client import RequestRefused, asking
from carrel.cli.options import BookingServiceSettings
from carrel.cli.output import print_lines
from carrel.command_errors import USAGE, command_failed
from carrel.dialects.maia_bookings import MOST_BOOKINGS, MOST_BYTES, MaiaBooking, UnreadableBookings, read_bookings
from carrel.option_fields import option
from carrel.parsing.time import seconds

HELP = "carrel import --help"
MOST_MISTAKES = 50
"""That are printed."""


@dataclass(frozen=True, kw_only=True)
class ImportSettings(BookingServiceSettings):
    file: Annotated[Path, typer.Argument(help="JSON or CSV with user_email, start_date, end_date, gpu, namespace.")]
    reason: str = option("taken over from MAIA", "For the log.")


def import_bookings(settings: ImportSettings) -> None:
    """Take over the bookings of MAIA's dashboard: those that run, those that are planned, and those that are over,
    whose cooldown goes on. All or none; what was taken over before is not there twice. Needs the role lab-admin.

    Times without an offset are in UTC.

    Examples:

      carrel import bookings.csv

      carrel import bookings.json --reason "MAIA is switched off"
    """
    try:
        if settings.file.stat().st_size > MOST_BYTES:
            why = f"It is larger than {MOST_BYTES // 1024**2} MiB."
            raise command_failed(f"{settings.file} is too large", why, HELP, USAGE)
        bookings = read_bookings(settings.file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "It is not text in UTF-8."
        raise command_failed(f"{settings.file} cannot be read", why, HELP, USAGE) from None
    except UnreadableBookings as unreadable:
        raise _wrong(settings.file, unreadable.mistakes) from None

    if len(bookings) > MOST_BOOKINGS:
        why = f"It has {len(bookings):,}, and at most {MOST_BOOKINGS:,} are taken over at a time: split it."
        raise command_failed(f"{settings.file} has too many bookings", why, HELP, USAGE)
    with asking(settings) as client:
        try:
            outcome = client.call("POST", "/imported-bookings", json=_request(settings, bookings)).body
        except RequestRefused as refused:
            if mistakes := _mistakes(refused, bookings):
                raise _wrong(settings.file, mistakes) from None
            raise
    there = f"; {outcome['there']} were there already" if outcome["there"] else ""
    print_lines(f"{outcome['made']} bookings taken over{there}.")


def _request(settings: ImportSettings, bookings: list[MaiaBooking]) -> dict[str, object]:
    items = [
        {
            "user": each.user,
            "model": each.model,
            "start": seconds(each.start),
            "end": seconds(each.end),
            "namespace": each.namespace,
        }
        for each in bookings
    ]
    return {"items": items, "reason": settings.reason}


def _mistakes(refused: RequestRefused, bookings: list[MaiaBooking]) -> list[str]:
    """With the line of each booking instead of its place in the request."""
    found = []
    for each in refused.problem.get("problems") or ():
        where, _, place = str(each.get("field", "")).rpartition(".")
        if where != "items" or not place.isdecimal() or int(place) >= len(bookings):
            return []
        found.append(f"line {bookings[int(place)].line}: {each.get('message', '')}")
    return found


def _wrong(file: Path, mistakes: Sequence[str]) -> Exception:
    more = len(mistakes) - MOST_MISTAKES
    shown = [*mistakes[:MOST_MISTAKES], *([f"… and {more:,} more mistakes"] if more > 0 else [])]
    again = shlex.join(["carrel", "import", str(file)])
    return command_failed(f"{file} has mistakes: nothing was taken over", "\n".join(shown), again, USAGE)
