"""`carrel demo` as a process."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carrel.dialects.registry import DIALECTS

CARREL = [sys.executable, "-m", "carrel"]
LIMIT_S = 240
KUBECTL = re.compile(r"kubectl --server (http://127\.0\.0\.1:\d+)")

PLACED = {
    "gpushare-two-containers-",
    "gpuclaim-island-",
    "kai-memory-",
    *(dialect.example.replace(".yaml", "-") for dialect in DIALECTS),
}
"""The examples whose pods run."""


class DemoProcess:
    """Its output is read all the time: the demo would stop if nobody read it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([*CARREL, "demo"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)  # one by one: each is seen as it comes

    def lines_until(self, wanted: str) -> list[str]:
        deadline = time.monotonic() + LIMIT_S
        while True:
            has_ended, lines = not self._reader.is_alive(), self._lines.copy()
            found = next((number for number, line in enumerate(lines) if re.search(wanted, line)), None)
            if found is not None:
                return lines[: found + 1]
            assert not has_ended, f"the demo ended before it said {wanted!r}:\n{''.join(lines)}"
            assert time.monotonic() < deadline, "".join(lines)
            time.sleep(0.1)


@contextmanager
def a_demo() -> Iterator[DemoProcess]:
    running = DemoProcess()
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoProcess]:
    """For tests that only look at it."""
    with a_demo() as running:
        yield running


@pytest.fixture
def own_demo() -> Iterator[DemoProcess]:
    """For tests that end it."""
    with a_demo() as running:
        yield running


def test_pods_of_every_dialect_are_placed_with_the_tier_of_their_owner(demo: DemoProcess) -> None:
    lines = demo.lines_until(r"waits-too-large-\w+ waits")
    url = KUBECTL.search(lines[0])
    assert url is not None
    assert "book at http" in lines[0]
    assert not [line for line in lines if not line.startswith(("Carrel demo", "  "))]
    assert not [line for line in lines if line.endswith("free; free\n") or ("XID" in line and "free" in line)]
    tiers: dict[str, set[str]] = {}
    seen: set[str] = set()
    deadline = time.monotonic() + LIMIT_S
    while not (seen >= PLACED and "booked" in tiers["lab"]) and time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url[1]}/api/v1/pods") as answer:
            pods = json.load(answer)["items"]
        for pod in pods:
            tier = pod["metadata"].get("annotations", {}).get("carrel.dev/tier", "")
            tiers.setdefault(pod["metadata"]["namespace"], set()).add(tier)
        seen |= {pod["metadata"].get("generateName", "") for pod in pods if pod["spec"].get("nodeName")}
        time.sleep(0.2)

    assert seen >= PLACED
    assert "booked" in tiers["lab"]
    assert "opportunistic" in tiers["vision"]


def test_a_gpu_is_taken_back_from_who_holds_many_and_not_from_a_newcomer(demo: DemoProcess) -> None:
    """cleo has booked one GPU. All GPUs of that model are held without a booking: one by nia, the others by hal."""
    taken = r"hal/train-\d continues without a GPU: .*: hal@lab.example \d\.0 GPUs, nia@lab.example 1\.0 GPUs"

    lines = demo.lines_until(taken)

    assert sum("continues without a GPU" in line for line in lines) == 1


def test_a_booking_covers_one_of_two_pods_and_the_other_runs_on_what_is_free(demo: DemoProcess) -> None:
    demo.lines_until(
        r"cleo@lab.example booked 1 NVIDIA-RTX-A6000: 1 of 1 in use: cleo/train; "
        r"beyond it, on what is free: cleo/sweep$"
    )


def test_kubectl_shows_a_pod_that_runs_as_ready(demo: DemoProcess) -> None:
    url = KUBECTL.search("".join(demo.lines_until(r"waits-too-large-\w+ waits")))
    assert url is not None
    as_table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    question = urllib.request.Request(f"{url[1]}/api/v1/pods", headers=as_table)

    def ready() -> list[str]:
        with urllib.request.urlopen(question) as answer:
            table = json.load(answer)
        columns = [column["name"] for column in table["columnDefinitions"]]
        rows = [dict(zip(columns, row["cells"], strict=True)) for row in table["rows"]]
        return [row["Ready"] for row in rows if row["Status"] == "Running"]

    deadline = time.monotonic() + LIMIT_S
    while not (running := ready()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert running and set(running) <= {"1/1", "2/2"}


def test_its_booking_service_shows_who_has_booked_what(demo: DemoProcess) -> None:
    pages = re.search(r"book at (http://127\.0\.0\.1:\d+)", demo.lines_until("book at http")[-1])
    assert pages is not None

    with urllib.request.urlopen(f"{pages[1]}/maia-api/gpu-stats/") as answer:
        free = json.load(answer)["gpu"]

    assert set(free) == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-RTX-A6000", "Tesla-T4"}


def test_why_explain_and_inspect_work_against_it(demo: DemoProcess) -> None:
    url = KUBECTL.search("".join(demo.lines_until("book at http")))
    assert url is not None
    # A pod of our own: the demo deletes its pods after a while.
    container = {"name": "main", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "16"}}}
    stays = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays"}, "spec": {"containers": [container]}}
    headers = {"content-type": "application/json"}
    where = f"{url[1]}/api/v1/namespaces/speech/pods"
    with urllib.request.urlopen(urllib.request.Request(where, json.dumps(stays).encode(), headers)) as answer:
        assert answer.status == 201
    demo.lines_until("speech/stays waits")

    def run(*words: str) -> str:
        command = [*CARREL, *words, "--server", url[1]]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout

    assert "16 whole GPUs" in run("why", "pod/stays", "-n", "speech")
    assert "16 whole GPUs" in run("explain", "pod/stays", "-n", "speech")
    assert "Allocated/Total GPU Memory In Cluster:" in run("inspect")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_it_exits_with_zero_after_a_signal(own_demo: DemoProcess, number: signal.Signals) -> None:
    own_demo.lines_until("Carrel demo")

    own_demo.process.send_signal(number)

    assert own_demo.process.wait(LIMIT_S) == 0


def test_its_processes_end_with_it_even_if_it_is_killed(own_demo: DemoProcess) -> None:
    own_demo.lines_until("book at http")
    processes = children(own_demo.process.pid)
    assert len(processes) == 3

    own_demo.process.kill()

    deadline = time.monotonic() + LIMIT_S
    while any(is_running(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [process for process in processes if is_running(process)]


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """False for a zombie: it has ended, and its parent has not read its exit code yet."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("option", "text", "complaint"),
    [
        ("--cluster", "nodes: []", "line 1 ($.nodes)"),
        ("--pods", "kind: Banana", "kind of document 1 is 'Banana'; expected Pod or GpuClaim"),
        ("--pods", "{kind: Pod, apiVersion: v2}", "apiVersion of document 1 is 'v2'; expected v1"),
        ("--pods", "", "expected at least one Pod"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tmp_path: Path, option: str, text: str, complaint: str) -> None:
    file = tmp_path / "input.yaml"
    file.write_text(text)

    answer = subprocess.run([*CARREL, "demo", option, str(file)], capture_output=True, text=True, timeout=LIMIT_S)

    assert answer.returncode == 2
    assert complaint in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    answer = subprocess.run(
        [*CARREL, "demo", "--pods", str(tmp_path / "nothing.yaml")], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert answer.returncode == 2
    assert "No such file" in answer.stderr
