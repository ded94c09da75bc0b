"""`carrel demo` as a newcomer runs it."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

CARREL = [sys.executable, "-m", "carrel"]
LIMIT_S = 120

PODS = ("gpushare-", "gpushare-two-containers-", "claim-", "claim-island-", "kai-half-", "kai-memory-", "whole-")
DIALECTS = {*PODS, "carrel-vector-"}


@pytest.fixture
def demo() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*CARREL, "demo"], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def lines_until(process: subprocess.Popen[str], wanted: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    give_up = time.monotonic() + LIMIT_S
    for line in process.stdout:
        lines.append(line)
        if re.search(wanted, line):
            return lines
        assert time.monotonic() < give_up, "".join(lines)
    raise AssertionError(f"the demo ended before it said {wanted!r}:\n{''.join(lines)}")


def test_pods_of_every_dialect_are_placed_and_a_pod_with_two_dialects_is_told_why_it_waits(
    demo: subprocess.Popen[str],
) -> None:
    shown = "".join(lines_until(demo, r"two-dialects-\w+ waits"))
    url = re.search(r"http://127\.0\.0\.1:\d+", shown)
    assert url is not None
    seen: set[str] = set()
    give_up = time.monotonic() + LIMIT_S
    while not seen >= DIALECTS and time.monotonic() < give_up:
        with urllib.request.urlopen(f"{url[0]}/api/v1/pods") as answer:
            pods = json.load(answer)["items"]
        seen |= {pod["metadata"]["generateName"] for pod in pods if pod["spec"].get("nodeName")}
        time.sleep(0.2)

    assert seen >= DIALECTS
    assert "asks for cards in 2 ways" in shown


def test_why_explain_and_inspect_work_against_it(demo: subprocess.Popen[str]) -> None:
    shown = "".join(lines_until(demo, r"two-dialects-\w+ waits"))
    url, pod = re.search(r"http://127\.0\.0\.1:\d+", shown), re.search(r"(\w+)/(two-dialects-\w+) waits", shown)
    assert url is not None
    assert pod is not None

    def ask(*words: str) -> str:
        command = [*CARREL, *words, "--server", url[0]]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout

    assert "asks for cards in 2 ways" in ask("why", f"pod/{pod[2]}", "-n", pod[1])
    assert "asks for cards in 2 ways" in ask("explain", f"pod/{pod[2]}", "-n", pod[1])
    assert "Allocated/Total GPU Memory In Cluster:" in ask("inspect")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_it_ends_cleanly_when_it_is_told_to(demo: subprocess.Popen[str], number: signal.Signals) -> None:
    lines_until(demo, "Carrel demo")

    demo.send_signal(number)

    assert demo.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("option", "text", "complaint"),
    [
        ("--cluster", "nodes: []", "line 1 ($.nodes)"),
        ("--pods", "kind: Banana", "kind of document 1 is 'Banana'; expected Pod or GpuClaim"),
        ("--pods", "", "expected at least one Pod"),
    ],
)
def test_a_bad_file_is_refused_in_words(tmp_path: Path, option: str, text: str, complaint: str) -> None:
    file = tmp_path / "input.yaml"
    file.write_text(text)

    answer = subprocess.run([*CARREL, "demo", option, str(file)], capture_output=True, text=True, timeout=LIMIT_S)

    assert answer.returncode == 2
    assert complaint in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    answer = subprocess.run(
        [*CARREL, "demo", "--pods", str(tmp_path / "nothing.yaml")], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert answer.returncode == 2
    assert "No such file" in answer.stderr
