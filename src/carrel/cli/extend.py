"""`carrel extend`."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from carrel.cli.options import OneBookingSettings
from carrel.option_fields import option

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient
    from carrel.cli.booking_text import Json

EXAMPLE = "carrel extend --until 2026-12-20"


@dataclass(frozen=True)
class ExtendSettings(OneBookingSettings):
    days: float | None = option(None, "Days to add; a negative number shortens the booking.")
    until: str = option("", "New end, instead of --days.")
    reason: str = option("", "Why, if the booking is another person's.")
    dry_run: bool = option(False, "Only check; change nothing.", "--dry-run")


def extend(settings: ExtendSettings) -> None:
    """Change the end of a booking: later or earlier.

    Examples:

      carrel extend --days 2

      carrel extend 4f2a9c1e --until 2026-12-20 --dry-run
    """
    from carrel.cli.booking_client import RequestRefused, ask_service
    from carrel.cli.booking_text import check_one_end, print_booking, print_preview
    from carrel.cli.dates import parse_date
    from carrel.parsing.time import seconds

    check_one_end(settings.days, settings.until, "carrel extend --days 2")

    async def ask(client: "BookingClient") -> "tuple[Json, ZoneInfo]":
        zone = await client.zone()
        old = await client.find_booking(settings.booking, "extend")
        if settings.days is not None:
            end = datetime.fromisoformat(old.body["end"]) + timedelta(days=settings.days)
        else:
            end = parse_date(settings.until, zone)
        body = {"end": seconds(end), **({"reason": settings.reason} if settings.reason else {})}
        path = f"/bookings/{old.body['id']}"
        if settings.dry_run:
            return (await client.call("POST", f"{path}/preview", json=body)).body, zone
        try:
            new = await client.call("PATCH", path, json=body, headers={"if-match": old.etag})
        except RequestRefused as refused:
            # The answer to our first attempt may have been lost: then the booking already has the new end.
            new = await client.call("GET", path)
            if refused.status != 412 or new.body["end"] != body["end"]:
                raise
        return new.body, zone

    answer, zone = ask_service(settings, ask, EXAMPLE)
    if settings.dry_run:
        print_preview(answer, zone, settings.output, "You can change it to this")
    else:
        print_booking(answer, zone, settings.output, "Changed")
