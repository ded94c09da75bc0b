"""Who holds what, for a terminal or as plain lines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from carrel.ids import NodeName
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.shares import ShareState

BAR = 16
MOST_LINES = 5
"""So many bookings, and reservation pods, are on the screen."""
STYLES = {ShareState.ASSUMED: "yellow", ShareState.ASSIGNED: "green", ShareState.RELEASING: "magenta"}
FILLS = {ShareState.ASSUMED: "▒", ShareState.ASSIGNED: "█", ShareState.RELEASING: "░"}
"""They say what the colours say, for people who cannot tell those apart."""


@dataclass(frozen=True, slots=True)
class DemoView:
    gpus: Mapping[NodeName, Sequence[GpuEntry]]
    """Node → its GPUs."""
    waiting: Mapping[str, str]
    """Pod → why it waits."""
    messages: Sequence[str]
    """What happened last, newest at the end."""
    headline: str
    bookings: Sequence[str] = ()
    """Who booked what, how much of it is used, and which pods are beyond it."""
    taken_back: Sequence[str] = ()
    """From whom GPUs were taken back for booked pods, newest at the end, and who held how much then."""
    reservations: Sequence[str] = ()
    """Beside NVIDIA's plugin: which pod reserves which GPU, and for whom."""
    hints: Sequence[str] = ()
    """What to do, and what else there is to see."""


def render(view: DemoView, height: int) -> RenderableType:
    """Return what fits on a screen of that height: GPUs first, then who waits, then what happened."""
    table = _table(view.gpus)
    about = [*_shortened(view.bookings), *_shortened(view.reservations)]
    above = table.row_count + 2 * len(view.taken_back) + len(about)
    left = max(height - above - len(view.hints) - 10, 4)
    waiting = _waiting(view.waiting, max(left // 2, 2))
    messages = [
        Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in view.messages[-max(left // 2, 2) :]
    ]
    legend = Text("█ running  ▒ promised  ░ ending  · free  ✓ covered by a booking", style="dim")
    lines = [Text(hint, style="dim") for hint in view.hints]
    lines += [Text(line, no_wrap=True, overflow="ellipsis") for line in about]
    lines += [Text(line) for line in view.taken_back]  # in two lines if need be: who held how much is at the end
    return Group(Text(view.headline, style="bold"), table, legend, *lines, *waiting, Text(), *messages)


def plain(view: DemoView) -> Iterable[str]:
    """For pipes and logs: one line per GPU."""
    yield view.headline
    yield from (f"  {hint}" for hint in view.hints)
    for node, entries in sorted(view.gpus.items()):
        for entry in entries:
            held = ", ".join(
                f"{share.holder} {entry.held(share):,} MiB{' (covered)' * bool(share.coverage)}"
                for share in entry.shares.values()
            )
            free = entry.gpu.unusable or f"{max(entry.free, 0):,} of {entry.gpu.memory:,} MiB free"
            yield f"  {node} GPU {entry.gpu.label} {'; '.join(filter(None, (free, held)))}"
    for line in (*view.bookings, *view.reservations, *view.taken_back):
        yield f"  {line}"
    for pod, why in view.waiting.items():
        yield f"  {pod} waits: {why}"


def _shortened(lines: Sequence[str]) -> list[str]:
    if len(lines) <= MOST_LINES + 1:
        return list(lines)
    return [*lines[:MOST_LINES], f"… and {len(lines) - MOST_LINES} more"]


def _table(gpus: Mapping[NodeName, Sequence[GpuEntry]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    for name in ("Node", "GPU", "Model", "Island"):
        table.add_column(name, no_wrap=True)
    table.add_column("Held", no_wrap=True)
    table.add_column("Free MiB", justify="right", no_wrap=True)
    table.add_column("By", no_wrap=True, overflow="ellipsis", ratio=1)
    for node, entries in sorted(gpus.items()):
        for entry in entries:
            first = entry is entries[0]
            table.add_row(
                node if first else "",
                entry.gpu.label,
                entry.gpu.model.removeprefix("NVIDIA-"),
                entry.gpu.island,
                _bar(entry),
                "" if entry.gpu.unusable else f"{max(entry.free, 0):,}",
                _holders(entry),
            )
    return table


def _bar(entry: GpuEntry) -> Text:
    if entry.gpu.unusable:
        return Text("✗" * BAR, style="red")
    bar = Text()
    for share in entry.shares.values():
        cells = max(1, round(BAR * entry.held(share) / entry.gpu.memory))
        bar.append(FILLS[share.state] * cells, style=STYLES[share.state])
    bar.truncate(BAR)
    bar.append("·" * (BAR - len(bar)), style="dim")
    return bar


def _holders(entry: GpuEntry) -> Text:
    if entry.gpu.unusable:
        return Text(entry.gpu.unusable, style="red")
    text = Text()
    for share in entry.shares.values():
        text.append(f"{'✓' * bool(share.coverage)}{share.holder} ", style=STYLES[share.state])
        text.append("whole  " if share.memory is None else f"{share.memory:,}  ", style="dim")
    return text


def _waiting(waiting: Mapping[str, str], shown: int) -> Iterable[Text]:
    yield Text(f"\nWaiting: {len(waiting)}", style="bold")
    for pod, why in list(waiting.items())[:shown]:
        yield Text.assemble((pod, "yellow"), f"  {why}", no_wrap=True, overflow="ellipsis")
    if len(waiting) > shown:
        yield Text(f"… and {len(waiting) - shown} more", style="dim")
