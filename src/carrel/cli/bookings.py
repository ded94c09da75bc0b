"""`carrel book`, `extend`, `change`, `cancel` and `show`: one booking."""

import shlex
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer

from carrel.cli.booking_client import RequestRefused, asking
from carrel.cli.booking_text import Json, booking_lines, check_one_end, print_booking, print_preview
from carrel.cli.complete import models
from carrel.cli.dates import later, parse_date
from carrel.cli.options import BookingOutputSettings, ListFormat, OneBookingSettings
from carrel.cli.output import is_confirmed, print_lines
from carrel.command_errors import USAGE, command_failed
from carrel.ids import short_id
from carrel.option_fields import option
from carrel.parsing.time import seconds


@dataclass(frozen=True, kw_only=True)
class BookSettings(BookingOutputSettings):
    model: Annotated[
        str,
        typer.Argument(help="GPU model, or a part of its name that means one model.", autocompletion=models),
    ]
    days: float | None = option(None, "Length, in days of 24 hours.", min=0.01, max=3650)
    until: str = option("", "End, instead of --days, as in --from; +3d counts from now.")
    start: str = option("", "Start: 2026-12-12 (midnight), 'mon 9:00', +3d; default: now.", "--from")
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

      carrel book a6000 --days 5 --from 'mon 9:00'

      carrel book a100 --gpus 2 --until 2026-12-20T18:00 --note "ablation runs"

      carrel book a100 --gpus 4 --days 5 --group vision
    """
    check_one_end(settings.days, settings.until, f"carrel book {settings.model} --days 5")
    given = {"model": settings.model, "gpus": settings.gpus, "share": settings.share, "days": settings.days}
    for name in ("user", "reason", "note", "namespace", "group"):
        given[name] = getattr(settings, name)
    with asking(settings, f"carrel book {settings.model} --days 5 --from 'mon 9:00'") as client:
        zone = client.zone()
        for name, value in (("start", settings.start), ("end", settings.until)):
            given[name] = seconds(parse_date(value, zone)) if value else None
        body = {name: value for name, value in given.items() if value not in (None, "")}
        if settings.dry_run:
            seen = client.call("POST", "/bookings/preview", json=body).body
            print_preview(seen, zone, settings.output, "You can book this")
            return
        made = client.call("POST", "/bookings", json=body, headers={"idempotency-key": str(uuid.uuid4())}).body
    print_booking(made, zone, settings.output, "Booked")


@dataclass(frozen=True)
class ExtendSettings(OneBookingSettings):
    days: float | None = option(None, "Days to add; a negative number shortens the booking.", min=-3650, max=3650)
    until: str = option("", "New end, instead of --days: 2026-12-20, 'fri 18:00' or +3d from now.")
    reason: str = option("", "Why, if the booking is another person's.")
    dry_run: bool = option(False, "Only check; change nothing.", "--dry-run")


def extend(settings: ExtendSettings) -> None:
    """Change the end of a booking: later or earlier.

    Examples:

      carrel extend --days 2

      carrel extend 4f2a9c1e --until 'fri 18:00' --dry-run
    """
    check_one_end(settings.days, settings.until, "carrel extend --days 2")

    def changes(old: Json, zone: ZoneInfo) -> Json:
        if settings.days is not None:
            return {"end": seconds(datetime.fromisoformat(old["end"]) + timedelta(days=settings.days))}
        return {"end": seconds(parse_date(settings.until, zone))}

    _change(settings, "extend", changes, "carrel extend --until 'fri 18:00'")


@dataclass(frozen=True)
class ChangeBookingSettings(ExtendSettings):
    days: float | None = option(None, "New length, in days of 24 hours.", min=0.01, max=3650)
    until: str = option("", "New end, instead of --days, as in carrel book.")
    start: str = option("", "New start, as in carrel book. Only before it begins.", "--from")
    gpus: int | None = option(None, "New number of GPUs.", min=1)
    model: str = option("", "Another model. Only before it begins.", autocompletion=models)


def change(settings: ChangeBookingSettings) -> None:
    """Change a planned booking: its start, its end, its model and its number of GPUs. Of one that has begun, the end
    and the number of GPUs.

    What is not given stays, but with a new start and no end the booking keeps its length.

    Examples:

      carrel change --from 'mon 9:00' --dry-run

      carrel change 4f2a9c1e --model a100 --gpus 2

      carrel change 4f2a9c1e --from 2026-12-14 --days 3
    """
    example = "carrel change --from 'mon 9:00' --days 3"
    if settings.days is not None and settings.until:
        raise command_failed("Until when?", "Give --days or --until, not both.", example, USAGE)
    if not any((settings.start, settings.until, settings.days, settings.gpus, settings.model)):
        raise command_failed("Nothing to change", "Give --from, --days, --until, --gpus or --model.", example, USAGE)

    def changes(old: Json, zone: ZoneInfo) -> Json:
        start = parse_date(settings.start, zone) if settings.start else datetime.fromisoformat(old["start"])
        length = datetime.fromisoformat(old["end"]) - datetime.fromisoformat(old["start"])
        length = length if settings.days is None else timedelta(days=settings.days)
        given: Json = {"start": seconds(start)} if settings.start else {}
        if settings.until or settings.start or settings.days is not None:
            given["end"] = seconds(parse_date(settings.until, zone) if settings.until else later(start, length))
        given |= {"gpus": settings.gpus} if settings.gpus else {}
        return given | ({"model": settings.model} if settings.model else {})

    _change(settings, "change", changes, example)


def _change(settings: ExtendSettings, command: str, changes: Callable[[Json, ZoneInfo], Json], example: str) -> None:
    with asking(settings, example) as client:
        zone = client.zone()
        old = client.find_booking(settings.booking, command)
        wanted = changes(old.body, zone)
        body = {**wanted, **({"reason": settings.reason} if settings.reason else {})}
        path = f"/bookings/{old.body['id']}"
        if settings.dry_run:
            seen = client.call("POST", f"{path}/preview", json=body).body
            print_preview(seen, zone, settings.output, "You can change it to this")
            return
        try:
            new = client.call("PATCH", path, json=body, headers={"if-match": old.etag}).body
        except RequestRefused as refused:
            if refused.status != 412:
                raise
            # The answer to our first attempt may have been lost: then the booking is already as it should be.
            new = client.call("GET", path).body
            if "model" in wanted:
                asked = {"days": 1, "model": wanted["model"]}
                [meant] = client.call("GET", "/availability", params=asked).body["items"]
                wanted["model"] = meant["model"]
            if any(new[name] != wanted[name] for name in wanted):
                raise
    print_booking(new, zone, settings.output, "Changed")


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
    with asking(settings) as client:
        old, zone = client.find_booking(settings.booking, "cancel"), client.zone()
        is_table = settings.output is ListFormat.TABLE
        if is_table or not settings.yes:
            consequence = old.body.get("consequence") or "The booking is over; there is nothing to cancel."
            print_lines(*booking_lines(old.body, zone), consequence, err=not is_table)
        if settings.dry_run:
            return
        reason = ["--reason", settings.reason] if settings.reason else []
        without_asking = shlex.join(["carrel", "cancel", short_id(old.body["id"]), *reason, "--yes"])
        if not settings.yes and not is_confirmed("Cancel it?", "Not cancelled", without_asking):
            return
        body: dict[str, Any] = {"reason": settings.reason} if settings.reason else {}
        path = f"/bookings/{old.body['id']}"
        try:
            done = client.call("POST", f"{path}/cancel", json=body, headers={"if-match": old.etag}).body
        except RequestRefused as refused:
            # The answer to our first attempt may have been lost: then the booking is already cancelled.
            done = client.call("GET", path).body
            if refused.status != 412 or done["cancelled_at"] is None:
                raise
    print_booking(done, zone, settings.output, "Cancelled")


def show(settings: OneBookingSettings) -> None:
    """Show one booking: your active or planned one, or any by its id.

    Examples:

      carrel show

      carrel show 4f2a9c1e -o yaml
    """
    with asking(settings) as client:
        found, zone = client.find_booking(settings.booking, "show").body, client.zone()
    print_booking(found, zone, settings.output, "")
