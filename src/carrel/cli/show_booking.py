"""`carrel show`."""

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from carrel.cli.options import OneBookingSettings

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient
    from carrel.cli.booking_text import Json

ShowSettings = OneBookingSettings


def show(settings: ShowSettings) -> None:
    """Show one booking: your active or planned one, or any by its id.

    Examples:

      carrel show

      carrel show 4f2a9c1e -o yaml
    """
    from carrel.cli.booking_client import ask_service
    from carrel.cli.booking_text import print_booking

    async def ask(client: "BookingClient") -> "tuple[Json, ZoneInfo]":
        return (await client.find_booking(settings.booking, "show")).body, await client.zone()

    found, zone = ask_service(settings, ask)
    print_booking(found, zone, settings.output, "")
