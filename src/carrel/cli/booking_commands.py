"""What the commands for bookings do: ask the service, and show what it said, in the lab's zone."""

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import aiohttp
import typer

from carrel.bookings.rules import words
from carrel.cli.booking_options import (
    BookSettings,
    CancelSettings,
    ExtendSettings,
    FreeSettings,
    ListSettings,
    OneSettings,
    ServiceSettings,
    UsageSettings,
)
from carrel.cli.booking_service import Answer, Lost, Refused, Service, no_answer
from carrel.cli.dates import Unclear, instant_of, length, shown
from carrel.cli.login import login_of
from carrel.cli.tables import Listing, show
from carrel.command_errors import NOT_FOUND, REFUSED, USAGE, command_failed
from carrel.parsing.time import seconds

T = TypeVar("T")
Json = dict[str, Any]
AHEAD = ("active", "planned")
WITH_INSTANTS: dict[type, str] = {
    BookSettings: "carrel book a6000 --days 5 --from 2026-12-12",
    ExtendSettings: "carrel extend --until 2026-12-20",
    UsageSettings: "carrel usage --since 2026-11-01 --until 2026-12-01",
}
"""For who wrote an instant that is none: how each command is written with one."""


def free(settings: FreeSettings) -> None:
    async def ask(service: Service) -> Json:
        params: Json = {"model": settings.model} if settings.model else {}
        params |= {"days": settings.days} if settings.days else {}
        wants_days = bool(settings.days or settings.model)
        found: Json = (await service.call("GET", "/availability" if wants_days else "/models", params=params)).body
        return found

    found = _asked(settings, ask)
    zone, items = ZoneInfo(found["zone"]), found["items"]
    if settings.days:
        days = [day["day"] for day in items[0]["days"]] if items else []
        head = ["DAY", *(item["model"] for item in items)]
        rows = [[day, *(str(item["days"][number]["free"]) for item in items)] for number, day in enumerate(days)]
    else:
        sees_cluster = any(item["idle_now"] is not None for item in items)
        head = ["MODEL", "CAN BE BOOKED", "FROM", *(["IDLE NOW"] * sees_cluster)]
        rows = [
            [
                item["model"],
                f"{item['free_now']} of {item['cards']}"
                + (f", {item['overbooked']} overbooked" * bool(item["overbooked"])),
                "now" if item["free_now"] else shown(item["next_free"], zone),
                *([str(item["idle_now"])] * sees_cluster),
            ]
            for item in items
        ]
    show(items, settings.output, [head, *rows])


def book(settings: BookSettings) -> None:
    async def ask(service: Service) -> tuple[Json, ZoneInfo]:
        zone = await service.zone()
        body = _wish(settings, zone)
        if settings.dry_run:
            return (await service.call("POST", "/bookings/preview", json=body)).body, zone
        headers = {"idempotency-key": str(uuid.uuid4())}
        return (await service.call("POST", "/bookings", json=body, headers=headers)).body, zone

    made, zone = _asked(settings, ask)
    if settings.dry_run:
        _show_preview(made, zone, settings.output, "It could be booked")
    else:
        _show_booking(made, zone, settings.output, "Booked")


def list_bookings(settings: ListSettings) -> None:
    async def ask(service: Service) -> tuple[list[Json], ZoneInfo]:
        params = [("limit", str(min(settings.limit, 500))), ("newest_first", "true")]
        params += [("state", state) for state in settings.state or ()]
        params += [("user", "me")] if not settings.everybody else []
        params += [(name, value) for name, value in (("model", settings.model), ("q", settings.search)) if value]
        return await _pages(service, params, settings.limit), await service.zone()

    found, zone = _asked(settings, ask)
    if not found and settings.output is Listing.TABLE:
        whose = "There is no booking" if settings.everybody else "You have no booking"
        is_narrowed = bool(settings.model or settings.state or settings.search)
        typer.echo(f"{whose} that matches." if is_narrowed else f"{whose}.")
        typer.echo(f"Try:  {'carrel list' + ' -A' * settings.everybody if is_narrowed else 'carrel free'}")
        return
    head = ["ID", *(["USER"] * settings.everybody), "MODEL", "CARDS", "START", "END", "STATE"]
    rows = [
        [
            item["id"],
            *([item["user"]] * settings.everybody),
            item["model"],
            _amount(item),
            shown(item["start"], zone),
            shown(item["ends"], zone),
            item["state"],
        ]
        for item in found
    ]
    show(found, settings.output, [head, *rows])


def show_one(settings: OneSettings) -> None:
    async def ask(service: Service) -> tuple[Json, ZoneInfo]:
        return (await _one(service, settings.booking, "show")).body, await service.zone()

    found, zone = _asked(settings, ask)
    _show_booking(found, zone, settings.output, "")


def extend(settings: ExtendSettings) -> None:
    if (settings.days is None) == (not settings.until):
        raise command_failed(
            "Until when?", "One of --days and --until is needed, and only one.", "carrel extend --days 2", USAGE
        )

    async def ask(service: Service) -> tuple[Json, ZoneInfo]:
        zone = await service.zone()
        old = await _one(service, settings.booking, "extend")
        if settings.days is not None:
            end = datetime.fromisoformat(old.body["end"]) + timedelta(days=settings.days)
        else:
            end = instant_of(settings.until, zone)
        body = {"end": seconds(end), **({"reason": settings.reason} if settings.reason else {})}
        path = f"/bookings/{old.body['id']}"
        if settings.dry_run:
            return (await service.call("POST", f"{path}/preview", json=body)).body, zone
        try:
            new = await service.call("PATCH", path, json=body, headers={"if-match": old.etag})
        except Refused as refused:
            # The answer to our own first attempt may have been lost: then it is as we want it.
            new = await service.call("GET", path)
            if refused.status != 412 or new.body["end"] != body["end"]:
                raise
        return new.body, zone

    made, zone = _asked(settings, ask)
    if settings.dry_run:
        _show_preview(made, zone, settings.output, "It could be changed")
    else:
        _show_booking(made, zone, settings.output, "Changed")


def cancel(settings: CancelSettings) -> None:
    async def look(service: Service) -> tuple[Answer, ZoneInfo]:
        return await _one(service, settings.booking, "cancel"), await service.zone()

    async def do(service: Service) -> Json:
        body = {"reason": settings.reason} if settings.reason else {}
        headers = {"if-match": old.etag}
        path = f"/bookings/{old.body['id']}"
        try:
            done: Json = (await service.call("POST", f"{path}/cancel", json=body, headers=headers)).body
        except Refused as refused:
            done = (await service.call("GET", path)).body
            if refused.status != 412 or done["cancelled_at"] is None:
                raise
        return done

    old, zone = _asked(settings, look)
    is_talking = settings.output is Listing.TABLE
    if is_talking or not settings.yes:
        typer.echo("\n".join(_lines(old.body, zone, "")), err=not is_talking)
        typer.echo(old.body.get("consequence") or "It is over; there is nothing to cancel.", err=not is_talking)
    if settings.dry_run:
        return
    if not settings.yes:
        if not sys.stdin.isatty():
            why = "There is nobody to ask: this is not a terminal."
            raise command_failed("Not cancelled", why, f"carrel cancel {old.body['id']} --yes", USAGE)
        if not typer.confirm("Cancel it?", default=False, err=True):
            typer.echo("Left as it is.")
            return
    _show_booking(_asked(settings, do), zone, settings.output, "Cancelled")


def show_usage(settings: UsageSettings) -> None:
    async def ask(service: Service) -> Json:
        zone = await service.zone()
        named = (("start", settings.since), ("end", settings.until))
        params = {name: seconds(instant_of(value, zone)) for name, value in named if value}
        found: Json = (await service.call("GET", "/usage", params=params)).body
        return found

    found = _asked(settings, ask)
    rows = [
        [item["user"], item["model"], str(item["bookings"]), f"{item['card_hours']:,.1f}"] for item in found["items"]
    ]
    show(found["items"], settings.output, [["USER", "MODEL", "BOOKINGS", "CARD HOURS"], *rows])


# --- asking ----------------------------------------------------------------------------------------------------------


def _asked(settings: ServiceSettings, ask: Callable[[Service], Awaitable[T]]) -> T:
    """Runs one conversation with the service; whatever it says no to ends the command, in its words."""
    login = login_of(settings)

    async def conversation() -> T:
        async with aiohttp.ClientSession() as http:
            return await ask(Service(login, http))

    try:
        return asyncio.run(conversation())
    except Refused as refused:
        raise refused.complaint() from None
    except Lost as lost:
        raise no_answer(login.server, lost) from None
    except Unclear as unclear:
        raise command_failed("Which instant?", f"{unclear}.", WITH_INSTANTS[type(settings)], USAGE) from None


def _wish(settings: BookSettings, zone: ZoneInfo) -> Json:
    if (settings.days is None) == (not settings.until):
        advice = f"carrel book {settings.model} --days 5"
        raise command_failed("Until when?", "One of --days and --until is needed, and only one.", advice, USAGE)
    wish: Json = {"model": settings.model, "cards": settings.cards, "share": settings.share}
    for name, value in (("start", settings.start), ("end", settings.until)):
        if value:
            wish[name] = seconds(instant_of(value, zone))
    texts = {"user": settings.user, "reason": settings.reason, "note": settings.note, "namespace": settings.namespace}
    wish |= {name: value for name, value in texts.items() if value}
    return wish | ({"days": settings.days} if settings.days is not None else {})


async def _pages(service: Service, params: list[tuple[str, str]], limit: int) -> list[Json]:
    found: list[Json] = []
    cursor = ""
    while len(found) < limit:
        more = [("cursor", cursor)] if cursor else []
        page = (await service.call("GET", "/bookings", params=[*params, *more])).body
        found += page["items"]
        cursor = page["next_cursor"]
        if not cursor:
            break
    return found[:limit]


async def _one(service: Service, id: str, verb: str) -> Answer:
    """The booking of that id; without one, the caller's own that runs or is planned, if there is exactly one."""
    if not id:
        params = [("user", "me"), *(("state", state) for state in AHEAD)]
        found = (await service.call("GET", "/bookings", params=params)).body["items"]
        if not found:
            why = "No booking of yours runs or is planned."
            raise command_failed(f"Nothing to {verb}", why, "carrel list", NOT_FOUND)
        if len(found) > 1:
            why = "Yours are " + ", ".join(f"{item['id']} ({item['model']}, {item['state']})" for item in found) + "."
            raise command_failed("Which booking?", why, f"carrel {verb} {found[0]['id']}", USAGE)
        id = found[0]["id"]
    return await service.call("GET", f"/bookings/{id}")


# --- showing ---------------------------------------------------------------------------------------------------------


def _show_booking(booking: Json, zone: ZoneInfo, output: Listing, done: str) -> None:
    if output is Listing.TABLE:
        typer.echo("\n".join(_lines(booking, zone, done)))
    else:
        show(booking, output, [])


def _lines(booking: Json, zone: ZoneInfo, done: str) -> list[str]:
    start, end = str(booking["start"]), str(booking["ends"])
    span = length(start, end)
    facts = {
        "id": booking["id"],
        "user": booking["user"],
        "model": f"{booking['model']}, {_amount(booking)}",
        "from": shown(start, zone),
        "until": f"{shown(end, zone)} ({words(span)})" if span > timedelta(0) else "cancelled before it began",
        "state": booking["state"],
        "made by": booking["created_by"] if booking["created_by"] != booking["user"] else "",
        "reason": booking.get("reason"),
        "note": booking.get("note"),
        "namespace": booking.get("namespace"),
    }
    return [*([f"✓ {done}"] * bool(done)), *(f"  {name + ':':<11}{value}" for name, value in facts.items() if value)]


def _show_preview(seen: Json, zone: ZoneInfo, output: Listing, verdict: str) -> None:
    if output is not Listing.TABLE:
        show(seen, output, [])
    elif seen["allowed"]:
        span = words(length(seen["start"], seen["end"]))
        when = f"{shown(seen['start'], zone)} until {shown(seen['end'], zone)} ({span})"
        typer.echo(f"✓ {verdict}: {seen['model']}, {_amount(seen)}, {when}. Nothing was changed.")
    if not seen["allowed"]:
        why = "\n  ".join(problem["message"] for problem in seen["problems"])
        titles = [problem["title"] for problem in seen["problems"]]
        what = titles[0] if len(titles) == 1 else f"{len(titles)} rules would be broken"
        raise command_failed(what, why, seen["hint"] or "carrel list", REFUSED)


def _amount(item: Json) -> str:
    if item["share"]:
        return "a share"
    return f"{item['cards']} card{'s' * (item['cards'] != 1)}"
