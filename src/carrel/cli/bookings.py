"""`carrel book`, `extend`, `cancel` and `show`: one booking."""

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from carrel.cli.options import BookingOutputSettings, ListFormat, OneBookingSettings
from carrel.option_fields import option

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient, ServiceAnswer
    from carrel.cli.booking_text import Json


@dataclass(frozen=True, kw_only=True)
class BookSettings(BookingOutputSettings):
    model: Annotated[str, typer.Argument(help="GPU model; a part of the name is enough if it means one model.")]
    days: float | None = option(None, "Length, in days of 24 hours.", min=0.01)
    until: str = option("", "End, instead of --days.")
    start: str = option("", "Start: 2026-12-12 (midnight in the lab) or 2026-12-12T09:00; default: now.", "--from")
    gpus: int = option(1, "Number of GPUs.", min=1)
    share: bool = option(False, "Book a share of one GPU's memory, not whole GPUs.", "--share")
    user: str = option("", "Book for this person; needs the role lab-admin and --reason.", "--for")
    group: str = option("", "Book for this group, whose members share the GPUs; you must be its manager.")
    reason: str = option("", "Why you book for another person; they see it.")
    note: str = option("", "A note for yourself and the lab admins.")
    namespace: str = option("", "Namespace of your pods.", "--namespace", "-n")
    dry_run: bool = option(False, "Only check; change nothing.", "--dry-run")


def book(settings: BookSettings) -> None:
    """Book GPUs of a model, from now or from a date.

    Examples:

      carrel book a6000 --days 5 --dry-run

      carrel book a6000 --days 5 --from 2026-12-12

      carrel book a100 --gpus 2 --until 2026-12-20T18:00 --note "ablation runs"

      carrel book a100 --gpus 4 --days 5 --group vision
    """
    from carrel.cli.booking_client import ask_service
    from carrel.cli.booking_text import check_one_end, print_booking, print_preview

    check_one_end(settings.days, settings.until, f"carrel book {settings.model} --days 5")

    async def ask(client: "BookingClient") -> "tuple[Json, ZoneInfo]":
        zone = await client.zone()
        body = _request(settings, zone)
        if settings.dry_run:
            return (await client.call("POST", "/bookings/preview", json=body)).body, zone
        headers = {"idempotency-key": str(uuid.uuid4())}
        return (await client.call("POST", "/bookings", json=body, headers=headers)).body, zone

    answer, zone = ask_service(settings, ask, "carrel book a6000 --days 5 --from 2026-12-12")
    if settings.dry_run:
        print_preview(answer, zone, settings.output, "You can book this")
    else:
        print_booking(answer, zone, settings.output, "Booked")


def _request(settings: BookSettings, zone: ZoneInfo) -> "Json":
    from carrel.cli.booking_text import parse_date
    from carrel.parsing.time import seconds

    request: Json = {"model": settings.model, "gpus": settings.gpus, "share": settings.share}
    for name, value in (("start", settings.start), ("end", settings.until)):
        if value:
            request[name] = seconds(parse_date(value, zone))
    texts = {"user": settings.user, "reason": settings.reason, "note": settings.note, "namespace": settings.namespace}
    texts["group"] = settings.group
    request |= {name: value for name, value in texts.items() if value}
    return request | ({"days": settings.days} if settings.days is not None else {})


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
    from carrel.cli.booking_text import check_one_end, parse_date, print_booking, print_preview
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

    answer, zone = ask_service(settings, ask, "carrel extend --until 2026-12-20")
    if settings.dry_run:
        print_preview(answer, zone, settings.output, "You can change it to this")
    else:
        print_booking(answer, zone, settings.output, "Changed")


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
