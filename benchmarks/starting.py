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
    "--help": "carrel.__main__",
}
SOURCES = ("src", "packages/kubernetes_in_memory/src")
RUNS = 5
GOAL_S = 2.0
GOAL_WITH_PAGES_S = 4.0
GOAL_MB = 180
MB = 1_000_000


def measure() -> Iterator[Figure]:
    for command, module in ENTRY_POINTS.items():
        goal = GOAL_WITH_PAGES_S if command == "booking" else GOAL_S
        yield Figure(f"CPU time of the imports of carrel {command}", import_seconds(module), "s", goal)
    folder = root_folders.lower(machine_architecture())
    carrel = sum(size(contents.CHECKOUT / source) for source in SOURCES)
    beyond = size(folder / contents.SITE) + carrel
    yield Figure("Carrel and its packages in the image, unpacked", beyond / MB, "MB", GOAL_MB)
    yield Figure("the image, unpacked", (size(folder) + carrel) / MB, "MB")


def import_seconds(module: str) -> float:
    """The least of several processes; an interpreter that imports nothing is taken off."""
    return min(_cpu(f"import carrel.__main__, {module}") for _ in range(RUNS)) - min(_cpu("") for _ in range(RUNS))


def _cpu(script: str) -> float:
    before = _of_children()
    subprocess.run([sys.executable, "-c", script], check=True)
    return _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def size(folder: Path) -> int:
    return sum(os.lstat(each).st_size for each in folder.rglob("*") if each.is_file())
