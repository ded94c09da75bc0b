"""One program of the test bed: started, watched, its log kept, and never outliving us.

- The kernel ends a program when the thread that started it ends, however it ends: no orphans after a crash.
- Each has its own session, so that Ctrl-C in a terminal reaches only us and we take the programs down in order.
- A program that ends on its own while we wait for it is reported at once, with the end of its log.
"""

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from testbed.tools import cache

T = TypeVar("T")
POLL_SECONDS = 0.05
RUNS_KEPT = 10
"""Older runs lose their logs."""
_numbers = itertools.count()


class Failed(Exception):
    """A component did not do its part. The message holds the end of its log."""


@dataclass(frozen=True)
class Run:
    """The folder of one test bed: what it needs while it runs, and the logs that stay."""

    folder: Path

    @classmethod
    def new(cls, name: str) -> "Run":
        runs = cache() / "runs"
        runs.mkdir(exist_ok=True)
        for old in sorted(runs.iterdir())[: 1 - RUNS_KEPT]:
            if not (old / "data").exists():
                shutil.rmtree(old, ignore_errors=True)
        folder = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_numbers)}-{name}"
        (folder / "data").mkdir(parents=True)
        (folder / "logs").mkdir()
        return cls(folder)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def logs(self) -> list[Path]:
        return sorted((self.folder / "logs").glob("*.log"))

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> "Process":
        log = self.folder / "logs" / f"{name}.log"
        with log.open("ab") as output:
            program = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment) if environment is not None else None,
                cwd=self.data,
                start_new_session=True,
            )
        return Process(name, program, log)

    def forget_data(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)


@dataclass(frozen=True)
class Process:
    name: str
    program: subprocess.Popen[bytes]
    log: Path

    def stop(self, grace_seconds: float = 10) -> None:
        """Asks it to end, then makes it end. Safe to call twice."""
        self.program.terminate()
        try:
            self.program.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.program.kill()
            self.program.wait()

    def check(self) -> None:
        if self.program.poll() is not None:
            raise Failed(f"{self.name} ended with status {self.program.returncode}:\n{tail(self.log)}")

    def wait_until(self, what: str, condition: Callable[[], T | None], limit_seconds: float = 60) -> T:
        """Polls until the condition holds, and answers it. A condition may raise OSError: that is a no."""
        deadline = time.monotonic() + limit_seconds
        doubt = ""
        while time.monotonic() < deadline:
            self.check()
            try:
                if answer := condition():
                    return answer
            except OSError as error:
                doubt = f" ({error})"
            time.sleep(POLL_SECONDS)
        raise Failed(f"after {limit_seconds:.0f} s, {self.name}: not {what}{doubt}\n{tail(self.log)}")


def tail(log: Path, lines: int = 30) -> str:
    text = log.read_text(errors="replace").splitlines()
    return "\n".join([f"--- end of {log}", *text[-lines:]])
