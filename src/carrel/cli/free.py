"""`carrel free`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from carrel.cli.options import BookingOutputSettings
from carrel.option_fields import argument, option

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient
    from carrel.cli.booking_text import Json


@dataclass(frozen=True)
class FreeSettings(BookingOutputSettings):
    model: str = argument("", "One model, or a part of its name; default: all.")
    days: int = option(0, "Show how many GPUs are free all day, on each of so many days.", min=0, max=366)


def free(settings: FreeSettings) -> None:
    """Show how many GPUs of each model can be booked, from when, and how many are idle now.

    What can be booked is free for the whole of the shortest booking that the rules allow; what is free for a shorter
    time, because maintenance or a booking begins, has a column of its own.

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
    some_short = any(item["free_until"] for item in items)
    some_set_aside = any(item["why_set_aside"] for item in items)
    rows = [
        [
            item["model"],
            _bookable(item),
            "now" if item["bookable_now"] else date_text(item["next_free"], zone),
            *([_free_now(item, zone)] * some_short),
            *([str(item["idle_now"])] * sees_cluster),
            *([item["why_set_aside"]] * some_set_aside),
        ]
        for item in items
    ]
    head = [
        "MODEL",
        "CAN BE BOOKED",
        "FROM",
        *(["FREE NOW"] * some_short),
        *(["IDLE NOW"] * sees_cluster),
        *(["NOT BOOKABLE"] * some_set_aside),
    ]
    return [head, *rows]


def _bookable(item: "Json") -> str:
    overbooked = f", {item['overbooked']} overbooked" if item["overbooked"] else ""
    return f"{item['bookable_now']} of {item['gpus']}{overbooked}"


def _free_now(item: "Json", zone: ZoneInfo) -> str:
    """`3 until Wed 25 Nov 2026 08:00 CET (maintenance)`; empty: all of them can be booked."""
    from carrel.cli.dates import date_text

    until = item["free_until"]
    return f"{item['free_now']} until {date_text(until, zone)} ({item['free_until_why']})" if until else ""
