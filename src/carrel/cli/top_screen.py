"""Shows what GPUs do: again and again on a terminal, once elsewhere.

The GPUs are read node by node, and keys are answered in between: a cluster of thousands of nodes takes some seconds.
"""

import asyncio
import logging
import shutil
import signal
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.console import Console, Group, RenderableType
from rich.text import Text

from carrel.cli.cluster_reader import ReadCluster, read_cluster, reading_cluster, reading_errors
from carrel.cli.options import DataFormat
from carrel.cli.output import print_data, print_lines
from carrel.cli.recent_minutes import RecentMinutes
from carrel.cli.top import TopSettings
from carrel.cli.top_gpus import TopGpu, Wanted, as_data, gpus_of, nodes_wanted, summary
from carrel.cli.top_view import Columns, Parts, TopLine, View, lines_of, selected
from carrel.command_errors import NOT_FOUND, command_failed
from carrel.ids import GpuUuid, NodeName
from carrel.kubernetes.config import Access
from carrel.ledger.gpu_activity import ActivityState
from carrel.live_screen import show_live
from carrel.log_lines import log_lines
from carrel.parsing.printable import printable
from carrel.settings import cluster_access

READ_EVERY_S = 1.0
REST = 4
"""Reading takes at most one part in five of the time."""
AT_ONCE = 20
"""Nodes that are read before keys are looked at: some milliseconds."""
PATIENCE = timedelta(seconds=3)
"""A watch that ends and is opened again is no news."""
SILENT_S = 90.0
"""An API server sends something every minute, and agents report every 15 seconds. After so long without anything, the
connection may be dead."""
AROUND = 5
"""Lines of the screen that are not of GPUs."""

HELP = "sort by n node u util m memory w power t temp i idle   / filter   q quit"


def show_top(settings: TopSettings) -> None:
    access, wanted = cluster_access(settings), Wanted(settings.node, settings.model, settings.user)
    is_live = settings.output is DataFormat.TABLE and not settings.once and sys.stdout.isatty()
    if is_live and not Console().is_dumb_terminal:
        log_lines(logging.CRITICAL)  # what is logged would stand in the middle of the screen
        with reading_errors(settings, access):
            asyncio.run(_show_live(settings, access, wanted))
        return
    carrel = read_cluster(settings, access)
    _require_node(carrel, wanted)
    gpus = [gpu for node in nodes_wanted(carrel, wanted) for gpu in gpus_of(carrel, node, wanted)]
    if settings.output is not DataFormat.TABLE:
        print_data(as_data(gpus), settings.output)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print_lines(summary(gpus), *Columns(carrel.activity_words).table(lines_of(gpus), width))


def _require_node(carrel: ReadCluster, wanted: Wanted) -> None:
    if wanted.node and not nodes_wanted(carrel, wanted):
        why = "No node with this name has reported GPUs."
        raise command_failed(f"No GPUs on {wanted.node}", why, "carrel top", NOT_FOUND)


async def _show_live(settings: TopSettings, access: Access, wanted: Wanted) -> None:
    async with reading_cluster(settings, access) as carrel:
        _require_node(carrel, wanted)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        screen = TopScreen(carrel, wanted, stop)
        endless = (carrel.informers.run(), carrel.watch_agents(), screen.read_again_and_again())
        tasks = [asyncio.ensure_future(each) for each in endless]
        for task in tasks:
            task.add_done_callback(lambda done: stop.set())
        try:
            await show_live(Console(), screen.draw, stop, READ_EVERY_S, screen.pressed)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()


class TopScreen:
    """What is on the terminal, of a cluster that is followed."""

    def __init__(self, carrel: ReadCluster, wanted: Wanted, stop: asyncio.Event) -> None:
        """`stop` is set by the key that ends it."""
        self._carrel = carrel
        self._stop = stop
        self._wanted = wanted
        self._view = View()
        self._page = 1
        self._gpus: Sequence[TopGpu] = ()
        self._summary = ""
        self._lines: Sequence[TopLine] | None = None
        self._recent: dict[NodeName, dict[GpuUuid, RecentMinutes]] = {}
        self._cut_off_since: datetime | None = None
        carrel.activities.usages.on_report(self._on_report)

    # --- what is known -----------------------------------------------------------------------------------------------

    async def read_again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self.read()
            await asyncio.sleep(max(READ_EVERY_S, REST * (loop.time() - began)))

    async def read(self) -> None:
        found: list[TopGpu] = []
        for number, node in enumerate(nodes_wanted(self._carrel, self._wanted)):
            found += self._carrel.isolation.ask("top", node, self._read, (), str)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        self._gpus, self._lines, self._summary = found, None, summary(found)

    def _read(self, node: NodeName) -> Sequence[TopGpu]:
        return tuple(gpus_of(self._carrel, node, self._wanted))

    def _on_report(self, node: NodeName, is_there: bool) -> None:
        before = self._recent.pop(node, {})
        if is_there and self._wanted.node in ("", node):
            usages = self._carrel.activities.usages.of_node(node)
            for uuid, usage in usages.items():
                if uuid in before:
                    before[uuid].add(usage)
            self._recent[node] = {uuid: before.get(uuid) or RecentMinutes(usage) for uuid, usage in usages.items()}

    # --- what is seen ------------------------------------------------------------------------------------------------

    def pressed(self, key: str) -> None:
        self._view, self._lines = self._view.after(key, self._page), None
        if self._view.ends:
            self._stop.set()

    def draw(self, width: int, height: int) -> RenderableType:
        now = self._carrel.options.now()
        if self._lines is None:
            self._lines = lines_of(selected(self._gpus, self._view))
        lines, self._page = self._lines, max(height - AROUND, 1)
        self._view = view = self._view.within(len(lines), self._page)
        seen = lines[view.first : view.first + self._page]
        node_of = {line.gpu.uuid: line.gpu.node for line in seen}

        def recent(uuid: GpuUuid) -> Parts:
            known = self._recent.get(node_of[uuid], {}).get(uuid)
            return known.parts(now) if known is not None else ()

        if not seen:
            return Group(
                self._headline(now, 0),
                _line(self._summary),
                *self._below(),
                _line("Nothing is shown." if self._summary else "Reading …"),
            )
        head, *table = Columns(self._carrel.activity_words, recent).table(seen, width)
        return Group(
            self._headline(now, len(lines)),
            _line(self._summary),
            _line(head, "dim"),
            *(_line(text, _style(line)) for text, line in zip(table, seen, strict=True)),
            *[_line("")] * (self._page - len(seen)),
            *self._below(),
        )

    def _headline(self, now: datetime, lines: int) -> Text:
        if why := self._why_cut_off():
            self._cut_off_since = self._cut_off_since or now
        else:
            self._cut_off_since = None
        if self._cut_off_since is not None and now - self._cut_off_since >= PATIENCE:
            since = self._carrel.activity_words.when(self._cut_off_since)
            return _line(f"No answer from the cluster since {since}, asking again: {why}", "bold red")
        last = min(self._view.first + self._page, lines)
        seen = f"lines {min(self._view.first + 1, last)} to {last} of {lines:,}"
        return _line(f"carrel top  {now.astimezone(self._carrel.options.zone):%H:%M:%S}  {seen}", "bold")

    def _why_cut_off(self) -> str:
        found = (each.why_cut_off for each in self._carrel.informers.reflectors)
        if why := next(filter(None, found), ""):
            return why
        silent_s = self._carrel.node_statuses.silent_s
        return f"nothing came for {silent_s:.0f} s" if self._gpus and silent_s > SILENT_S else ""

    def _below(self) -> tuple[Text, Text]:
        view = self._view
        words = f"filter: {view.words}_  (enter: keep, esc: clear)" if view.is_typing else ""
        words = words or (f"filter: {view.words}  (esc: clear)" if view.words else "no filter")
        chosen = f"sorted by {view.order.name.lower()} · a: {view.shown.value} GPUs · {words}"
        return _line(chosen), _line(HELP, "dim")


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _style(line: TopLine) -> str:
    """Colours say what words say, too."""
    activity = line.pod.activity if line.pod is not None else None
    if line.pod is None:
        return "red" if line.gpu.remark else "dim"
    if activity is not None and activity.is_idle:
        return "yellow"
    return "green" if activity is not None and activity.state is ActivityState.ACTIVE else ""
