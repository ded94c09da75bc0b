"""`carrel maintenance list`, `add` and `remove`: when which GPUs cannot be booked, and whom that hits."""

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from carrel.cli.booking_client import SHORTEST_ID, asking
from carrel.cli.booking_text import Json, gpus_text
from carrel.cli.complete import models
from carrel.cli.dates import date_text, parse_date
from carrel.cli.options import BookingOutputSettings, ListFormat
from carrel.cli.output import Column, is_confirmed, print_lines, print_list, rows_of
from carrel.command_errors import USAGE, command_failed
from carrel.ids import short_id
from carrel.option_fields import argument, option
from carrel.parsing.time import seconds

EXAMPLE = 'carrel maintenance add gpu-1 --from 2026-12-12T08:00 --until 2026-12-12T18:00 --why "new fans"'


@dataclass(frozen=True)
class MaintenanceListSettings(BookingOutputSettings):
    pass


def list_maintenance(settings: MaintenanceListSettings) -> None:
    """List the maintenance that goes on and that is planned.

    Examples:

      carrel maintenance list

      carrel maintenance list -o json
    """
    with asking(settings) as client:
        found, zone = client.call("GET", "/maintenance").body["items"], client.zone()
    if not found and settings.output is ListFormat.TABLE:
        typer.echo(f"No maintenance is planned.\nTry:  {EXAMPLE}")
        return
    columns: list[Column] = [
        ("ID", True, lambda item: short_id(item["id"])),
        ("WHAT", True, closed_text),
        ("FROM", True, lambda item: date_text(item["start"], zone)),
        ("UNTIL", True, lambda item: date_text(item["end"], zone)),
        ("WHY", True, lambda item: item["why"]),
        ("BY", True, lambda item: item["created_by"]),
    ]
    print_list(found, settings.output, rows_of(found, columns))


@dataclass(frozen=True, kw_only=True)
class MaintenanceAddSettings(BookingOutputSettings):
    places: Annotated[
        list[str] | None, typer.Argument(metavar="NODE_OR_GPU", help="Nodes, or single GPUs: gpu-1 gpu-2/3.")
    ] = None
    model: str = option("", "GPUs of this model, whichever, instead of nodes.", autocompletion=models)
    gpus: int | None = option(None, "How many GPUs of the model; default: 1.", min=1)
    start: str = option("", "Start: 2026-12-12 (midnight in your zone) or 2026-12-12T09:00; default: now.", "--from")
    until: str = option("", "End.")
    why: str = option("", "Reason, which everybody reads.")
    yes: bool = option(False, "Do not ask for confirmation.", "--yes", "-y")
    dry_run: bool = option(False, "Only show whom it hits; change nothing.", "--dry-run")


def add_maintenance(settings: MaintenanceAddSettings) -> None:
    """Take nodes, single GPUs or GPUs of a model out of the calendar. The command shows whom it hits, and asks.

    Bookings stay, and no pod is stopped. Whom it hits is told. It ends by itself.

    Examples:

      carrel maintenance add gpu-1 --from 2026-12-12T08:00 --until 2026-12-12T18:00 --why "new fans"

      carrel maintenance add gpu-1 gpu-2/3 --until 2026-12-20 --why "XID 79" --dry-run

      carrel maintenance add --model a6000 --gpus 2 --until 2026-12-20 --why "lent to a guest"
    """

    if bool(settings.places) == bool(settings.model):
        raise command_failed("What is closed?", "Name nodes and GPUs, or give --model.", EXAMPLE, USAGE)
    if settings.places and settings.gpus is not None:
        why = "--gpus counts GPUs of a --model. Of a node, name each GPU: gpu-1/0 gpu-1/1."
        raise command_failed("Which GPUs?", why, EXAMPLE, USAGE)
    missing = [name for name, value in (("--until", settings.until), ("--why", settings.why)) if not value]
    if missing:
        raise command_failed("Something is missing", f"Give {' and '.join(missing)}.", EXAMPLE, USAGE)

    with asking(settings, EXAMPLE) as client:
        zone = client.zone()
        start = parse_date(settings.start, zone) if settings.start else datetime.now(UTC)
        of_model = {"model": settings.model, "gpus": settings.gpus or 1}
        what: Json = {"places": settings.places} if settings.places else of_model
        times = {"start": seconds(start), "end": seconds(parse_date(settings.until, zone))}
        body = {**what, **times, "why": settings.why}
        seen = client.call("POST", "/maintenance/preview", json=body).body
        if _is_agreed(settings, seen, zone):
            made = client.call("POST", "/maintenance", json=body).body
            if settings.output is ListFormat.TABLE:
                print_lines(f"✓ Set: {short_id(made['id'])}. Whom it hits is told.")
            else:
                print_list(made, settings.output, [])


def _is_agreed(settings: MaintenanceAddSettings, seen: Json, zone: ZoneInfo) -> bool:
    """Show whom it hits, and ask."""
    is_table = settings.output is ListFormat.TABLE
    if is_table or not settings.yes:
        print_lines(*hit_lines(seen, zone), err=not is_table)
    if settings.dry_run:
        if not is_table:
            print_list(seen, settings.output, [])
        return False
    named = settings.places or ["--model", settings.model, "--gpus", str(settings.gpus or 1)]
    times = [*(["--from", settings.start] if settings.start else []), "--until", settings.until, "--why", settings.why]
    without_asking = shlex.join(["carrel", "maintenance", "add", *named, *times, "--yes"])
    return settings.yes or is_confirmed("Set it?", "Not set", without_asking)


@dataclass(frozen=True)
class MaintenanceRemoveSettings(BookingOutputSettings):
    id: str = argument("", "The beginning of its id, as in `carrel maintenance list`.")


def remove_maintenance(settings: MaintenanceRemoveSettings) -> None:
    """Remove a maintenance that is planned, or end it now. Whom it would have hit is told.

    Examples:

      carrel maintenance remove 4f2a9c1e
    """

    with asking(settings) as client:
        items = client.call("GET", "/maintenance").body["items"]
        found = [item for item in items if item["id"].startswith(settings.id)]
        is_short = len(settings.id) < SHORTEST_ID
        if is_short or len(found) != 1:
            counted = f"{len(found)} of those that are planned have an id that begins with “{settings.id}”."
            why = f"Give at least {SHORTEST_ID} digits of its id." if is_short else counted
            raise command_failed("Which maintenance?", why, "carrel maintenance list", USAGE)
        client.call("DELETE", f"/maintenance/{found[0]['id']}")
    gone = found[0]
    print_lines(f"✓ Removed: the maintenance of {closed_text(gone)}")


def closed_text(item: Json) -> str:
    """`gpu-1, gpu-2/3`, or `2 × NVIDIA-RTX-A6000`."""
    return ", ".join(item["places"]) or f"{item['gpus']} × {item['model']}"


def hit_lines(seen: Json, zone: ZoneInfo) -> list[str]:
    """What it closes and whom it hits, for people."""

    hit = seen["hit"]
    closed = ", ".join(f"{count} × {model}" for model, count in hit["models"].items())
    lines = [
        f"Maintenance of {closed_text(seen)}",
        f"  from:      {date_text(seen['start'], zone)}",
        f"  until:     {date_text(seen['end'], zone)}",
        f"  why:       {seen['why']}",
        f"  closes:    {closed or 'no GPU that can be booked now'}",
    ]
    for each in hit["bookings"]:
        what = f"{each['group'] or each['user']}: {each['model']}, {gpus_text(each)}"
        facts = ["more is booked than is left"] * each["lacks_gpus"]
        facts += [f"now there {', '.join(each['pods'])}"] * bool(each["pods"])
        when = f"{date_text(each['start'], zone)} until {date_text(each['end'], zone)}"
        lines.append(f"  booking:   {what}, {when}: {'; '.join(facts)}")
    lines += [f"  pod:       {pod['name']}, {pod['person'] or 'nobody’s'}, runs there now" for pod in hit["pods"]]
    if not (hit["bookings"] or hit["pods"]):
        lines.append("  hits:      nobody, as far as is known now")
    return lines
