"""`carrel simulate` as a real process with real workers: however it ends, no process stays and no result is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.eventually import LIMIT_S, eventually

NODES = "nodes:\n" + "".join(
    f"- {{name: n{number}, gpus: [{{count: 8, model: A100, memoryMiB: 81920}}]}}\n" for number in range(50)
)
PODS = "pods:\n- {name: a, gpu_part: 0.3, count: 100}\n- {name: b, gpus: 2, count: 100}\n"
FOR_HOURS = ("--arrival", "100", "--seeds", "1000", "--processes", "3")


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "nodes.yaml").write_text(NODES)
    (tmp_path / "pods.yaml").write_text(PODS)
    (tmp_path / "out.csv").write_text("old")
    return tmp_path


def command(*options: str) -> list[str]:
    """As people call it. With `python -m` an interrupt that comes while a dataclass is made ends Python by the signal,
    although it was handled."""
    script = Path(sys.executable).with_name("carrel")
    return [str(script), "simulate", "pods.yaml", "--nodes", "nodes.yaml", *options]


@contextmanager
def running(lab: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """In a session of its own, as in a terminal: signals may be sent to all of it. A shell lets what it runs in the
    background ignore Ctrl-C, and these tests may run there: so the signal is made to count."""
    process = subprocess.Popen(
        command("--csv", "out.csv", *options),
        cwd=lab,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def names_in(lab: Path) -> list[str]:
    return sorted(file.name for file in lab.iterdir())


def children(process: "subprocess.Popen[str]") -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    """Also if nobody has asked yet how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


async def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    def all_of_them() -> list[int]:
        found = children(process)
        return found if len(found) == 3 else []

    return await eventually(all_of_them, "three workers")


def everyone(process: "subprocess.Popen[str]", number: int) -> None:
    os.killpg(process.pid, number)


def the_parent(process: "subprocess.Popen[str]", number: int) -> None:
    process.send_signal(number)


@pytest.mark.parametrize(
    ("number", "code", "whom"),
    [
        pytest.param(signal.SIGINT, 130, everyone, id="Ctrl-C in a terminal"),
        pytest.param(signal.SIGINT, 130, the_parent, id="SIGINT for the parent"),
        pytest.param(signal.SIGTERM, 143, the_parent, id="SIGTERM for the parent"),
        pytest.param(signal.SIGTERM, 143, everyone, id="SIGTERM for all, as timeout and containers send it"),
        pytest.param(signal.SIGKILL, -9, the_parent, id="SIGKILL for the parent"),
    ],
)
async def test_a_signal_ends_the_simulation_and_all_its_processes(
    lab: Path, number: int, code: int, whom: Callable[["subprocess.Popen[str]", int], None]
) -> None:
    with running(lab, *FOR_HOURS) as process:
        workers = await workers_of(process)

        whom(process, number)

        assert process.wait(LIMIT_S) == code
        await eventually(lambda: all(map(has_ended, workers)), "the end of all workers")
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert (lab / "out.csv").read_text() == "old"
    assert names_in(lab) == ["nodes.yaml", "out.csv", "pods.yaml"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_a_simulation_in_one_process(lab: Path, number: int, code: int) -> None:
    with running(lab, *FOR_HOURS[:-1], "1") as process:

        def handles_sigterm() -> bool:
            status = Path(f"/proc/{process.pid}/status").read_text()
            caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
            return bool(int(caught.split()[1], 16) & (1 << (signal.SIGTERM - 1)))

        await eventually(handles_sigterm, "the beginning")

        process.send_signal(number)

        assert process.wait(LIMIT_S) == code
    assert (lab / "out.csv").read_text() == "old"


async def test_a_worker_that_is_killed_is_said_in_one_sentence(lab: Path) -> None:
    with running(lab, *FOR_HOURS) as process:
        workers = await workers_of(process)

        os.kill(workers[0], signal.SIGKILL)

        _, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1
        assert f"Process {workers[0]}, which simulated a part of it, was ended by SIGKILL." in said
        assert "Traceback" not in said
        await eventually(lambda: all(map(has_ended, workers)), "the end of all workers")
    assert (lab / "out.csv").read_text() == "old"


def test_results_are_the_same_on_one_core_and_on_several(lab: Path) -> None:
    options = ("--arrival", "1.3", "--seeds", "3", "--policies", "random,carrel", "--processes")

    one, several = (
        subprocess.run(command(*options, number), cwd=lab, capture_output=True, timeout=LIMIT_S, check=True).stdout
        for number in ("1", "3")
    )

    assert one == several != b""


def test_the_files_are_written_although_nobody_reads_the_table(lab: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        options = ("--policies", "carrel", "--csv", "out.csv", "--svg", "out.svg")
        ended = subprocess.run(command(*options), cwd=lab, stdout=writer, stderr=subprocess.PIPE, timeout=LIMIT_S)
    finally:
        os.close(writer)

    assert b"Traceback" not in ended.stderr
    assert (lab / "out.csv").read_text().startswith("CASE,POLICY,")
    assert (lab / "out.svg").read_text().startswith("<svg ")


def test_files_are_in_utf_8_whatever_the_locale_is(lab: Path) -> None:
    (lab / "pods.yaml").write_text(PODS + "bookings:\n- {user: eve, model: A100, lasts_hours: 72}\n")
    latin = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "latin-1"}

    options = ("--add", "1xA100:81920", "--csv", "out.csv", "--svg", "out.svg")
    subprocess.run(command(*options), cwd=lab, env=latin, capture_output=True, timeout=LIMIT_S, check=True)

    assert "BOOKED (GPU·d)" in (lab / "out.csv").read_bytes().decode("utf-8")
    assert "<svg " in (lab / "out.svg").read_bytes().decode("utf-8")
