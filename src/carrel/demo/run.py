"""Reads the demo's files, starts it, and shows it until it is stopped: live on a terminal, as plain lines elsewhere."""

import asyncio
import signal
import sys
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.live import Live

from carrel.cluster_file import read_cluster
from carrel.demo.cluster import Play, Script, playing
from carrel.demo.processes import NotOpened
from carrel.demo.screen import plain, render
from carrel.demo.workload import read_manifests
from carrel.parsing import Malformed

FRAME_S = 0.25
PLAIN_EVERY_S = 5.0
USAGE = 2


def run_demo(cluster: Path | None, pods: Path | None, *, port: int, seconds: float, seed: int) -> None:
    try:
        nodes = read_cluster(*_read(cluster, "cluster.yaml"))
        manifests = read_manifests(*_read(pods, "pods.yaml"))
        asyncio.run(_show(Script(nodes, manifests, seed=seed, port=port), seconds))
    except* (Malformed, OSError, NotOpened) as errors:
        print(f"✗ The demo cannot start\n  {errors.exceptions[0]}", file=sys.stderr)
        sys.exit(USAGE)


def _read(path: Path | None, default: str) -> tuple[str, str]:
    """The text of the file, and its name for complaints."""
    if path is None:
        return (files(__package__) / default).read_text(), default
    return path.read_text(), str(path)


async def _show(script: Script, seconds: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if seconds:
        loop.call_later(seconds, stop.set)
    console = Console()
    async with playing(script) as play:
        await (_show_live(play, console, stop) if console.is_terminal else _show_plain(play, stop))


async def _show_live(play: Play, console: Console, stop: asyncio.Event) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not await _stopped_within(stop, FRAME_S):
            live.update(render(play.view(), console.height), refresh=True)
    console.print(render(play.view(), console.height))


async def _show_plain(play: Play, stop: asyncio.Event) -> None:
    is_over = False
    while not is_over:
        is_over = await _stopped_within(stop, PLAIN_EVERY_S)
        print("\n".join(plain(play.view())), flush=True)


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
