"""One program of the test bed: started, watched, logged, and ended with its parent.

- The kernel ends a program when the thread that started it ends, however it ends: no orphans after a crash.
- Each has its own session, so that Ctrl-C in a terminal reaches only us and we take the programs down in order.
- A program that ends on its own while we wait for it is reported at once, with the end of its log.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.05


class Failed(Exception):
    """A component failed. The message holds the end of its log."""


@dataclass(frozen=True)
class Process:
    name: str
    program: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str | Path], log: Path) -> "Process":
        with log.open("ab") as output:
            program = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                start_new_session=True,
            )
        return cls(name, program, log)

    def stop(self, grace_seconds: float = 10) -> None:
        """Sends SIGTERM, then SIGKILL. Safe to call twice."""
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
        """Polls until the condition is true, and returns its value. OSError counts as false."""
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
