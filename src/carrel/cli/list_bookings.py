"""`carrel list`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import typer

from carrel.cli.options import BookingOutputSettings, ListFormat, Words
from carrel.option_fields import option

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
    from carrel.cli.booking_text import gpus_text, use_text
    from carrel.cli.dates import date_text
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
