"""`carrel book`."""

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from carrel.cli.options import BookingOutputSettings
from carrel.option_fields import option

if TYPE_CHECKING:
    from carrel.cli.booking_client import BookingClient
    from carrel.cli.booking_text import Json

EXAMPLE = "carrel book a6000 --days 5 --from 2026-12-12"


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

    answer, zone = ask_service(settings, ask, EXAMPLE)
    if settings.dry_run:
        print_preview(answer, zone, settings.output, "You can book this")
    else:
        print_booking(answer, zone, settings.output, "Booked")


def _request(settings: BookSettings, zone: ZoneInfo) -> "Json":
    from carrel.cli.dates import parse_date
    from carrel.parsing.time import seconds

    request: Json = {"model": settings.model, "gpus": settings.gpus, "share": settings.share}
    for name, value in (("start", settings.start), ("end", settings.until)):
        if value:
            request[name] = seconds(parse_date(value, zone))
    texts = {"user": settings.user, "reason": settings.reason, "note": settings.note, "namespace": settings.namespace}
    texts["group"] = settings.group
    request |= {name: value for name, value in texts.items() if value}
    return request | ({"days": settings.days} if settings.days is not None else {})
