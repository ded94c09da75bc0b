"""How `carrel demo` ends, and what it refuses."""

import signal
import subprocess
from pathlib import Path

import pytest

from carrel.demo import DemoSettings
from carrel.demo.run import demo_options
from carrel.parsing import Malformed
from tests.integration.demo.demo_process import CARREL, a_demo
from tests.kit.eventually import LIMIT_S


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


def test_it_exits_with_zero_after_sigterm_while_it_starts() -> None:
    with a_demo() as demo:
        demo.lines_until("are starting")

        demo.process.send_signal(signal.SIGTERM)

        assert demo.process.wait(LIMIT_S) == 0


@pytest.mark.parametrize(
    ("option", "text", "complaint"),
    [
        ("cluster", "nodes: []", "line 1 ($.nodes)"),
        ("pods", "kind: Banana", "kind of document 1 is 'Banana'; expected Pod or GpuClaim"),
        ("pods", "{kind: Pod, apiVersion: v2}", "apiVersion of document 1 is 'v2'; expected v1"),
        ("pods", "", "expected at least one Pod"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tmp_path: Path, option: str, text: str, complaint: str) -> None:
    file = tmp_path / "input.yaml"
    file.write_text(text)
    settings = DemoSettings(cluster=file) if option == "cluster" else DemoSettings(pods=file)

    with pytest.raises(Malformed) as refused:
        demo_options(settings)

    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(["--once"], "--pods replaces the story"), ([], "No such file")],
    ids=["two stories", "a missing file"],
)
def test_what_is_refused_ends_it_with_two(tmp_path: Path, options: list[str], complaint: str) -> None:
    command = [*CARREL, "demo", *options, "--pods", str(tmp_path / "nothing.yaml")]

    answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)

    assert answer.returncode == 2
    assert complaint in answer.stderr
    assert "Traceback" not in answer.stderr
