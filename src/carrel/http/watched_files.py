"""Files that change while a process runs: secrets and certificates that somebody renews."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_EVERY_S = 2.0


class WatchedFiles(Generic[T]):
    """What `read` makes of some files. It is read again when one of them has changed; while that fails, what was read
    before stays."""

    def __init__(self, paths: Sequence[Path], read: Callable[[], T], failed: Callable[[Exception], None]) -> None:
        """Raises what `read` raises."""
        self._paths = tuple(paths)
        self._read = read
        self._failed = failed
        self._looked, self._seen = time.monotonic(), self._state()
        self._value = read()

    def __call__(self) -> T:
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._read_again()
        return self._value

    def _read_again(self) -> None:
        found = self._state()
        if found == self._seen:
            return
        try:
            self._value = self._read()
            self._seen = found  # otherwise it is tried again: a certificate and its key change one after the other
        except (OSError, ValueError) as error:
            self._failed(error)

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stat(path) for path in self._paths)


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
