"""The words of the spawn page and of the progress page. Whatever others wrote is escaped: KubeSpawner does not."""

import html
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from carrel.jupyterhub.startable import FreeModel, StartableAnswer

OURS = "carrel"
"""How the names of Carrel's components begin, in Events."""
AWAY = "Carrel's booking service does not answer. Bookings and free GPUs are not shown; you can still start."


def day_and_time(at: datetime, zone: str) -> str:
    """Return `Fri 20 Nov 18:00 CET`: with the zone's name."""
    return f"{at.astimezone(ZoneInfo(zone)):%a %d %b %H:%M %Z}"


def amount(gpus: int, model: str) -> str:
    """Return `2 A100`. The vendor's name is not what people say."""
    return f"{gpus} {model.removeprefix('NVIDIA-') or ('GPU' if gpus == 1 else 'GPUs')}"


def notices_html(startable: StartableAnswer | None, zone: str) -> str:
    """What stands above the choices."""
    lines = [*(html.escape(each) for each in startable.notices)] if startable else [AWAY]
    if startable is not None:
        lines += [
            html.escape(f"Your booking of {amount(each.gpus, each.model)} starts {day_and_time(each.start, zone)}.")
            for each in startable.bookings
            if not each.runs
        ]
        if startable.book_url.startswith(("https://", "http://")):
            lines.append(f'<a href="{html.escape(startable.book_url)}" target="_blank" rel="noopener">Book a GPU …</a>')
    return "".join(f'<p class="carrel-notice">{line}</p>' for line in lines)


def next_free_words(startable: StartableAnswer | None, zone: str) -> list[str]:
    """When GPUs of the models will be free that are all in use now."""
    free = startable.free if startable else ()
    return [_next_free(each, zone) for each in free if not each.gpus and each.next_free is not None]


def _next_free(free: FreeModel, zone: str) -> str:
    when = day_and_time(free.next_free, zone) if free.next_free else "later"
    return f"{amount(1, free.model)} will be free {when}"


def progress_words(step: Mapping[str, Any]) -> str:
    """Return the message alone of an Event of Carrel: it is a sentence. Of all others, KubeSpawner's words."""
    event = step.get("raw_event") or {}
    source = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
    said = str(event.get("message") or "")
    if not source.startswith(OURS) or not said:
        return str(step.get("message", ""))
    return said[:1].upper() + said[1:]
