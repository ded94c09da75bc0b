"""Reads the demo's files, starts it, and shows it until it ends: live on a terminal, as plain lines elsewhere."""

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from rich.console import Console

from carrel.cluster_file import read_cluster, text_in
from carrel.demo import DemoSettings
from carrel.demo.bookings import has_one_model
from carrel.demo.component_processes import ComponentNotStarted
from carrel.demo.screen import plain, render
from carrel.demo.system import Demo, DemoOptions, running_demo
from carrel.demo.workload import read_manifests
from carrel.dialects import mig
from carrel.dialects.registry import DIALECTS
from carrel.ledger.gpus import Node
from carrel.live_screen import show_live
from carrel.log_lines import log_lines
from carrel.node.settings import AgentMode
from carrel.parsing import Malformed

FRAME_S = 0.25
PLAIN_EVERY_S = 5.0
FAILED, USAGE, INTERRUPTED = 1, 2, 130

CLUSTER = "cluster.yaml"
STORIES = {
    "lab": ("gpushare-two-containers.yaml", "gpuclaim-island.yaml"),
    "vision": ("kai-memory.yaml",),
    "speech": ("refused-two-dialects.yaml", "waits-too-large.yaml"),
}
"""Namespace → the examples that run there, besides those of the dialects. Each namespace belongs to one person."""


def demo_options(settings: DemoSettings) -> DemoOptions:
    """Raises `Malformed` or `OSError`."""
    cluster, pods, mode = settings.cluster, settings.pods, AgentMode(settings.mode.value)
    if settings.once and pods:
        raise Malformed("carrel demo", "--once", "with --pods", "one of them: --pods replaces the story")
    return DemoOptions(
        nodes=read_cluster(text_in(cluster), str(cluster)) if cluster else example_nodes(mode),
        manifests=read_manifests(text_in(pods), str(pods)) if pods else list(example_manifests()),
        seed=settings.seed,
        port=settings.port,
        has_story=pods is None,
        only_story=settings.once,
        mode=mode,
        days=settings.days,
    )


def run_demo(settings: DemoSettings) -> None:
    log_lines(logging.ERROR, form="%(message)s")  # a warning would stand in the middle of the screen
    try:
        story = asyncio.run(_show(demo_options(settings), settings.seconds))
    except* (Malformed, OSError, ComponentNotStarted) as errors:
        print(f"✗ The demo cannot start\n  {errors.exceptions[0]}", file=sys.stderr)
        sys.exit(USAGE)
    if not settings.once:
        return
    if story is None:
        print("✗ The demo was stopped before the story was over", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if story:
        print(f"✗ The story did not come true\n  {story}", file=sys.stderr)
        sys.exit(FAILED)
    print("✓ The story came true")


def example_nodes(mode: AgentMode = AgentMode.NATIVE) -> list[Node]:
    """Return the small lab; where the kubelet chooses the GPUs, without the node that has several models."""
    nodes = read_cluster(example_text(CLUSTER), CLUSTER)
    return [node for node in nodes if mode is not AgentMode.COEXIST or has_one_model(node)]


def example_text(file: str) -> str:
    return (files(__package__) / "examples" / file).read_text()


def example_manifests() -> Iterator[dict[str, Any]]:
    """The example of every dialect for GPUs that are not divided, and the stories.

    Several pods of one run at once, so each gets a generated name.
    """
    for number, (namespace, stories) in enumerate(STORIES.items()):
        of_dialects = [each.example for each in DIALECTS[number :: len(STORIES)] if each is not mig.DIALECT]
        for example in (*of_dialects, *stories):
            for manifest in read_manifests(example_text(example), example):
                metadata = {**manifest["metadata"], "namespace": namespace}
                if manifest["kind"] == "Pod":
                    metadata["generateName"] = f"{metadata.pop('name')}-"
                yield {**manifest, "metadata": metadata}


async def _show(options: DemoOptions, seconds: float) -> str | None:
    """Return what became of the story: why it did not come true, or nothing; None: it was not over."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if seconds:
        loop.call_later(seconds, stop.set)
    console = Console()
    async with running_demo(options) as demo:
        if options.only_story:
            demo.story.add_done_callback(lambda _: stop.set())
        show = _show_live(demo, console, stop) if console.is_terminal else _show_plain(demo, stop, options.only_story)
        await show
        return demo.story.result() if demo.story.done() else None


async def _show_live(demo: Demo, console: Console, stop: asyncio.Event) -> None:
    await show_live(console, lambda width, height: render(demo.view(), height), stop, FRAME_S)
    console.print(render(demo.view(), console.height))


async def _show_plain(demo: Demo, stop: asyncio.Event, only_story: bool) -> None:
    """What happens until the booking service listens, then all GPUs again and again; of the story alone what happens,
    and all GPUs at the end."""
    demo.on_log = lambda line: print(f"  {line}", flush=True)
    is_over = False
    while not is_over and (only_story or not demo.booking_url):
        is_over = await _stopped_within(stop, FRAME_S)
    demo.on_log = lambda line: None
    print("\n".join(plain(demo.view())), flush=True)
    while not is_over:
        is_over = await _stopped_within(stop, PLAIN_EVERY_S)
        print("\n".join(plain(demo.view())), flush=True)


async def _stopped_within(stop: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
