"""`carrel cancel`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from carrel.cli.options import ListFormat, OneBookingSettings
from carrel.option_fields import option

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient, ServiceAnswer
    from carrel.cli.booking_text import Json


@dataclass(frozen=True)
class CancelSettings(OneBookingSettings):
    yes: bool = option(False, "Do not ask for confirmation.", "--yes", "-y")
    reason: str = option("", "Why, if the booking is another person's.")
    dry_run: bool = option(False, "Only show the consequence; change nothing.", "--dry-run")


def cancel(settings: CancelSettings) -> None:
    """Cancel a booking. The command shows the consequence and asks for confirmation.

    Examples:

      carrel cancel

      carrel cancel 4f2a9c1e --yes
    """
    from carrel.cli.booking_client import RequestRefused, ask_service
    from carrel.cli.booking_text import booking_lines, print_booking
    from carrel.cli.output import is_confirmed, print_lines

    async def look(client: "BookingClient") -> "tuple[ServiceAnswer, ZoneInfo]":
        return await client.find_booking(settings.booking, "cancel"), await client.zone()

    async def do(client: "BookingClient") -> "Json":
        body = {"reason": settings.reason} if settings.reason else {}
        path = f"/bookings/{old.body['id']}"
        try:
            done: Json = (await client.call("POST", f"{path}/cancel", json=body, headers={"if-match": old.etag})).body
        except RequestRefused as refused:
            # The answer to our first attempt may have been lost: then the booking is already cancelled.
            done = (await client.call("GET", path)).body
            if refused.status != 412 or done["cancelled_at"] is None:
                raise
        return done

    old, zone = ask_service(settings, look)
    is_table = settings.output is ListFormat.TABLE
    if is_table or not settings.yes:
        consequence = old.body.get("consequence") or "The booking is over; there is nothing to cancel."
        print_lines(*booking_lines(old.body, zone), consequence, err=not is_table)
    if settings.dry_run:
        return
    without_asking = f"carrel cancel {old.body['id']} --yes"
    if not settings.yes and not is_confirmed("Cancel it?", "Not cancelled", without_asking):
        return
    print_booking(ask_service(settings, do), zone, settings.output, "Cancelled")
