"""A process on a terminal of its own, and what a person sees there."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.kit.eventually import eventually

ENTERED, LEFT, SHOWN_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
NOTHING: Mapping[str, str] = {}
_HOME = "\x1b[H"
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_ON_ITS_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
)
"""A terminal sends Ctrl-C to the processes that it controls."""


class Terminal:
    """Requires an event loop, in which its output is read."""

    def __init__(
        self, *arguments: str, columns: int = 80, lines: int = 24, environment: Mapping[str, str] = NOTHING
    ) -> None:
        self._own, theirs = pty.openpty()
        self._lines = lines
        self.resize(columns, lines)
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        """Kept open, so that it can be looked at when the process is gone."""
        self.output = ""
        env = {**os.environ, "KUBECONFIG": "", "TERM": "xterm-256color", **environment}
        for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
            if name not in environment:
                env.pop(name, None)
        command = [sys.executable, "-c", _ON_ITS_TERMINAL, sys.executable, "-m", "carrel", *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        )
        asyncio.get_running_loop().add_reader(self._own, self._read)

    def _read(self) -> None:
        self.output += os.read(self._own, 65536).decode(errors="replace")

    def resize(self, columns: int, lines: int) -> None:
        self._lines = lines
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def types(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def screen(self) -> list[str]:
        """The last whole picture of a program that draws on all of the terminal; empty: there is none yet."""
        for picture in reversed(self.output.split(_HOME)[1:]):
            lines = _CONTROL.sub("", picture).replace("\r", "").split("\n")
            if len(lines) >= self._lines:
                return [line.rstrip() for line in lines[: self._lines]]
        return []

    async def shows(self, words: str) -> list[str]:
        """Waits until these words are on the screen."""

        def seen() -> list[str]:
            picture = self.screen()
            assert self.process.poll() is None or words in "\n".join(picture), self.output
            return picture if words in "\n".join(picture) else []

        return await eventually(seen, f"{words!r} on the screen")

    async def ended(self) -> int:
        """Waits for the end, and returns the code. The terminal is as it was."""
        await eventually(lambda: self.process.poll() is not None, "the end")
        await eventually(lambda: LEFT in self.output.rpartition(ENTERED)[2], "the end of the picture")
        assert SHOWN_CURSOR in self.output.rpartition(ENTERED)[2]
        assert termios.tcgetattr(self._theirs) == self.before
        return self.process.returncode or 0

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        asyncio.get_running_loop().remove_reader(self._own)
        os.close(self._own)
        os.close(self._theirs)


@contextmanager
def on_terminal(
    *arguments: str, columns: int = 80, lines: int = 24, environment: Mapping[str, str] = NOTHING
) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, columns=columns, lines=lines, environment=environment)
    try:
        yield terminal
    finally:
        terminal.close()
