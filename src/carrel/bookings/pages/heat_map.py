"""Draws a heat map by GPU and hour: which part of it was held. Pure: numbers in, markup out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from markupsafe import Markup, escape

from carrel.bookings import wording
from carrel.bookings.usage.sums import HOUR, Gap
from carrel.parsing.time import at

CELL, AXIS = 24, 20
"""Heights in pixels. The style sheet repeats them for the names beside the picture."""
STEPS = 5
"""Number of shades. People could not tell more of them apart, above all in print."""


@dataclass(frozen=True, slots=True)
class GpuHours:
    """Which part of a GPU was held, hour by hour."""

    name: str
    parts: Sequence[float]
    """For each hour, from 0 to 1."""

    @property
    def mean(self) -> float:
        return sum(self.parts) / len(self.parts) if self.parts else 0.0


def step(part: float) -> int:
    """The shade, from 0 (unused) to `STEPS`."""
    return 0 if part <= 0 else min(int(part * STEPS) + 1, STEPS)


def draw(rows: Sequence[GpuHours], first_hour: datetime, zone: tzinfo, gaps: Sequence[Gap] = ()) -> Markup:
    """Draws neighbouring hours of one shade as one rectangle: this keeps the page small when little happens."""
    hours = max((len(row.parts) for row in rows), default=0)
    height = AXIS + len(rows) * CELL
    parts = [
        f'<svg class="heat" height="{height}" role="img" aria-label="Usage by hour; the table below has the numbers">'
    ]
    parts += _days(first_hour, hours, height, zone)
    last_hour = first_hour + hours * HOUR
    for gap in gaps:
        since, until = max(gap.start, first_hour), min(gap.end, last_hour)
        if since < until:
            x, width = 100 * ((since - first_hour) / HOUR) / hours, 100 * ((until - since) / HOUR) / hours
            parts.append(
                f'<rect class="gap" x="{x:.3f}%" width="{width:.3f}%" y="{AXIS}" height="{height - AXIS}">'
                "<title>nobody counted</title></rect>"
            )
    for number, row in enumerate(rows):
        y = AXIS + number * CELL
        for start, end, shade in _runs(row.parts):
            if shade:
                place = f'x="{100 * start / hours:.3f}%" width="{100 * (end - start) / hours:.3f}%"'
                parts.append(
                    f'<rect class="heat{shade}" {place} y="{y + 1}" height="{CELL - 2}">'
                    f"<title>{escape(row.name)}: {round(100 * row.parts[start])} %, from"
                    f" {at(first_hour + timedelta(hours=start), zone)} for {wording.count(end - start, 'hour')}"
                    "</title></rect>"
                )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 # user input is escaped above


def _runs(parts: Sequence[float]) -> Iterable[tuple[int, int, int]]:
    start = 0
    for hour in range(1, len(parts) + 1):
        if hour == len(parts) or step(parts[hour]) != step(parts[start]):
            yield start, hour, step(parts[start])
            start = hour


def _days(first_hour: datetime, hours: int, height: int, zone: tzinfo) -> Iterable[str]:
    for hour in range(hours):
        local = (first_hour + timedelta(hours=hour)).astimezone(zone)
        if local.hour == 0 or hour == 0:
            x = f"{100 * hour / hours:.3f}%"
            yield f'<line class="week" x1="{x}" x2="{x}" y1="0" y2="{height}"/>'
        if local.hour == 0 and hours - hour >= 12:
            yield f'<text class="date" x="{100 * hour / hours:.3f}%" dx="4" y="14">{local.day}</text>'
