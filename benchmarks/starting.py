"""What a component costs before it does anything: the CPU time of its imports, and the size of the image.

Goals: what was measured on two busy cores on 2026-11-17, and a little more: an import that costs more is an import of
something that the component does not need. 180 MB beyond Debian's Python, so that a node pulls the image in seconds.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import Figure
from testbed.debian import machine_architecture
from tools.image import contents, root_folders

ENTRY_POINTS = {
    "webhook": "carrel.admission.run",
    "extender": "carrel.scheduling.run",
    "controller": "carrel.lifecycle.run",
    "agent": "carrel.node.run",
    "booking": "carrel.bookings.run",
}
COMMANDS = (
    *("--help", "free --help", "book --help", "why --help", "doctor --help", "config show --help", "booking --help"),
    *("demo --help", "agent --help"),
    *("free", "list", "log", "maintenance list", "cancel --yes"),
)
"""What people type. The last row asks a service that is not there."""
NOBODY = "http://127.0.0.1:9"
OF_THE_CLUSTER = tuple(f"{each} --server {NOBODY}" for each in ("gpus", "why -A", "config show"))
"""They ask an API server that is not there, and have loaded by then what reads it."""
BARE = """
import typer
app = typer.Typer(rich_markup_mode=None)
@app.command()
def one(name: str = typer.Option("", help="A name.")) -> None: ...
@app.command()
def two(name: str = typer.Option("", help="A name.")) -> None: ...
app(["one"])
"""
"""What no command of typer can be quicker than."""
SOURCES = ("src", "packages/kubernetes_in_memory/src")
RUNS = 5
GOAL_S = 2.0
GOAL_WITH_PAGES_S = 4.0
GOAL_RATIO = 1.5
GOAL_RATIO_OF_THE_CLUSTER = 5.0
"""Not what is wanted, but what was measured on 2026-11-19 and a little more: an HTTP client, and the state of a cluster
with which `carrel why` says the same as the scheduler."""
GOAL_MB = 180
MB = 1_000_000


def measure() -> Iterator[Figure]:
    for command, module in ENTRY_POINTS.items():
        goal = GOAL_WITH_PAGES_S if command == "booking" else GOAL_S
        yield Figure(f"CPU time of the imports of carrel {command}", import_seconds(module), "s", goal)
    yield from commands()
    folder = root_folders.lower(machine_architecture())
    carrel = sum(size(contents.CHECKOUT / source) for source in SOURCES)
    beyond = size(folder / contents.SITE) + carrel
    yield Figure("Carrel and its packages in the image, unpacked", beyond / MB, "MB", GOAL_MB)
    yield Figure("the image, unpacked", (size(folder) + carrel) / MB, "MB")


def commands() -> Iterator[Figure]:
    """In turns, so that another process on the machine slows all of them."""
    typed = (*COMMANDS, *OF_THE_CLUSTER)
    scripts = {each: f"from carrel.__main__ import app; app({each.split()!r})" for each in typed}
    spent: dict[str, list[float]] = {each: [] for each in ("", *typed)}
    for _ in range(RUNS):
        for each, found in spent.items():
            found.append(_cpu(scripts.get(each, BARE), may_fail=True))
    for each in typed:
        ratio, goal = min(spent[each]) / min(spent[""]), GOAL_RATIO if each in COMMANDS else GOAL_RATIO_OF_THE_CLUSTER
        yield Figure(f"CPU time of carrel {each}, beside a bare command of typer", ratio, "times", goal)


def import_seconds(module: str) -> float:
    """The least of several processes; an interpreter that imports nothing is taken off."""
    return min(_cpu(f"import carrel.__main__, {module}") for _ in range(RUNS)) - min(_cpu("") for _ in range(RUNS))


def _cpu(script: str, *, may_fail: bool = False) -> float:
    """Nothing listens at the port of the booking service that the script is told."""
    before, told = _of_children(), {"CARREL_URL": NOBODY, "CARREL_TOKEN": "none"}
    subprocess.run([sys.executable, "-c", script], env=os.environ | told, check=not may_fail, capture_output=True)
    return _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def size(folder: Path) -> int:
    return sum(os.lstat(each).st_size for each in folder.rglob("*") if each.is_file())
