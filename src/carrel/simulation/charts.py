"""Draws results as SVG: lines over arrival or time, and bars of waiting time. Text and lines only; no library."""

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10

WIDTH, HEIGHT, MARGIN, LEGEND = 720, 300, 52, 150
COLOURS = ("#1b6ca8", "#c1440e", "#3a7d44", "#7b4b94", "#8a6d1d", "#4d5d6c", "#b03060", "#2a9d8f")
STEPS = 5

Line = Sequence[tuple[float, float]]


def chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Line]) -> str:
    """One panel: a line for each name."""
    points = [point for line in lines.values() for point in line]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = max((y for _, y in points), default=1.0) or 1.0
    parts = [_text(MARGIN, 20, title, size=15), *_axes(right, top, x_label, y_label)]
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{_x(x, right):.1f},{_y(y, top):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts += _legend(number, name, colour)
    return "".join(parts)


def bars(title: str, y_label: str, values: Mapping[str, Mapping[str, float]]) -> str:
    """One panel: for each group (a policy) a bar for each name (a reason)."""
    names = sorted({name for group in values.values() for name in group})
    top = max((value for group in values.values() for value in group.values()), default=1.0) or 1.0
    parts = [_text(MARGIN, 20, title, size=15), *_axes(0.0, top, "", y_label)]
    room = (WIDTH - MARGIN - LEGEND) / max(len(values), 1)
    for place, (group, found) in enumerate(values.items()):
        left = MARGIN + place * room
        width = 0.8 * room / max(len(names), 1)
        lines = enumerate(group.split(", ", 1))
        parts += [_text(left + 2, HEIGHT - MARGIN + 16 + 13 * line, words, size=11) for line, words in lines]
        for number, name in enumerate(names):
            y = _y(found.get(name, 0.0), top)
            height = HEIGHT - MARGIN - y
            x, colour = left + number * width, COLOURS[number % len(COLOURS)]
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')
    for number, name in enumerate(names):
        parts += _legend(number, name, COLOURS[number % len(COLOURS)])
    return "".join(parts)


def document(panels: Sequence[str]) -> str:
    """Panels below each other."""
    height = HEIGHT * len(panels)
    moved = "".join(f'<g transform="translate(0,{HEIGHT * number})">{panel}</g>' for number, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>{moved}</svg>\n'
    )


def _x(value: float, right: float) -> float:
    return MARGIN + (WIDTH - MARGIN - LEGEND) * value / right


def _y(value: float, top: float) -> float:
    return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * value / top


def _axes(right: float, top: float, x_label: str, y_label: str) -> list[str]:
    end, bottom = WIDTH - LEGEND, HEIGHT - MARGIN
    parts = [f'<path d="M{MARGIN},{MARGIN} V{bottom} H{end}" fill="none" stroke="#444"/>']
    for value in _ticks(top):
        y = _y(value, top)
        parts.append(f'<path d="M{MARGIN},{y:.1f} H{end}" stroke="#ddd"/>')
        parts.append(_text(6, y + 4, f"{value:g}", size=11))
    parts += [_text(_x(value, right) - 8, bottom + 16, f"{value:g}", size=11) for value in _ticks(right) if right]
    return [*parts, _text(MARGIN, 40, y_label, size=11), _text(end - 130, HEIGHT - 14, x_label, size=11)]


def _ticks(end: float) -> list[float]:
    """Round numbers from zero to the end of an axis, about `STEPS` of them."""
    if end <= 0:
        return [0.0]
    magnitude = 10.0 ** floor(log10(end / STEPS))
    step = next(magnitude * factor for factor in (1, 2, 5, 10) if magnitude * factor * (1 + 1e-9) >= end / STEPS)
    return [round(step * number, 12) for number in range(int(end / step + 1e-9) + 1)]


def _legend(number: int, name: str, colour: str) -> list[str]:
    y = MARGIN + 18 * number
    mark = f'<rect x="{WIDTH - LEGEND + 10}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
    return [mark, _text(WIDTH - LEGEND + 25, y, name, size=11)]


def _text(x: float, y: float, words: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}">{escape(words)}</text>'
