"""PURE. What of the GPUs is seen, and in which order; what keys change about it; the lines of a terminal.

A terminal of 80 columns has the GPU, what it does, its pods and people. What has no room is left out, the least
important first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from carrel.cli.output import aligned
from carrel.cli.recent_minutes import MINUTES
from carrel.cli.top_gpus import TopGpu, TopPod
from carrel.cluster.activity_words import ActivityWords
from carrel.ids import GpuUuid
from carrel.ledger.gpu_activity import ActivityState, GpuActivity
from carrel.ledger.gpus import label_of

LONGEST_FILTER = 60
BARS = "▁▂▃▄▅▆▇█"
GIB = 1024
UNKNOWN = "–"

Parts = Sequence[float | None]
"""How busy a GPU was in each of the last minutes."""


class Order(Enum):
    """What GPUs are sorted by, and the key for it."""

    NODE = "n"
    UTILISATION = "u"
    MEMORY = "m"
    POWER = "w"
    TEMPERATURE = "t"
    IDLE = "i"


class Shown(Enum):
    ALL = "all"
    HELD = "held"
    IDLE = "idle"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class View:
    """What a person has chosen by keys."""

    order: Order = Order.NODE
    shown: Shown = Shown.ALL
    words: str = ""
    """GPUs are shown whose node, model, pods or people have all of these."""
    is_typing: bool = False
    """Keys are letters of the words."""
    first: int = 0
    """The line that is the first on the screen."""
    ends: bool = False

    def after(self, key: str, page: int) -> "View":
        """Return the view after a key. `page`: so many lines are seen."""
        if self.is_typing:
            return self._typed(key)
        if key in SCROLLED:
            return replace(self, first=max(self.first + SCROLLED[key](page), 0))
        if key in ORDERS:
            return replace(self, order=ORDERS[key], first=0)
        if key == "a":
            kinds = list(Shown)
            return replace(self, shown=kinds[(kinds.index(self.shown) + 1) % len(kinds)], first=0)
        if key == "/":
            return replace(self, is_typing=True)
        if key == "escape":
            return replace(self, words="", first=0)
        return replace(self, ends=self.ends or key == "q")

    def _typed(self, key: str) -> "View":
        if key == "enter":
            return replace(self, is_typing=False)
        if key == "escape":
            return replace(self, is_typing=False, words="", first=0)
        if key == "backspace":
            return replace(self, words=self.words[:-1], first=0)
        is_letter = len(key) == 1 and len(self.words) < LONGEST_FILTER
        return replace(self, words=self.words + key, first=0) if is_letter else self

    def within(self, lines: int, page: int) -> "View":
        """Return the view with the last page at the end of the lines."""
        return replace(self, first=max(min(self.first, lines - page), 0))


ORDERS = {order.value: order for order in Order}
FAR = 10**9
SCROLLED: Mapping[str, Callable[[int], int]] = {
    "up": lambda page: -1,
    "down": lambda page: 1,
    "page up": lambda page: -page,
    "page down": lambda page: page,
    " ": lambda page: page,
    "home": lambda page: -FAR,
    "end": lambda page: FAR,
}


# --- which, and in which order ---------------------------------------------------------------------------------------


def selected(gpus: Iterable[TopGpu], view: View) -> list[TopGpu]:
    """Return the GPUs that are shown: the most first; those of which nothing is known last."""
    words = view.words.lower().split()
    return sorted((gpu for gpu in gpus if _is_shown(gpu, view.shown) and _has(gpu, words)), key=_KEYS[view.order])


def _is_shown(gpu: TopGpu, shown: Shown) -> bool:
    if shown is Shown.FREE:
        return not gpu.pods
    if shown is Shown.IDLE:
        return any(pod.activity is not None and pod.activity.is_idle for pod in gpu.pods)
    return shown is Shown.ALL or bool(gpu.pods)


def _has(gpu: TopGpu, words: Sequence[str]) -> bool:
    if not words:
        return True
    text = "\n".join([gpu.node, gpu.model, *(f"{pod.pod}\n{pod.user}" for pod in gpu.pods)]).lower()
    return all(word in text for word in words)


def _place(gpu: TopGpu) -> tuple[str, int]:
    return gpu.node, gpu.index


def _most(value: Callable[[TopGpu], float | None]) -> Callable[[TopGpu], tuple[float, str, int]]:
    def key(gpu: TopGpu) -> tuple[float, str, int]:
        known = value(gpu)
        return (-known if known is not None else float("inf"), *_place(gpu))

    return key


_KEYS: Mapping[Order, Callable[[TopGpu], tuple[object, ...]]] = {
    Order.NODE: _place,
    Order.UTILISATION: _most(lambda gpu: gpu.latest.utilisation),
    Order.MEMORY: _most(lambda gpu: gpu.latest.used),
    Order.POWER: _most(lambda gpu: gpu.latest.power_watts),
    Order.TEMPERATURE: _most(lambda gpu: gpu.latest.temperature_celsius),
    Order.IDLE: _most(lambda gpu: -gpu.idle_since.timestamp() if gpu.idle_since is not None else None),
}


# --- lines -----------------------------------------------------------------------------------------------------------


class TopLine(NamedTuple):
    """A pod on a GPU; None: nobody holds it."""

    gpu: TopGpu
    pod: TopPod | None
    is_first: bool
    """Of its GPU: what the GPU measures stands there alone."""


def lines_of(gpus: Iterable[TopGpu]) -> list[TopLine]:
    return [TopLine(gpu, pod, number == 0) for gpu in gpus for number, pod in enumerate(gpu.pods or (None,))]


@dataclass(frozen=True, slots=True)
class Column:
    head: str
    cell: Callable[[TopLine], str]
    importance: int
    """What has less goes first where the terminal is narrow."""
    least: int = 0
    """How narrow it may become; 0: it is not cut."""

    def least_of(self, cells: Sequence[str]) -> int:
        widest = max(map(len, cells))
        return min(widest, self.least or widest)


class Columns:
    def __init__(self, words: ActivityWords, recent: Callable[[GpuUuid], Parts] | None = None) -> None:
        """Without `recent`, what was before is not shown."""
        self._words = words
        self._domain = ""
        minutes = [Column(f"{MINUTES} MIN", lambda line: _bars(line, recent), 5)] if recent is not None else []
        self._columns = [
            Column("NODE", lambda line: line.gpu.node, 12, least=8),
            Column("GPU", lambda line: label_of(line.gpu.index), 11),
            Column("MODEL", lambda line: line.gpu.model.removeprefix("NVIDIA-"), 1, least=10),
            Column("UTIL", lambda line: _measured(line, line.gpu.latest.utilisation, lambda part: f"{part:.0%}"), 10),
            *minutes,
            Column("USED", lambda line: _measured(line, line.gpu.latest.used, _gib), 7),
            Column("HELD", lambda line: _gib(line.pod.mib) if line.pod is not None else UNKNOWN, 6),
            Column("POWER", lambda line: _measured(line, line.gpu.latest.power_watts, lambda of: f"{of:.0f}W"), 3),
            Column("TEMP", lambda line: _measured(line, line.gpu.latest.temperature_celsius, lambda of: f"{of}C"), 2),
            Column("POD", lambda line: line.pod.pod if line.pod is not None else _unheld(line.gpu), 9, least=16),
            Column("PERSON", self._person, 8, least=8),
            Column("TIER", lambda line: line.pod.tier or "keeps" if line.pod is not None else UNKNOWN, 4, least=6),
            Column("IDLE", lambda line: self._idle(line.pod.activity if line.pod is not None else None), 9),
        ]

    def _person(self, line: TopLine) -> str:
        """Without what all lines have in common."""
        user = line.pod.user if line.pod is not None else ""
        return user.removesuffix(self._domain) or UNKNOWN

    def _idle(self, activity: GpuActivity | None) -> str:
        if activity is None:
            return UNKNOWN
        if activity.is_idle and activity.since is not None:
            return self._words.short(activity.since)
        return {ActivityState.ACTIVE: "no", ActivityState.NEW: "new"}.get(activity.state, "?")

    def table(self, lines: Sequence[TopLine], width: int | None = None) -> list[str]:
        """Return the head and the lines, at most so wide."""
        columns = list(self._columns)
        self._domain = _common_domain(lines) if width is not None else ""
        while True:
            rows = [[column.head for column in columns], *([column.cell(line) for column in columns] for line in lines)]
            if width is None:
                return aligned(rows)
            least = list(map(Column.least_of, columns, zip(*rows, strict=True)))
            if sum(least) + len(columns) - 1 <= width or len(columns) == 1:
                return aligned(rows, width, gap=1, least=least)
            columns.remove(min(columns, key=lambda column: column.importance))


def _common_domain(lines: Sequence[TopLine]) -> str:
    """`@lab.example`, if all people have it."""
    domains = {"".join(line.pod.user.partition("@")[1:]) for line in lines if line.pod is not None and line.pod.user}
    return domains.pop() if len(domains) == 1 else ""


def _measured(line: TopLine, value: float | None, written: Callable[[float], str]) -> str:
    if not line.is_first:
        return ""
    return written(value) if value is not None else UNKNOWN


def _gib(mib: float) -> str:
    """`80G`, `7.9G`: in little room."""
    return f"{mib / GIB:.1f}G" if mib < 10 * GIB else f"{mib / GIB:.0f}G"


def _unheld(gpu: TopGpu) -> str:
    return f"nobody: {gpu.remark}" if gpu.remark else "free"


def _bars(line: TopLine, recent: Callable[[GpuUuid], Parts]) -> str:
    return "".join(map(_bar, recent(line.gpu.uuid))) if line.is_first else ""


def _bar(part: float | None) -> str:
    return " " if part is None else BARS[min(int(part * len(BARS)), len(BARS) - 1)]
