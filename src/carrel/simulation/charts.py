"""Draws results as SVG: lines over arrival, steps over time, and bars of waiting time. No library.

A name may be of any length: it is broken into lines, and a panel grows with what stands in it. Nothing is drawn
outside the document.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import floor, log10
from textwrap import wrap
from typing import NamedTuple

from carrel.parsing.printable import printable

WIDTH, HEIGHT, MARGIN = 960, 300, 52
COLOURS = ("#1b6ca8", "#c1440e", "#3a7d44", "#7b4b94", "#8a6d1d", "#4d5d6c", "#b03060", "#2a9d8f")
STEPS = 5
SMALL, LARGE = 11, 15
"""Sizes of text."""
LETTER = 7.5
"""How wide a letter of small text is, at most, on average: capitals are wider than others."""
LINE, GAP, BAR = 14, 4, 11
"""How high a line of small text is, how much is between two items, and how high a bar is."""

Line = Sequence[tuple[float, float]]


class Panel(NamedTuple):
    drawing: str
    height: float


class _Frame(NamedTuple):
    """Where the axes are, and how far they go."""

    left: float
    right: float
    bottom: float
    x_end: float
    y_end: float
    top: float = MARGIN

    def x(self, value: float) -> float:
        return self.left + (self.right - self.left) * value / self.x_end

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self.y_end


class Curves(NamedTuple):
    """How the lines of a chart are drawn."""

    colours: int = len(COLOURS)
    """After so many lines the colours begin again, dashed: the same policies in the next case."""
    are_steps: bool = False
    """A value stays until the next point."""


def chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Line], how: Curves | None = None) -> Panel:
    """A line for each name."""
    how = how or Curves()
    points = [point for line in lines.values() for point in line]
    x_end, y_end = (max((point[axis] for point in points), default=1.0) or 1.0 for axis in range(2))
    frame = _Frame(MARGIN, 650, HEIGHT - MARGIN, x_end, y_end)
    parts = [_text(MARGIN, 20, title, LARGE), _text(MARGIN, 40, y_label), *_x_axis(frame, x_label), *_y_axis(frame)]
    marks = []
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % min(how.colours, len(COLOURS))]
        dashes = f' stroke-dasharray="{3 * (number // how.colours)} 3"' if number >= how.colours else ""
        style = f'fill="none" stroke="{colour}" stroke-width="1.8"{dashes}'
        path = " ".join(_path(_steps(line) if how.are_steps else line, frame))
        parts.append(f'<polyline points="{path}" {style}/>')
        marks.append((name, f'd="M0,-4 h18" {style}'))
    legend, end = _legend(frame.right + 20, marks)
    return Panel("".join([*parts, *legend]), max(HEIGHT, end))


def bars(title: str, x_label: str, values: Mapping[str, Mapping[str, float]]) -> Panel:
    """For each group (a policy) a bar for each name (a reason)."""
    names = sorted({name for group in values.values() for name in group})
    most = max((value for group in values.values() for value in group.values()), default=1.0) or 1.0
    left, right = 300, 730
    labels = {group: _broken(group, left - 20) for group in values}
    rows = {group: max(LINE * len(label), BAR * len(names)) + 2 * GAP for group, label in labels.items()}
    # Behind the longest bar there is room for its number.
    frame = _Frame(left, right, MARGIN + sum(rows.values()), most * 1.15, 1.0)
    parts = [_text(MARGIN, 20, title, LARGE), *_x_axis(frame, x_label)]
    y: float = MARGIN
    for group, found in values.items():
        parts += _lines(14, y + GAP + BAR, labels[group])
        for number, name in enumerate(names):
            value, top = found.get(name, 0.0), y + GAP + number * BAR
            place = f'x="{left}" y="{top:.1f}" width="{frame.x(value) - left:.1f}" height="{BAR - 2}"'
            parts.append(f'<rect {place} fill="{COLOURS[number % len(COLOURS)]}"/>')
            parts.append(_text(frame.x(value) + GAP, top + BAR - 2, f"{value:,.2f}"))
        y += rows[group]
    marks = [
        (name, f'd="M4,-4 h10" stroke="{COLOURS[number % len(COLOURS)]}" stroke-width="10"')
        for number, name in enumerate(names)
    ]
    legend, end = _legend(right + 20, marks)
    return Panel("".join([*parts, *legend]), max(frame.bottom + MARGIN, end))


def document(panels: Sequence[Panel]) -> str:
    """Panels below each other."""
    moved, height = [], 0.0
    for panel in panels:
        moved.append(f'<g transform="translate(0,{height:.1f})">{panel.drawing}</g>')
        height += panel.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}"'
        f' height="{height:.0f}" font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        f"{''.join(moved)}</svg>\n"
    )


def _steps(line: Line) -> Iterable[tuple[float, float]]:
    """With the corners."""
    for (x, y), (next_x, _) in pairwise(line):
        yield x, y
        yield next_x, y
    yield from line[-1:]


def _path(points: Iterable[tuple[float, float]], frame: _Frame) -> Iterable[str]:
    """A point on the one before is left out: a trace of months has thousands."""
    before = ""
    for x, y in points:
        point = f"{frame.x(x):.1f},{frame.y(y):.1f}"
        if point != before:
            yield point
        before = point


def _x_axis(frame: _Frame, label: str) -> list[str]:
    left, right, bottom = frame.left, frame.right, frame.bottom
    parts = [f'<path d="M{left},{frame.top} V{bottom:.1f} H{right}" fill="none" stroke="#444"/>']
    parts += [_text(frame.x(value), bottom + 16, f"{value:g}", anchor="middle") for value in _ticks(frame.x_end)]
    return [*parts, _text(right, bottom + 34, label, anchor="end")]


def _y_axis(frame: _Frame) -> list[str]:
    parts = []
    for value in _ticks(frame.y_end):
        y = frame.y(value)
        parts.append(f'<path d="M{frame.left},{y:.1f} H{frame.right}" stroke="#ddd"/>')
        parts.append(_text(frame.left - 6, y + 4, f"{value:g}", anchor="end"))
    return parts


def _ticks(end: float) -> list[float]:
    """Round numbers from zero to the end of an axis, about `STEPS` of them."""
    magnitude = 10.0 ** floor(log10(end / STEPS))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor * (1 + 1e-9) >= end / STEPS)
    return [round(step * number, 12) for number in range(int(end / step + 1e-9) + 1)]


def _legend(x: float, marks: Iterable[tuple[str, str]]) -> tuple[list[str], float]:
    """Names, each with its mark; and where they end."""
    parts, y = [], MARGIN + LINE
    for name, mark in marks:
        lines = _broken(name, WIDTH - x - 24)
        parts.append(f'<path transform="translate({x:.1f},{y})" {mark}/>')
        parts += _lines(x + 24, y, lines)
        y += LINE * len(lines) + GAP
    return parts, float(y + LINE)


def _broken(words: str, width: float) -> list[str]:
    return wrap(printable(words), int(width / LETTER)) or [""]


def _lines(x: float, y: float, lines: Sequence[str]) -> list[str]:
    return [_text(x, y + LINE * number, words) for number, words in enumerate(lines)]


def _text(x: float, y: float, words: str, size: int = SMALL, anchor: str = "start") -> str:
    # XML has no control characters, not even escaped ones.
    shown = escape(printable(words))
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{shown}</text>'
