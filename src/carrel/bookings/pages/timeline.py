"""The timeline as a picture: per model the days, how many cards are free on each, and who has booked them.

A booking is of a model, not of one card: lanes only show that the bookings fit beside each other. A lane below the
last card says that more is promised than there is. Horizontal places are fractions of the width, so the picture
stretches while its text does not; the page scrolls it sideways where it is too narrow.

Pure: data in, markup out. Everything that people wrote is escaped here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from enum import Enum
from functools import cached_property
from itertools import groupby, pairwise
from urllib.parse import urlencode

from markupsafe import Markup, escape

from carrel.bookings.pages import wording

AXIS, STRIP, LANE, GAP = 20, 28, 24, 4
"""Heights in pixels: the days, the free cards, one card; on a 4-px grid."""
READABLE = 12
"""Bars that are lower carry no label."""


class Kind(Enum):
    MINE = "mine"
    OTHER = "other"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that takes cards for a while."""

    kind: Kind
    start: datetime
    end: datetime
    cards: int
    label: str
    title: str
    """The whole story, for hovering and for those who do not see the picture."""
    link: str = ""
    is_share: bool = False
    """Not whole cards but one share of one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model."""

    model: str
    cards: int
    bars: Sequence[Bar]
    free: Sequence[int]
    """How many cards are free through each whole day that is shown. Below zero: more is promised than there is."""
    shares: int = 1
    """Into how many a card is divided."""


@dataclass(frozen=True)
class Window:
    """The days that are shown, in the lab's zone."""

    first: date
    days: int
    zone: tzinfo

    @cached_property
    def dates(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range(self.days)]

    @cached_property
    def midnights(self) -> list[datetime]:
        """When each day begins, and at last when the window ends."""
        after = self.first + timedelta(days=self.days)
        return [datetime.combine(each, time(), self.zone).astimezone(UTC) for each in (*self.dates, after)]

    @cached_property
    def edges(self) -> list[float]:
        """Where each day begins, and at last where the window ends."""
        return [self.place(midnight) for midnight in self.midnights]

    @cached_property
    def start(self) -> datetime:
        return self.midnights[0]

    @cached_property
    def end(self) -> datetime:
        return self.midnights[-1]

    @cached_property
    def _length(self) -> timedelta:
        return self.end - self.start

    def place(self, instant: datetime) -> float:
        """0 at the left edge, 100 at the right: the days of a clock change are as wide as they are long."""
        return min(max((instant - self.start) / self._length, 0.0), 1.0) * 100


@dataclass(frozen=True, slots=True)
class Wish:
    """What is about to be booked."""

    model: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Reader:
    """What depends on who looks, and when."""

    now: datetime
    cooldown: Sequence[tuple[datetime, datetime]] = ()
    """When this person may not have a booking."""
    wish: Wish | None = None


Slot = tuple[int, int]
"""A lane, and which of its shares; 0 is also where a whole card begins."""


def merged(stretches: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Stretches that touch become one: shaded twice, they would look twice as forbidden."""
    found: list[tuple[datetime, datetime]] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def lanes_of(bars: Iterable[Bar], shares: int = 1) -> list[tuple[Bar, list[Slot]]]:
    """Where each bar lies: always in the first lanes that are free, so the same bookings give the same picture."""
    lanes: list[_Lane] = []
    placed = []
    for bar in sorted(bars, key=lambda bar: (bar.start, bar.end, bar.kind.value, bar.title)):
        slots: list[Slot] = []
        for number, lane in enumerate(lanes):
            if len(slots) == bar.cards:
                break
            if lane.until <= bar.start:
                slots.append((number, 0))
            elif bar.is_share and (share := lane.free_share(bar.start)) is not None:
                slots.append((number, share))
        while len(slots) < bar.cards:
            slots.append((len(lanes), 0))
            lanes.append(_Lane([bar.start] * shares))
        for number, share in slots:
            lanes[number].take(bar, share)
        placed.append((bar, slots))
    return placed


class _Lane:
    """A card's worth of room, from left to right."""

    def __init__(self, shares: list[datetime]) -> None:
        self._shares = shares
        """Until when each is taken."""
        self.until = shares[0]
        """From then on all of it is free."""

    def free_share(self, start: datetime) -> int | None:
        return next((number for number, until in enumerate(self._shares) if until <= start), None)

    def take(self, bar: Bar, share: int) -> None:
        if bar.is_share:
            self._shares[share] = bar.end
            self.until = max(self.until, bar.end)
        else:
            self._shares = [bar.end] * len(self._shares)
            self.until = bar.end


def draw(row: Row, window: Window, reader: Reader) -> Markup:
    """The picture of one model."""
    shown = (bar for bar in row.bars if bar.end > window.start and bar.start < window.end)
    placed = lanes_of(shown, row.shares)
    lanes = max([row.cards, *(lane + 1 for _, slots in placed for lane, _ in slots)])
    top = AXIS + STRIP + GAP
    height = top + lanes * LANE + GAP
    parts = [
        f'<svg class="lanes" height="{height}" role="group" aria-label="{escape(wording.model(row.model))} by day"'
        f' data-model="{escape(row.model)}">',
        *_days(row, window, reader, height),
        *_shades(window, reader, (top, height)),
        *_rules(lanes, top),
        *(markup for bar, slots in placed for markup in _bar(bar, _boxes(bar, slots, row.shares, top), window)),
        *_limit(row, lanes, top),
        _wish(row, window, reader, height),
        *_now(window, reader.now, height),
        "</svg>",
    ]
    return Markup("".join(parts))  # noqa: S704 # what people wrote is escaped above


def _days(row: Row, window: Window, reader: Reader, height: int) -> Iterable[str]:
    """Each day is a link that begins a booking there: by mouse, by keyboard and without a script."""
    today = reader.now.astimezone(window.zone).date()
    first = True
    base = escape("?" + urlencode({"model": row.model, "from": window.first.isoformat()}))
    days = zip(window.dates, row.free, pairwise(window.edges), strict=True)
    for number, (when, free, (left, right)) in enumerate(days):
        place = f'x="{left:.3f}%" width="{right - left:.3f}%"'
        middle = f'x="{(left + right) / 2:.3f}%" text-anchor="middle"'
        state = "over" if free < 0 else "none" if free == 0 else "some" if free < row.cards else "all"
        if when.weekday() >= 5:
            yield f'<rect class="weekend" {place} y="0" height="{height}"/>'
        if when.day == 1 or number == 0 or when.weekday() == 0:
            yield f'<line class="week" x1="{left:.3f}%" x2="{left:.3f}%" y1="0" y2="{height}"/>'
        name = wording.WEEKDAYS[when.weekday()][0]
        yield f'<text class="date" {middle} y="14"><tspan class="weekday">{name} </tspan>{when.day}</text>'
        if when < today:
            yield f'<text class="free past" {middle} y="{AXIS + 18}">{_signed(free)}</text>'
            continue
        label = f"{wording.day(when)}: {max(free, 0)} of {row.cards} can be booked. Book from here."
        iso = when.isoformat()
        yield (
            f'<a class="day {state}" href="{base}&amp;day={iso}" data-day="{iso}" tabindex="{0 if first else -1}"'
            f' aria-label="{label}"><rect {place} y="{AXIS}" height="{STRIP}"/>'
            f'<text class="free" {middle} y="{AXIS + 18}">{_signed(free)}</text></a>'
        )
        first = False


def wish_place(wish: Wish, window: Window) -> tuple[str, str]:
    """Where it begins, and how wide it is; nowhere if it is not within these days."""
    if wish.end <= window.start or wish.start >= window.end:
        return "0", "0"
    left = window.place(wish.start)
    return f"{left:.3f}%", f"{max(window.place(wish.end) - left, 0.2):.3f}%"


def _signed(free: int) -> str:
    return str(free) if free >= 0 else f"−{-free}"


def _shades(window: Window, reader: Reader, band: tuple[int, int]) -> Iterable[str]:
    top, height = band
    for start, end in reader.cooldown:
        left, right = window.place(start), window.place(end)
        if right > left:
            yield (
                f'<rect class="cooldown" x="{left:.3f}%" width="{right - left:.3f}%" y="{top}" height="{height - top}">'
                f"<title>Your cooldown: until {wording.at(end, window.zone)}</title></rect>"
            )


def _wish(row: Row, window: Window, reader: Reader, height: int) -> str:
    wish = reader.wish
    is_here = wish is not None and wish.model == row.model
    left, width = wish_place(wish, window) if wish is not None and is_here else ("0", "0")
    # It is there even if it shows nothing, so that the script can move it here from another model.
    return f'<rect class="wish" x="{left}" width="{width}" y="{AXIS}" height="{height - AXIS}"/>'


def _rules(lanes: int, top: int) -> Iterable[str]:
    for lane in range(lanes + 1):
        y = top + lane * LANE
        yield f'<line class="hair" x1="0" x2="100%" y1="{y}" y2="{y}"/>'


def _limit(row: Row, lanes: int, top: int) -> Iterable[str]:
    """Drawn over the bars, where many lie."""
    # Shares that would fit on fewer cards, if they were moved, may take a lane more than there are cards: that is fine.
    if lanes > row.cards and min(row.free, default=0) < 0:
        y = top + row.cards * LANE
        yield f'<line class="limit" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
        yield f'<text class="over" x="4" y="{y + 16}">More is promised than there is</text>'


def _boxes(bar: Bar, slots: Sequence[Slot], shares: int, top: int) -> Iterable[tuple[float, float]]:
    """Where a bar is drawn, from above, and how high. Neighbouring lanes are one piece."""
    if bar.is_share:
        for lane, number in slots:
            yield top + (lane + number / shares) * LANE + 1, LANE / shares - 2
        return
    for _, run in groupby(enumerate(lane for lane, _ in slots), key=lambda pair: pair[1] - pair[0]):
        lanes = [lane for _, lane in run]
        yield top + lanes[0] * LANE + 2, len(lanes) * LANE - 4


def _bar(bar: Bar, boxes: Iterable[tuple[float, float]], window: Window) -> Iterable[str]:
    left = window.place(bar.start)
    width = max(window.place(bar.end) - left, 0.2)
    for y, height in boxes:
        label = f'<text x="6" y="{height / 2 + 4:.0f}">{escape(bar.label)}</text>' if height >= READABLE else ""
        # A nested svg cuts the label off at the bar's end.
        piece = (
            f'<svg class="bar {bar.kind.value}" x="{left:.3f}%" y="{y:g}" width="{width:.3f}%" height="{height:g}">'
            f'<title>{escape(bar.title)}</title><rect width="100%" height="100%" rx="3"/>{label}</svg>'
        )
        if bar.link:
            # Only one's own bookings are stops of the tab key: an admin would have to pass hundreds of others.
            stop = "" if bar.kind is Kind.MINE else ' tabindex="-1"'
            piece = f'<a href="{escape(bar.link)}"{stop} aria-label="{escape(bar.title)}">{piece}</a>'
        yield piece


def _now(window: Window, now: datetime, height: int) -> Iterable[str]:
    if window.start <= now < window.end:
        x = f"{window.place(now):.3f}%"
        yield f'<line class="now" x1="{x}" x2="{x}" y1="{AXIS - 4}" y2="{height}"/>'
