"""`carrel list`, `free` and `usage`: what the booking service knows, as tables."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import typer

from carrel.cli.options import BookingOutputSettings, ListFormat, Words
from carrel.option_fields import argument, option

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient
    from carrel.cli.booking_text import Json

PAGE = 500
"""Bookings per request, at most."""


@dataclass(frozen=True)
class ListSettings(BookingOutputSettings):
    everybody: bool = option(False, "Bookings of all people and groups, not only yours.", "--all", "-A")
    group: str = option("", "Bookings of this group.")
    model: str = option("", "Only this model.")
    state: Words = option(None, "Only this state: planned, active, ended or cancelled.")
    search: str = option("", "Part of the person, the group, the model or the note.", "--search", "-q")
    limit: int = option(100, "Number of bookings, at most.", min=1, max=10_000)


def list_bookings(settings: ListSettings) -> None:
    """List your bookings and those of your groups, or those of all people.

    Examples:

      carrel list

      carrel list --group vision --state active

      carrel list -A --state active -o csv
    """
    from carrel.cli.booking_client import ask_service
    from carrel.cli.booking_text import date_text, gpus_text, use_text
    from carrel.cli.output import print_list

    async def ask(client: "BookingClient") -> "tuple[list[Json], ZoneInfo]":
        params = [("limit", str(min(settings.limit, PAGE))), ("newest_first", "true")]
        params += [("state", state) for state in settings.state or ()]
        if settings.group:
            params += [("group", settings.group)]
        elif not settings.everybody:
            params += [("user", "me"), ("with_groups", "true")]
        params += [(name, value) for name, value in (("model", settings.model), ("q", settings.search)) if value]
        return await _all_pages(client, params, settings.limit), await client.zone()

    found, zone = ask_service(settings, ask)
    if not found and settings.output is ListFormat.TABLE:
        _print_none(settings)
        return
    sees_cluster = any(item.get("used") is not None for item in found)
    has_groups = any(item.get("group") for item in found)
    head = [
        "ID",
        *(["USER"] * settings.everybody),
        *(["GROUP"] * has_groups),
        "MODEL",
        "GPUS",
        "START",
        "END",
        "STATE",
        *(["PODS"] * sees_cluster),
    ]
    rows = [
        [
            item["id"],
            *([item["user"]] * settings.everybody),
            *([item.get("group") or "–"] * has_groups),
            item["model"],
            gpus_text(item),
            date_text(item["start"], zone),
            date_text(item["ends"], zone),
            item["state"],
            *([use_text(item) or "–"] * sees_cluster),
        ]
        for item in found
    ]
    print_list(found, settings.output, [head, *rows])


def _print_none(settings: ListSettings) -> None:
    whose = "There is no booking" if settings.everybody or settings.group else "You have no booking"
    is_filtered = bool(settings.group or settings.model or settings.state or settings.search)
    typer.echo(f"{whose} that matches." if is_filtered else f"{whose}.")
    typer.echo(f"Try:  {'carrel list' + ' -A' * settings.everybody if is_filtered else 'carrel free'}")


async def _all_pages(client: "BookingClient", params: list[tuple[str, str]], limit: int) -> "list[Json]":
    found: list[Json] = []
    cursor = ""
    while len(found) < limit:
        more = [("cursor", cursor)] if cursor else []
        page = (await client.call("GET", "/bookings", params=[*params, *more])).body
        found += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    return found[:limit]


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
    from carrel.cli.booking_text import date_text

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
    from carrel.cli.booking_text import date_text

    until = item["free_until"]
    return f"{item['free_now']} until {date_text(until, zone)} ({item['free_until_why']})" if until else ""


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
    from carrel.cli.booking_text import parse_date
    from carrel.cli.output import print_list
    from carrel.parsing.time import seconds

    async def ask(client: "BookingClient") -> "Json":
        zone = await client.zone()
        named = (("start", settings.since), ("end", settings.until))
        params = {name: seconds(parse_date(value, zone)) for name, value in named if value}
        found: Json = (await client.call("GET", "/usage", params=params)).body
        return found

    items = ask_service(settings, ask, "carrel usage --since 2026-11-01 --until 2026-12-01")["items"]
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
