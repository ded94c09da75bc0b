"""`carrel free`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from carrel.cli.options import BookingOutputSettings

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient
    from carrel.cli.booking_text import Json


@dataclass(frozen=True)
class FreeSettings(BookingOutputSettings):
    model: Annotated[str, typer.Argument(help="One model, or a part of its name; default: all.")] = ""
    days: Annotated[
        int, typer.Option(help="Show how many GPUs can be booked on each of so many days.", min=0, max=366)
    ] = 0


def free(settings: FreeSettings) -> None:
    """Show how many GPUs of each model can be booked, from when, and how many are idle now.

    A GPU that can be booked need not be idle: pods without a booking make room for booked pods. GPUs of pods that make
    no room, because they are exempt or older than Carrel, cannot be booked; the last column says how many these are.

    Examples:

      carrel free

      carrel free a6000 --days 14
    """
    from carrel.cli.booking_client import ask_service
    from carrel.cli.output import print_list

    async def ask(client: "BookingClient") -> "Json":
        params: Json = {"model": settings.model} if settings.model else {}
        params |= {"days": settings.days} if settings.days else {}
        path = "/availability" if settings.days or settings.model else "/models"
        found: Json = (await client.call("GET", path, params=params)).body
        return found

    found = ask_service(settings, ask)
    items = found["items"]
    rows = _by_day(items) if settings.days else _now(items, ZoneInfo(found["zone"]))
    print_list(items, settings.output, rows)


def _by_day(items: "list[Json]") -> list[list[str]]:
    days = [day["day"] for day in items[0]["days"]] if items else []
    rows = [[day, *(str(item["days"][number]["free"]) for item in items)] for number, day in enumerate(days)]
    return [["DAY", *(item["model"] for item in items)], *rows]


def _now(items: "list[Json]", zone: ZoneInfo) -> list[list[str]]:
    from carrel.cli.dates import date_text

    sees_cluster = any(item["idle_now"] is not None for item in items)
    some_set_aside = any(item.get("why_set_aside") for item in items)  # an older service does not say
    rows = [
        [
            item["model"],
            _bookable(item),
            "now" if item["free_now"] else date_text(item["next_free"], zone),
            *([str(item["idle_now"])] * sees_cluster),
            *([item.get("why_set_aside", "")] * some_set_aside),
        ]
        for item in items
    ]
    head = ["MODEL", "CAN BE BOOKED", "FROM", *(["IDLE NOW"] * sees_cluster), *(["NOT BOOKABLE"] * some_set_aside)]
    return [head, *rows]


def _bookable(item: "Json") -> str:
    overbooked = f", {item['overbooked']} overbooked" if item["overbooked"] else ""
    return f"{item['free_now']} of {item['cards']}{overbooked}"
