"""One run of a test bed: its slot, its folder, and the logs that stay when everything else is gone."""

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import slots
from testbed.slots import Slot
from testbed.tools import cache

KEPT = 10
"""Older runs lose their logs."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Run:
    slot: Slot
    folder: Path

    @property
    def data(self) -> Path:
        """What lasts as long as the run: keys, databases, configurations."""
        return self.folder / "data"

    @property
    def logs(self) -> list[Path]:
        return sorted((self.folder / "logs").glob("*.log"))

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"


@contextmanager
def new(name: str) -> Iterator[Run]:
    everything = cache() / "runs"
    everything.mkdir(exist_ok=True)
    with slots.claim() as slot:
        folder = everything / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_numbers)}-{name}"
        run = Run(slot, folder)
        (folder / "logs").mkdir(parents=True)
        run.data.mkdir()
        _forget(everything)
        try:
            yield run
        finally:
            shutil.rmtree(run.data)


def _forget(everything: Path) -> None:
    """Runs that go on have the newest names, and there are never as many of them as are kept."""
    for old in sorted(everything.iterdir())[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
