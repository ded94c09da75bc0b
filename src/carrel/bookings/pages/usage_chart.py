"""Draws what was booked, held, active and idle of a model, step by step. Pure: rows in, markup out.

height      GPUs on average; the upper edge stands for all GPUs of the model
plain       active
dots        unknown
stripes     idle, on top: what others could have used
line        booked
hatched     nobody counted
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo

from markupsafe import Markup, escape

from carrel.bookings import wording
from carrel.bookings.usage.figures import HeldHours, UsageRow, total
from carrel.bookings.usage.sums import HOUR, Gap, Step
from carrel.parsing.time import MONTHS, day

HEIGHT, AXIS = 112, 20
"""In pixels: of the columns, and of the dates below them."""
MOST_DATES = 9
"""That fit beside each other on a narrow picture."""
PARTS = ("active", "unknown", "idle")
"""Of what was held, from the bottom up."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    model: str
    gpus: float
    """As many as there are now; of MIG slices, as many as they are parts of."""
    rows: Sequence[UsageRow]
    """One for each step, also where nothing was."""

    @property
    def top(self) -> float:
        """How many GPUs the upper edge stands for: there may have been more than there are now."""
        return max(self.gpus, *(row.most / hours_of(row) for row in self.rows), 1e-9)

    @property
    def booked(self) -> float | None:
        return None if any(row.booked is None for row in self.rows) else sum(row.booked or 0.0 for row in self.rows)

    @property
    def held(self) -> HeldHours | None:
        return None if any(row.held is None for row in self.rows) else total(self.rows)


def hours_of(row: UsageRow) -> float:
    return (row.end - row.start) / HOUR


def by_model(
    rows: Iterable[UsageRow],
    gpus: Mapping[str, float],
    times: Sequence[tuple[datetime, datetime]],
    *,
    is_held_known: bool,
) -> list[ModelUsage]:
    """Return the pictures of all models that there are or were, in the order of their names."""
    found = {(row.model, row.start): row for row in rows}
    has_booked = all(row.booked is not None for row in found.values())
    held = HeldHours() if is_held_known else None

    def row_of(model: str, start: datetime, end: datetime) -> UsageRow:
        nothing = UsageRow(start, end, model=model, booked=0.0 if has_booked else None, held=held)
        return found.get((model, start), nothing)

    models = sorted({*gpus, *(model for model, _ in found)})
    return [ModelUsage(model, gpus.get(model, 0), [row_of(model, *time) for time in times]) for model in models]


@dataclass(frozen=True, slots=True)
class StepNames:
    """`Mon 16 Nov` is a day, `16 Nov` the week that begins then, `Nov 2026` a month."""

    step: Step
    zone: tzinfo

    def name(self, row: UsageRow) -> str:
        here = row.start.astimezone(self.zone)
        if self.step is Step.MONTH:
            return f"{MONTHS[here.month - 1]} {here.year}"
        return f"week from {here.day} {MONTHS[here.month - 1]}" if self.step is Step.WEEK else day(here.date())

    def short(self, row: UsageRow) -> str:
        here = row.start.astimezone(self.zone)
        return MONTHS[here.month - 1] if self.step is Step.MONTH else f"{here.day} {MONTHS[here.month - 1]}"


def words(row: UsageRow) -> str:
    """`booked 120, held 96: active 60, idle 30, unknown 6 GPU hours`."""
    booked = f"booked {wording.amount(row.booked)}" if row.booked is not None else ""
    held = ""
    if row.held is not None:
        parts = ", ".join(f"{part} {wording.amount(getattr(row.held, part))}" for part in ("active", "idle", "unknown"))
        held = f"held {wording.amount(row.held.held)}: {parts}"
    return f"{', '.join(filter(None, (booked, held)))} GPU hours"


def draw(usage: ModelUsage, names: StepNames, gaps: Sequence[Gap] = ()) -> Markup:
    start, end = usage.rows[0].start, usage.rows[-1].end
    place = _Place(start, end)
    label = f"{escape(wording.model(usage.model))}: GPUs in use; the table has the numbers"
    parts = [f'<svg class="use-chart" height="{HEIGHT + AXIS}" role="img" aria-label="{label}">']
    for gap in gaps:
        if gap.start < end and gap.end > start:
            x = place.of(max(gap.start, start), min(gap.end, end))
            parts.append(f'<rect class="gap" {x} y="0" height="{HEIGHT}"><title>nobody counted</title></rect>')
    apart = -(-len(usage.rows) // MOST_DATES)
    for number, row in enumerate(usage.rows):
        parts += [f"<g><title>{escape(names.name(row))}: {words(row)}</title>", *_column(row, usage.top, place), "</g>"]
        if number % apart == 0:
            at = f'x="{place.x(row.start):.2f}%" dx="2" y="{HEIGHT + 15}"'
            parts.append(f'<text class="date" {at}>{escape(names.short(row))}</text>')
    parts.append(f'<line class="ground" x1="0" x2="100%" y1="{HEIGHT}" y2="{HEIGHT}"/>')
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 # user input is escaped above


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a time is on the picture."""

    start: datetime
    end: datetime

    def x(self, at: datetime) -> float:
        return 100 * ((at - self.start) / (self.end - self.start))

    def of(self, start: datetime, end: datetime, part: float = 1.0) -> str:
        """`part`: of the width, so that columns stand apart."""
        x, width = self.x(start), self.x(end) - self.x(start)
        return f'x="{x + width * (1 - part) / 2:.3f}%" width="{width * part:.3f}%"'


def _column(row: UsageRow, top: float, place: _Place) -> Iterable[str]:
    pixels = HEIGHT / (hours_of(row) * top)
    x, y = place.of(row.start, row.end, 0.8), float(HEIGHT)
    # Invisible: so that the words are shown wherever one points at.
    yield f'<rect class="all" {place.of(row.start, row.end)} y="0" height="{HEIGHT}"/>'
    for part in PARTS:
        height = pixels * getattr(row.held, part) if row.held is not None else 0.0
        if height > 0:
            y -= height
            yield f'<rect class="use-{part}" {x} y="{y:.2f}" height="{height:.2f}"/>'
    if row.booked:
        level = max(HEIGHT - pixels * row.booked, 1.0)
        x1, x2 = place.x(row.start), place.x(row.end)
        for kind in ("booked-edge", "booked-line"):
            yield f'<line class="{kind}" x1="{x1:.3f}%" x2="{x2:.3f}%" y1="{level:.2f}" y2="{level:.2f}"/>'


BAR_WIDTH, BAR_HEIGHT = 160, 14


def bar(row: UsageRow, most: float) -> Markup:
    """Draw the same of one row, lying; `most` fills the width."""
    pixels, x = (BAR_WIDTH - 2) / (most or 1.0), 0.0
    parts = [f'<svg class="use-bar" width="{BAR_WIDTH}" height="{BAR_HEIGHT}" role="img" aria-label="{words(row)}">']
    for part in PARTS:
        width = pixels * getattr(row.held, part) if row.held is not None else 0.0
        if width > 0:
            parts.append(f'<rect class="use-{part}" x="{x:.2f}" y="2" width="{width:.2f}" height="{BAR_HEIGHT - 4}"/>')
            x += width
    if (at := pixels * (row.booked or 0.0)) >= 1:
        for kind in ("booked-edge", "booked-line"):
            parts.append(f'<line class="{kind}" x1="{at:.2f}" x2="{at:.2f}" y1="0" y2="{BAR_HEIGHT}"/>')
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 # made of numbers and constant words
