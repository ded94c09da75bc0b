"""Draws the timeline: for each model the months, the days, the number of free GPUs on each day, and the bookings.

A booking is for a model, not for one GPU: the lanes only show that the bookings fit side by side. A lane below the last
GPU means that the model is overbooked. Horizontal positions are percentages of the width, so the picture stretches but
its text does not; on a narrow screen the page scrolls it sideways.

Pure: data in, markup out. User input is escaped here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import Enum
from functools import cached_property
from itertools import groupby, pairwise
from urllib.parse import urlencode

from markupsafe import Markup, escape

from carrel.bookings import wording
from carrel.parsing.time import WEEKDAYS, at, day

AXIS, STRIP, LANE, GAP = 36, 28, 24, 4
"""Heights in pixels: the months and dates, the free GPUs, one GPU; on a 4-px grid."""
MONTH_LINE, DATE_LINE = 13, 30
"""Where the names of the months and the dates are written."""
MIN_LABEL_HEIGHT = 12
"""Bars that are lower have no label."""


class BarKind(Enum):
    MINE = "mine"
    OTHER = "other"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class Bar:
    """A booking or a maintenance window: it takes GPUs for some time."""

    kind: BarKind
    start: datetime
    end: datetime
    gpus: int
    label: str
    title: str
    """The full description, for the tooltip and for screen readers."""
    link: str = ""
    is_share: bool = False
    """A share of one GPU, not whole GPUs."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model."""

    model: str
    gpus: int
    bars: Sequence[Bar]
    free: Sequence[int]
    """How many GPUs are free during each whole day. Below zero: overbooked."""
    shares: int = 1
    """Into how many shares a GPU is divided."""


@dataclass(frozen=True)
class DateRange:
    """The days that are shown, in the lab's zone."""

    first: date
    days: int
    zone: tzinfo

    @cached_property
    def dates(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range(self.days)]

    @cached_property
    def midnights(self) -> list[datetime]:
        """The start of each day, and the end of the last."""
        after = self.first + timedelta(days=self.days)
        return [datetime.combine(each, time(), self.zone).astimezone(UTC) for each in (*self.dates, after)]

    @cached_property
    def edges(self) -> list[float]:
        """The position of the start of each day, and of the end of the last."""
        return [self.position(midnight) for midnight in self.midnights]

    @cached_property
    def months(self) -> list[tuple[int, int]]:
        """The months that are shown: the number of the first day of each, and how many of its days are shown."""
        firsts = [number for number, when in enumerate(self.dates) if number == 0 or when.day == 1]
        return [(first, after - first) for first, after in pairwise([*firsts, self.days])]

    @cached_property
    def start(self) -> datetime:
        return self.midnights[0]

    @cached_property
    def end(self) -> datetime:
        return self.midnights[-1]

    @cached_property
    def _length(self) -> timedelta:
        return self.end - self.start

    def position(self, instant: datetime) -> float:
        """0 at the left edge, 100 at the right. A day of a clock change is as wide as it is long."""
        return min(max((instant - self.start) / self._length, 0.0), 1.0) * 100


@dataclass(frozen=True, slots=True)
class SelectedSpan:
    """What the form currently asks for."""

    model: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Viewer:
    """What depends on the person who looks at the page, and on the time."""

    now: datetime
    cooldown: Sequence[tuple[datetime, datetime]] = ()
    """When this person may not start a booking."""
    selection: SelectedSpan | None = None
    group: str = ""
    """For which the form books; links keep it."""


Slot = tuple[int, int]
"""A lane, and the number of a share in it. Bookings of whole GPUs have 0."""


def merge_intervals(intervals: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Joins intervals that touch: shaded twice, an area would look darker."""
    found: list[tuple[datetime, datetime]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def assign_lanes(bars: Iterable[Bar], shares: int = 1) -> list[tuple[Bar, list[Slot]]]:
    """The lanes of each bar: the first free ones, so that the same bookings give the same picture."""
    lanes: list[_Lane] = []
    placed = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end, bar.kind.value, bar.title)):
        slots: list[Slot] = []
        for number, lane in enumerate(lanes):
            if len(slots) == bar.gpus:
                break
            if lane.until <= bar.start:
                slots.append((number, 0))
            elif bar.is_share and (share := lane.free_share(bar.start)) is not None:
                slots.append((number, share))
        while len(slots) < bar.gpus:
            slots.append((len(lanes), 0))
            lanes.append(_Lane([bar.start] * shares))
        for number, share in slots:
            lanes[number].take(bar, share)
        placed.append((bar, slots))
    return placed


class _Lane:
    """Room for one GPU, from left to right."""

    def __init__(self, shares: list[datetime]) -> None:
        self._shares = shares
        """Until when each share is taken."""
        self.until = shares[0]
        """From then on the whole lane is free."""

    def free_share(self, start: datetime) -> int | None:
        return next((number for number, until in enumerate(self._shares) if until <= start), None)

    def take(self, bar: Bar, share: int) -> None:
        if bar.is_share:
            self._shares[share] = bar.end
            self.until = max(self.until, bar.end)
        else:
            self._shares = [bar.end] * len(self._shares)
            self.until = bar.end


def draw(row: ModelRow, window: DateRange, viewer: Viewer) -> Markup:
    """The picture of one model."""
    shown = (bar for bar in row.bars if bar.end > window.start and bar.start < window.end)
    placed = assign_lanes(shown, row.shares)
    lanes = max([row.gpus, *(lane + 1 for _, slots in placed for lane, _ in slots)])
    top = AXIS + STRIP + GAP
    height = top + lanes * LANE + GAP
    parts = [
        f'<svg class="lanes" height="{height}" role="group" aria-label="{escape(wording.model(row.model))} by day"'
        f' data-model="{escape(row.model)}">',
        *_days(row, window, viewer, height),
        *_months(window),
        *_shades(window, viewer, (top, height)),
        *_lane_lines(lanes, top),
        *(markup for bar, slots in placed for markup in _bar(bar, _bar_boxes(bar, slots, row.shares, top), window)),
        *_capacity_line(row, lanes, top),
        _selection(row, window, viewer, height),
        *_now(window, viewer.now, height),
        "</svg>",
    ]
    return Markup("".join(parts))  # noqa: S704 # user input is escaped above


def _months(window: DateRange) -> Iterable[str]:
    """Names each month where it begins. On a narrow screen the page is scrolled, so each week repeats the name."""
    for first, length in window.months:
        edge = f'x="{window.edges[first]:.3f}%" dx="4" y="{MONTH_LINE}"'
        yield f'<text class="month" {edge}>{wording.month(window.dates[first], length)}</text>'
        for number in range(first + wording.DAYS_OF_MONTH_NAME, first + length):
            if window.dates[number].weekday() == 0 and number + 1 < first + length:
                name = wording.month(window.dates[number], days=1)
                left = f'x="{window.edges[number]:.3f}%" dx="4" y="{MONTH_LINE}"'
                yield f'<text class="month again" aria-hidden="true" {left}>{name}</text>'


def _days(row: ModelRow, window: DateRange, viewer: Viewer, height: int) -> Iterable[str]:
    """Each day is a link that starts a booking there: by mouse, by keyboard and without a script."""
    today = viewer.now.astimezone(window.zone).date()
    first = True
    kept = {"group": viewer.group} if viewer.group else {}
    base = escape("?" + urlencode({"model": row.model, "from": window.first.isoformat(), **kept}))
    days = zip(window.dates, row.free, pairwise(window.edges), strict=True)
    for number, (when, free, (left, right)) in enumerate(days):
        position = f'x="{left:.3f}%" width="{right - left:.3f}%"'
        middle = f'x="{(left + right) / 2:.3f}%" text-anchor="middle"'
        state = "over" if free < 0 else "none" if free == 0 else "some" if free < row.gpus else "all"
        if when.weekday() >= 5:
            yield f'<rect class="weekend" {position} y="0" height="{height}"/>'
        if when.day == 1 or number == 0 or when.weekday() == 0:
            yield f'<line class="week" x1="{left:.3f}%" x2="{left:.3f}%" y1="0" y2="{height}"/>'
        name = WEEKDAYS[when.weekday()][0]
        yield f'<text class="date" {middle} y="{DATE_LINE}"><tspan class="weekday">{name} </tspan>{when.day}</text>'
        if when < today:
            yield f'<text class="free past" {middle} y="{AXIS + 18}">{_signed(free)}</text>'
            continue
        label = f"{day(when)}: {max(free, 0)} of {row.gpus} free all day. Book from this day."
        iso = when.isoformat()
        yield (
            f'<a class="day {state}" href="{base}&amp;day={iso}" data-day="{iso}" tabindex="{0 if first else -1}"'
            f' aria-label="{label}"><rect {position} y="{AXIS}" height="{STRIP}"/>'
            f'<text class="free" {middle} y="{AXIS + 18}">{_signed(free)}</text></a>'
        )
        first = False


def selection_position(selection: SelectedSpan, window: DateRange) -> tuple[str, str]:
    """Its left edge and its width. Both are 0 if it is outside the dates that are shown."""
    if selection.end <= window.start or selection.start >= window.end:
        return "0", "0"
    left = window.position(selection.start)
    return f"{left:.3f}%", f"{max(window.position(selection.end) - left, 0.2):.3f}%"


def _signed(free: int) -> str:
    return str(free) if free >= 0 else f"−{-free}"


def _shades(window: DateRange, viewer: Viewer, band: tuple[int, int]) -> Iterable[str]:
    top, height = band
    for start, end in viewer.cooldown:
        left, right = window.position(start), window.position(end)
        if right > left:
            yield (
                f'<rect class="cooldown" x="{left:.3f}%" width="{right - left:.3f}%" y="{top}" height="{height - top}">'
                f"<title>Your cooldown: until {at(end, window.zone)}</title></rect>"
            )


def _selection(row: ModelRow, window: DateRange, viewer: Viewer, height: int) -> str:
    selection = viewer.selection
    is_here = selection is not None and selection.model == row.model
    left, width = selection_position(selection, window) if selection is not None and is_here else ("0", "0")
    # Drawn even if it is empty, so that the script can move it here from another model.
    return f'<rect class="selection" x="{left}" width="{width}" y="{AXIS}" height="{height - AXIS}"/>'


def _lane_lines(lanes: int, top: int) -> Iterable[str]:
    for lane in range(lanes + 1):
        y = top + lane * LANE
        yield f'<line class="hair" x1="0" x2="100%" y1="{y}" y2="{y}"/>'


def _capacity_line(row: ModelRow, lanes: int, top: int) -> Iterable[str]:
    """Drawn over the bars."""
    # Shares may take a lane more than there are GPUs although moved they would fit: that is not overbooked.
    if lanes > row.gpus and min(row.free, default=0) < 0:
        y = top + row.gpus * LANE
        yield f'<line class="limit" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        yield f'<text class="over" x="4" y="{y + 16}">Overbooked</text>'


def _bar_boxes(bar: Bar, slots: Sequence[Slot], shares: int, top: int) -> Iterable[tuple[float, float]]:
    """The top and the height of each rectangle of a bar. Neighbouring lanes become one rectangle."""
    if bar.is_share:
        for lane, number in slots:
            yield top + (lane + number / shares) * LANE + 1, LANE / shares - 2
        return
    for _, run in groupby(enumerate(lane for lane, _ in slots), key=lambda pair: pair[1] - pair[0]):
        lanes = [lane for _, lane in run]
        yield top + lanes[0] * LANE + 2, len(lanes) * LANE - 4


def _bar(bar: Bar, boxes: Iterable[tuple[float, float]], window: DateRange) -> Iterable[str]:
    left = window.position(bar.start)
    width = max(window.position(bar.end) - left, 0.2)
    for y, height in boxes:
        label = f'<text x="6" y="{height / 2 + 4:.0f}">{escape(bar.label)}</text>' if height >= MIN_LABEL_HEIGHT else ""
        # A nested svg cuts the label off at the bar's end.
        piece = (
            f'<svg class="bar {bar.kind.value}" x="{left:.3f}%" y="{y:g}" width="{width:.3f}%" height="{height:g}">'
            f'<title>{escape(bar.title)}</title><rect width="100%" height="100%" rx="3"/>{label}</svg>'
        )
        if bar.link:
            # Only the person's own bookings are reached by Tab: an admin would have to pass hundreds of others.
            tab_index = "" if bar.kind is BarKind.MINE else ' tabindex="-1"'
            piece = f'<a href="{escape(bar.link)}"{tab_index} aria-label="{escape(bar.title)}">{piece}</a>'
        yield piece


def _now(window: DateRange, now: datetime, height: int) -> Iterable[str]:
    if window.start <= now < window.end:
        x = f"{window.position(now):.3f}%"
        yield f'<line class="now" x1="{x}" x2="{x}" y1="{AXIS - 4}" y2="{height}"/>'
