"""How bookings and previews are written."""

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from carrel.cli.dates import date_text, duration
from carrel.cli.options import ListFormat
from carrel.cli.output import print_lines, print_list
from carrel.command_errors import REFUSED, USAGE, command_failed
from carrel.ids import short_id
from carrel.parsing.time import words

Json = dict[str, Any]


def print_booking(booking: Json, zone: ZoneInfo, output: ListFormat, done: str) -> None:
    if output is ListFormat.TABLE:
        print_lines(*booking_lines(booking, zone, done))
    else:
        print_list(booking, output, [])


def booking_lines(booking: Json, zone: ZoneInfo, done: str = "") -> list[str]:
    """`done` is what has happened to the booking: `Booked`."""
    start, end = str(booking["start"]), str(booking["ends"])
    length = duration(start, end)
    facts = {
        "id": short_id(booking["id"]),
        "user": booking["user"],
        "group": booking.get("group"),
        "model": f"{booking['model']}, {gpus_text(booking)}",
        "from": date_text(start, zone),
        "until": f"{date_text(end, zone)} ({words(length)})" if length > timedelta(0) else "cancelled before it began",
        "state": booking["state"],
        "held": use_text(booking),
        "made by": booking["created_by"] if booking["created_by"] != booking["user"] else "",
        "reason": booking.get("reason"),
        "note": booking.get("note"),
        "namespace": booking.get("namespace"),
    }
    return [*([f"✓ {done}"] * bool(done)), *(f"  {name + ':':<11}{value}" for name, value in facts.items() if value)]


def print_preview(preview: Json, zone: ZoneInfo, output: ListFormat, allowed: str) -> None:
    """If the rules do not allow it, the command ends with all reasons."""
    if output is not ListFormat.TABLE:
        print_list(preview, output, [])
    elif preview["allowed"]:
        length = words(duration(preview["start"], preview["end"]))
        when = f"{date_text(preview['start'], zone)} until {date_text(preview['end'], zone)} ({length})"
        print_lines(f"✓ {allowed}: {preview['model']}, {gpus_text(preview)}, {when}. Nothing was changed.")
    if not preview["allowed"]:
        why = "\n  ".join(problem["message"] for problem in preview["problems"])
        titles = [problem["title"] for problem in preview["problems"]]
        what = titles[0] if len(titles) == 1 else f"{len(titles)} rules would be broken"
        raise command_failed(what, why, preview["hint"] or "carrel list", REFUSED)


def booking_name(item: Json) -> str:
    """`NVIDIA-A100, 2 GPUs, active, ada@lab.example`."""
    return f"{item['model']}, {gpus_text(item)}, {item['state']}, {item.get('group') or item['user']}"


def gpus_text(item: Json) -> str:
    """`a share`, `1 GPU`, `3 GPUs`."""
    return "a share" if item["share"] else f"{item['gpus']} GPU{'s' * (item['gpus'] != 1)}"


def use_text(item: Json) -> str:
    """`1 of 2 held: lab/train-7`; empty if the booking does not run, or if the service sees no cluster."""
    used = item.get("used")
    if used is None:
        return ""
    from carrel.cluster.coverage.coverage_words import in_use

    return in_use(used, item["gpus"], item["pods"])


def check_one_end(days: float | None, until: str, example: str) -> None:
    if (days is None) == (not until):
        raise command_failed("Until when?", "Give either --days or --until.", example, USAGE)
