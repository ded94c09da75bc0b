"""`carrel demo` as a process."""

import http.cookiejar
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from carrel.dialects.registry import DIALECTS

T = TypeVar("T")

CARREL = [sys.executable, "-m", "carrel"]
LIMIT_S = 240
KUBECTL = re.compile(r"kubectl --server (http://127\.0\.0\.1:\d+)")
BOOK = re.compile(r"book at (http://127\.0\.0\.1:\d+)")

PLACED = {
    "gpushare-two-containers-",
    "gpuclaim-island-",
    "kai-memory-",
    *(dialect.example.replace(".yaml", "-") for dialect in DIALECTS),
}
"""The examples whose pods run."""


class DemoProcess:
    """Its output is read all the time: the demo would stop if nobody read it."""

    def __init__(self, *options: str) -> None:
        command = [*CARREL, "demo", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.first_line_cpu_s = 0.0
        """How long it had worked when its first line came."""
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not self._lines:
                self.first_line_cpu_s = cpu_s(self.process.pid)
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

    def api(self) -> str:
        """The address for kubectl."""
        found = KUBECTL.search(self.lines_until(KUBECTL.pattern)[-1])
        assert found is not None
        return found[1]

    def objects(self, path: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.api()}/{path}") as answer:
            items: list[dict[str, Any]] = json.load(answer)["items"]
        return items

    def pages_of(self, person: str) -> Callable[[str], str]:
        """The booking service as that person sees it: a path → what is there."""
        found = BOOK.search(self.lines_until(BOOK.pattern)[-1])
        assert found is not None
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        form = urllib.parse.urlencode({"email": f"{person}@lab.example", "role": "member"}).encode()
        browser.open(urllib.request.Request(f"{found[1]}/sign-in/dev", form, {"origin": found[1]})).close()

        def read(path: str) -> str:
            with browser.open(f"{found[1]}{path}") as answer:
                text: str = answer.read().decode()
            return text

        return read


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def eventually(look: Callable[[], T], what: str) -> T:
    """The first true answer."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not within {LIMIT_S} s"
        time.sleep(0.2)
    return found


@contextmanager
def a_demo(*options: str) -> Iterator[DemoProcess]:
    running = DemoProcess(*options)
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


@pytest.fixture(scope="module")
def coexisting() -> Iterator[DemoProcess]:
    """Beside NVIDIA's plugin; for tests that only look at it."""
    with a_demo("--mode", "coexist") as running:
        yield running


@pytest.fixture
def own_demo() -> Iterator[DemoProcess]:
    """For tests that end it."""
    with a_demo() as running:
        yield running


def test_pods_of_every_dialect_are_placed_with_the_tier_of_their_owner(demo: DemoProcess) -> None:
    lines = demo.lines_until(r"waits-too-large-\w+ waits")
    assert "book at http" in demo.lines_until(KUBECTL.pattern)[-1]
    assert not [line for line in lines if not line.startswith(("Carrel demo", "  "))]
    assert not [line for line in lines if line.endswith("free; free\n") or ("XID" in line and "free" in line)]
    tiers: dict[str, set[str]] = {}
    seen: set[str] = set()
    deadline = time.monotonic() + LIMIT_S
    while not (seen >= PLACED and "booked" in tiers["lab"]) and time.monotonic() < deadline:
        pods = demo.objects("api/v1/pods")
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
    as_table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    question = urllib.request.Request(f"{demo.api()}/api/v1/pods", headers=as_table)

    def ready() -> list[str]:
        with urllib.request.urlopen(question) as answer:
            table = json.load(answer)
        columns = [column["name"] for column in table["columnDefinitions"]]
        rows = [dict(zip(columns, row["cells"], strict=True)) for row in table["rows"]]
        return [row["Ready"] for row in rows if row["Status"] == "Running"]

    assert set(eventually(ready, "a pod runs")) <= {"1/1", "2/2"}


def test_its_booking_service_shows_who_has_booked_what(demo: DemoProcess) -> None:
    free = json.loads(demo.pages_of("zoe")("/maia-api/gpu-stats/"))["gpu"]

    assert set(free) == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-RTX-A6000", "Tesla-T4"}


def test_why_explain_and_inspect_work_against_it(demo: DemoProcess) -> None:
    # A pod of our own: the demo deletes its pods after a while.
    container = {"name": "main", "image": "work", "resources": {"limits": {"nvidia.com/gpu": "16"}}}
    stays = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays"}, "spec": {"containers": [container]}}
    headers = {"content-type": "application/json"}
    where = f"{demo.api()}/api/v1/namespaces/speech/pods"
    with urllib.request.urlopen(urllib.request.Request(where, json.dumps(stays).encode(), headers)) as answer:
        assert answer.status == 201
    demo.lines_until("speech/stays waits: No node has 16 GPUs")

    def run(*words: str) -> str:
        command = [*CARREL, *words, "--server", demo.api()]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout

    assert "No node has 16 GPUs" in run("why", "pod/stays", "-n", "speech")
    assert "No node has 16 GPUs" in run("explain", "pod/stays", "-n", "speech")
    assert "Allocated/Total GPU Memory In Cluster:" in run("inspect")


def test_its_nodes_report_who_uses_which_gpu(demo: DemoProcess) -> None:
    def is_reported() -> bool:
        """That a pod uses the GPU that it was told."""
        reports = demo.objects("apis/gpu.scheduling/v1/gpunodestatuses")
        devices = [device for each in reports for device in each.get("status", {}).get("devices", ())]
        users = {device["uuid"]: device["inUseBy"] for device in devices}
        told = {
            pod["metadata"]["uid"]: pod["metadata"].get("annotations", {}).get("carrel.dev/devices", "").split(",")[0]
            for pod in demo.objects("api/v1/pods")
        }
        return any(uid in users.get(uuid, ()) for uid, uuid in told.items())

    assert eventually(is_reported, "the report")


def test_its_nodes_mark_a_gpushare_pod_that_has_its_share(demo: DemoProcess) -> None:
    def marks() -> set[str]:
        notes = (pod["metadata"].get("annotations", {}) for pod in demo.objects("api/v1/pods"))
        return {each["ALIYUN_COM_GPU_MEM_ASSIGNED"] for each in notes if "ALIYUN_COM_GPU_MEM_ASSIGNED" in each}

    eventually(lambda: "true" in marks(), "the mark")


def test_its_bookings_are_made_by_people(demo: DemoProcess) -> None:
    (booking,) = json.loads(demo.pages_of("cleo")("/api/v1/bookings?user=me"))["items"]

    assert (booking["created_by"], booking["reason"]) == ("cleo@lab.example", "")


def test_a_new_person_is_told_what_to_do_first(demo: DemoProcess) -> None:
    demo.lines_until(r"Sign in as you@lab\.example: your pods are in the namespace you\.")
    owners = {
        each["metadata"]["name"]: each["metadata"].get("annotations", {}) for each in demo.objects("api/v1/namespaces")
    }

    assert owners["you"]["owner"] == "you@lab.example"
    assert "What to do first" in demo.pages_of("you")("/")
    assert "What to do first" not in demo.pages_of("cleo")("/")


def test_it_says_at_once_that_it_starts(demo: DemoProcess) -> None:
    """Measured in CPU time, so that a busy machine is no reason to fail."""
    assert demo.lines_until("")[0].startswith("Carrel demo: starting.")
    assert demo.first_line_cpu_s < 2


def test_it_says_that_it_also_plays_the_way_beside_nvidias_plugin(demo: DemoProcess) -> None:
    demo.lines_until(r"Beside NVIDIA's plugin: carrel demo --mode coexist")


def test_beside_nvidias_plugin_two_pods_share_the_gpu_that_a_reservation_pod_reports(coexisting: DemoProcess) -> None:
    coexisting.lines_until(r"reservation pod \S+ was given GPU \d of \S+ and holds it for ivy/half, tom/half$")


def test_beside_nvidias_plugin_a_pod_gets_the_gpu_that_the_kubelet_gave_to_its_reservation_pod(
    coexisting: DemoProcess,
) -> None:
    def shared() -> str:
        """A GPU that a pod was told and a reservation pod has: by what it reports, and by the kubelet's list."""
        pods = coexisting.objects("api/v1/pods")
        reports = coexisting.objects("apis/gpu.scheduling/v1/gpunodestatuses")
        notes = [pod["metadata"].get("annotations", {}) for pod in pods]
        reserved = {
            pod["metadata"]["annotations"].get("run.ai/reserve_for_gpu_index", ""): pod["metadata"]["uid"]
            for pod in pods
            if pod["metadata"]["namespace"] == "kai-resource-reservation"
        }
        users = {device["uuid"]: device["inUseBy"] for each in reports for device in each["status"]["devices"]}
        told = (each.get("carrel.dev/devices", "") for each in notes)
        return next((uuid for uuid in told if uuid in reserved and users[uuid] == [reserved[uuid]]), "")

    assert eventually(shared, "a shared GPU")


def test_once_plays_the_story_and_ends_with_zero() -> None:
    with a_demo("--once") as demo:
        demo.lines_until(r"a GPU of hal, who held most, was taken back for cleo; nia, who held one, keeps it")
        demo.lines_until("The story came true")

        assert demo.process.wait(LIMIT_S) == 0


def test_once_ends_with_one_where_the_story_cannot_come_true(tmp_path: Path) -> None:
    small = tmp_path / "small.yaml"
    small.write_text("nodes: [{name: n1, gpus: [{count: 2, model: T4, memoryMiB: 16276}]}]")

    with a_demo("--once", "--cluster", str(small)) as demo:
        demo.lines_until("the cluster has no model with 3 GPUs that can be used")

        assert demo.process.wait(LIMIT_S) == 1


def test_once_that_is_stopped_does_not_end_with_zero() -> None:
    with a_demo("--once", "--seconds", "0.01") as demo:
        demo.lines_until("The demo was stopped before the story was over")

        assert demo.process.wait(LIMIT_S) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_it_exits_with_zero_after_a_signal(own_demo: DemoProcess, number: signal.Signals) -> None:
    own_demo.lines_until("are starting")

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
        ("--once --pods", "", "--pods replaces the story"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tmp_path: Path, option: str, text: str, complaint: str) -> None:
    file = tmp_path / "input.yaml"
    file.write_text(text)

    answer = subprocess.run(
        [*CARREL, "demo", *option.split(), str(file)], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert answer.returncode == 2
    assert complaint in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    answer = subprocess.run(
        [*CARREL, "demo", "--pods", str(tmp_path / "nothing.yaml")], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert answer.returncode == 2
    assert "No such file" in answer.stderr
