"""Programs of the test bed are watched, and end with their parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from testbed.processes import Failed, Process
from tests.kit.eventually import LIMIT_S


def goes_on(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "program.log"


def test_a_program_that_ends_too_early_is_reported_with_its_last_output(log: Path) -> None:
    program = Process.start("kube-something", ["sh", "-c", "echo port taken >&2; exit 3"], log)
    with pytest.raises(Failed, match=r"kube-something ended with status 3(.|\n)*port taken"):
        program.wait_until("ready", lambda: False, LIMIT_S)


def test_a_program_that_is_never_ready_is_reported_with_what_was_waited_for(log: Path) -> None:
    program = Process.start("kube-something", ["sleep", "600"], log)

    def refused() -> bool:
        raise ConnectionRefusedError("connection refused")

    with pytest.raises(Failed, match=r"kube-something: not ready \(connection refused\)"):
        program.wait_until("ready", refused, 0.2)
    program.stop()


def test_a_program_that_ignores_sigterm_is_killed(log: Path) -> None:
    program = Process.start("deaf", ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"], log)
    program.wait_until("deaf", lambda: log.read_text() == "deaf\n", LIMIT_S)
    program.stop(grace_seconds=0.1)
    assert program.program.returncode == -signal.SIGKILL


def test_a_program_ends_with_its_parent_also_when_that_is_killed(log: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from testbed.processes import Process\n"
        "program = Process.start('sleeper', ['sleep', '600'], pathlib.Path(sys.argv[1]))\n"
        "print(program.program.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", script, log], cwd=root, stdout=subprocess.PIPE, text=True) as us:
        assert us.stdout is not None
        sleeper = int(us.stdout.readline())
        while Path(f"/proc/{sleeper}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        us.kill()
    deadline = time.monotonic() + LIMIT_S
    while goes_on(sleeper) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = goes_on(sleeper)
    if left:
        os.kill(sleeper, signal.SIGKILL)
    assert not left
