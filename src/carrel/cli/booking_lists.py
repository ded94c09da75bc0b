"""`carrel list`, `free` and `usage`: what the booking service knows, as tables."""

from dataclasses import dataclass
from enum import Enum
from functools import partial
from zoneinfo import ZoneInfo

import typer

from carrel.cli.booking_client import BookingClient, asking
from carrel.cli.booking_text import Json, gpus_text, use_text
from carrel.cli.complete import models
from carrel.cli.dates import date_text, parse_date
from carrel.cli.options import BookingOutputSettings, ListFormat, Words
from carrel.cli.output import Column, print_list, rows_of
from carrel.ids import short_id
from carrel.option_fields import argument, option
from carrel.parsing.time import seconds

PAGE = 500
"""Bookings per request, at most."""


@dataclass(frozen=True)
class ListSettings(BookingOutputSettings):
    everybody: bool = option(False, "Bookings of all people and groups, not only yours.", "--all", "-A")
    group: str = option("", "Bookings of this group.")
    model: str = option("", "Only this model.", autocompletion=models)
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
    params = [("limit", str(min(settings.limit, PAGE))), ("newest_first", "true")]
    params += [("state", state) for state in settings.state or ()]
    if settings.group:
        params += [("group", settings.group)]
    elif not settings.everybody:
        params += [("user", "me"), ("with_groups", "true")]
    params += [(name, value) for name, value in (("model", settings.model), ("q", settings.search)) if value]
    with asking(settings) as client:
        found, zone = _all_pages(client, params, settings.limit), client.zone()
    if not found and settings.output is ListFormat.TABLE:
        _print_none(settings)
        return
    columns: list[Column] = [
        ("ID", True, lambda item: short_id(item["id"])),
        ("USER", settings.everybody, lambda item: item["user"]),
        ("GROUP", any(item.get("group") for item in found), lambda item: item.get("group") or "–"),
        ("MODEL", True, lambda item: item["model"]),
        ("GPUS", True, gpus_text),
        ("START", True, lambda item: date_text(item["start"], zone)),
        ("END", True, lambda item: date_text(item["ends"], zone)),
        ("STATE", True, lambda item: item["state"]),
        ("PODS", any(item.get("used") is not None for item in found), lambda item: use_text(item) or "–"),
    ]
    print_list(found, settings.output, rows_of(found, columns))


def _print_none(settings: ListSettings) -> None:
    whose = "There is no booking" if settings.everybody or settings.group else "You have no booking"
    is_filtered = bool(settings.group or settings.model or settings.state or settings.search)
    typer.echo(f"{whose} that matches." if is_filtered else f"{whose}.")
    typer.echo(f"Try:  {'carrel list' + ' -A' * settings.everybody if is_filtered else 'carrel free'}")


def _all_pages(client: BookingClient, params: list[tuple[str, str]], limit: int) -> list[Json]:
    found: list[Json] = []
    cursor = ""
    while len(found) < limit:
        more = [("cursor", cursor)] if cursor else []
        page = client.call("GET", "/bookings", params=[*params, *more]).body
        found += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    return found[:limit]


@dataclass(frozen=True)
class FreeSettings(BookingOutputSettings):
    model: str = argument("", "One model, or a part of its name; default: all.", autocompletion=models)
    days: int = option(0, "Show how many GPUs are free all day, on each of so many days.", min=0, max=366)


def free(settings: FreeSettings) -> None:
    """Show how many GPUs of each model can be booked, from when, and how many no pod holds now.

    What can be booked is free for the whole of the shortest booking that the rules allow; what is free for a shorter
    time, because maintenance or a booking begins, has a column of its own.

    A GPU that can be booked may be held: pods without a booking make room for booked pods. GPUs of pods that make
    no room, because they are exempt or older than Carrel, cannot be booked; the last column says how many these are.

    Examples:

      carrel free

      carrel free a6000 --days 14
    """
    params: Json = {"model": settings.model} if settings.model else {}
    params |= {"days": settings.days} if settings.days else {}
    with asking(settings) as client:
        found = client.call("GET", "/availability" if params else "/models", params=params).body
    items = found["items"]
    rows = _by_day(items) if settings.days else _now(items, ZoneInfo(found["zone"]))
    print_list(items, settings.output, rows)


def _by_day(items: list[Json]) -> list[list[str]]:
    days = [day["day"] for day in items[0]["days"]] if items else []
    rows = [[day, *(str(item["days"][number]["free"]) for item in items)] for number, day in enumerate(days)]
    return [["DAY", *(item["model"] for item in items)], *rows]


def _now(items: list[Json], zone: ZoneInfo) -> list[list[str]]:
    columns: list[Column] = [
        ("MODEL", True, lambda item: item["model"]),
        ("CAN BE BOOKED", True, _bookable),
        ("FROM", True, lambda item: "now" if item["bookable_now"] else date_text(item["next_free"], zone)),
        ("FREE NOW", any(item["free_until"] for item in items), lambda item: _free_now(item, zone)),
        ("HELD BY NO POD", any(item["unheld_now"] is not None for item in items), lambda item: str(item["unheld_now"])),
        ("NOT BOOKABLE", any(item["why_set_aside"] for item in items), lambda item: item["why_set_aside"]),
    ]
    return rows_of(items, columns)


def _bookable(item: Json) -> str:
    overbooked = f", {item['overbooked']} overbooked" if item["overbooked"] else ""
    return f"{item['bookable_now']} of {item['gpus']}{overbooked}"


def _free_now(item: Json, zone: ZoneInfo) -> str:
    """`3 until Wed 25 Nov 2026 08:00 CET (maintenance)`; empty: all of them can be booked."""
    until = item["free_until"]
    return f"{item['free_now']} until {date_text(until, zone)} ({item['free_until_why']})" if until else ""


class UsageBy(Enum):
    """What `carrel usage` has a row for."""

    PERSON = "person"
    MODEL = "model"
    GPU = "gpu"


class UsagePer(Enum):
    """How long a time each row is of."""

    WHOLE = "whole"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True)
class UsageSettings(BookingOutputSettings):
    since: str = option("", "From when: 2026-11-01, mon, -7d; default: 30 days ago.")
    until: str = option("", "Until when; default: now.")
    by: UsageBy = option(UsageBy.PERSON, "A row for each person and model, model (everybody together), or GPU.")
    per: UsagePer = option(UsagePer.WHOLE, "A row for each day, week or month of the lab, or for the whole time.")


def usage(settings: UsageSettings) -> None:
    """Show the GPU hours that were booked, and that pods held and used: yours, or those of all people if you are a lab
    admin. By model everybody sees those of all together.

    HELD: by pods. ACTIVE: of these, minutes in which the GPU computed at all; IDLE: in which it did not; UNKNOWN: the
    rest. COVERED: of the held ones, while a booking covered the pod. Held hours are of whole days.

    Examples:

      carrel usage --since mon

      carrel usage --by model --per week --since -90d

      carrel usage --since 2026-11-01 --until 2026-12-01 -o csv
    """
    named = (("start", settings.since), ("end", settings.until))
    with asking(settings, "carrel usage --since mon") as client:
        zone = client.zone()
        params = {name: seconds(parse_date(value, zone, is_past=True)) for name, value in named if value}
        params |= {"by": settings.by.value, "step": settings.per.value}
        items = client.call("GET", "/usage", params=params).body["items"]
    if not items and settings.output is ListFormat.TABLE:
        typer.echo("No GPU was booked or held in that time.")
        return
    is_of_people, is_of_gpus = settings.by is UsageBy.PERSON, settings.by is UsageBy.GPU
    has_held = any(item.get("held_gpu_hours") is not None for item in items)
    columns: list[Column] = [
        ("FROM", settings.per is not UsagePer.WHOLE, lambda item: date_text(item["start"], zone)),
        ("USER", is_of_people, lambda item: item["user"] or "–"),
        ("GROUP", any(item.get("group") for item in items), lambda item: item.get("group") or "–"),
        ("GPU", is_of_gpus, lambda item: item["gpu"]),
        ("MODEL", True, lambda item: item["model"]),
        ("BOOKINGS", not is_of_gpus, lambda item: str(item["bookings"])),
        ("BOOKED", not is_of_gpus, partial(_hours, "gpu_hours")),
        *(
            (name.upper(), has_held, partial(_hours, f"{name}_gpu_hours"))
            for name in ("held", "active", "idle", "unknown", "covered")
        ),
    ]
    print_list(items, settings.output, rows_of(items, columns))


def _hours(field: str, item: Json) -> str:
    """What is not known has a dash."""
    return "–" if item.get(field) is None else f"{item[field]:,.1f}"
