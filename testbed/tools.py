"""What all of the test bed needs: its cache folder, locks, progress messages, and given programs.

The cache folder is outside the checkout; any number of processes may share it.
"""

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Missing(Exception):
    """The machine lacks something that the test bed cannot make itself. The message says what, and what helps."""


def cache() -> Path:
    """The folder that outlives a run."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "carrel-testbed"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One process at a time builds `name`; the others wait, and then find it built."""
    with (cache() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {name}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """One line of progress, on stderr: stdout is for a command's result."""
    print(f"{time.strftime('%H:%M:%S')} testbed: {line}", file=sys.stderr, flush=True)


def assets(*names: str) -> dict[str, Path] | None:
    """These programs from $KUBEBUILDER_ASSETS, if it has them all: two releases are never mixed."""
    place = os.environ.get("KUBEBUILDER_ASSETS")
    found = {name: shutil.which(name, path=place) for name in names} if place else {}
    if not found or not all(found.values()):
        return None
    return {name: Path(path) for name, path in found.items() if path}
