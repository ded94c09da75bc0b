"""`carrel usage`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from carrel.cli.options import BookingOutputSettings
from carrel.option_fields import option

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient
    from carrel.cli.booking_text import Json

EXAMPLE = "carrel usage --since 2026-11-01 --until 2026-12-01"


@dataclass(frozen=True)
class UsageSettings(BookingOutputSettings):
    since: str = option("", "First day; default: 30 days ago.")
    until: str = option("", "End; default: now.")


def usage(settings: UsageSettings) -> None:
    """Show the GPU hours that were booked and that pods held: yours, or those of all people if you are a lab admin.

    COVERED: held by pods that a booking covered. BEYOND: held by pods beyond a booking, or without one.

    Examples:

      carrel usage

      carrel usage --since 2026-11-01 --until 2026-12-01 -o csv
    """
    from carrel.cli.booking_client import ask_service
    from carrel.cli.dates import parse_date
    from carrel.cli.output import print_list
    from carrel.parsing.time import seconds

    async def ask(client: "BookingClient") -> "Json":
        zone = await client.zone()
        named = (("start", settings.since), ("end", settings.until))
        params = {name: seconds(parse_date(value, zone)) for name, value in named if value}
        found: Json = (await client.call("GET", "/usage", params=params)).body
        return found

    items = ask_service(settings, ask, EXAMPLE)["items"]
    sees_cluster = any(item.get("covered_gpu_hours") is not None for item in items)
    has_groups = any(item.get("group") for item in items)
    held = ("covered_gpu_hours", "opportunistic_gpu_hours") if sees_cluster else ()
    rows = [
        [
            item["user"] or "–",
            *([item.get("group") or "–"] * has_groups),
            item["model"],
            str(item["bookings"]),
            *(f"{item[name]:,.1f}" for name in ("gpu_hours", *held)),
        ]
        for item in items
    ]
    head = [
        "USER",
        *(["GROUP"] * has_groups),
        "MODEL",
        "BOOKINGS",
        "GPU HOURS",
        *(["COVERED", "BEYOND"] * sees_cluster),
    ]
    print_list(items, settings.output, [head, *rows])
