"""One run of a test bed: its slot, its folder, and the logs that stay when everything else is deleted."""

import fcntl
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
GOING_ON = "going-on"
_numbers = itertools.count()


@dataclass(frozen=True)
class Run:
    slot: Slot
    folder: Path

    @property
    def data(self) -> Path:
        """Deleted after the run: keys, databases, configurations."""
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
    _forget(everything)
    with slots.claim() as slot:
        title = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_numbers)}-{name}"
        draft = everything / f".{title}"
        (draft / "logs").mkdir(parents=True)
        (draft / "data").mkdir()
        with (draft / "data" / GOING_ON).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Others see the folder only now, when the lock tells them that somebody uses it.
            run = Run(slot, draft.rename(everything / title))
            try:
                yield run
            finally:
                shutil.rmtree(run.data)


def _forget(everything: Path) -> None:
    """Old logs, and what runs that were killed could not remove themselves."""
    ended = [folder for folder in sorted(everything.glob("[!.]*")) if not _goes_on(folder)]
    for folder in ended:
        shutil.rmtree(folder / "data", ignore_errors=True)
    for folder in ended[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _goes_on(folder: Path) -> bool:
    """A run holds a lock as long as its process exists; the kernel releases it however the process ends."""
    try:
        with (folder / "data" / GOING_ON).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
