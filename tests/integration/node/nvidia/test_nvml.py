"""The real binding of NVIDIA's library, on a stand-in for the library itself."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]

FOUR = """\
card GPU-a 00000000:3B:00.0 81920 2 NVIDIA A100-SXM4-80GB
card GPU-b 00000000:3C:00.0 81920 0 NVIDIA A100-SXM4-80GB
card GPU-c 00000000:AF:00.0 16276 0 Tesla T4 (rev 2)
card GPU-d 00010000:01:00.0 49140 0 NVIDIA RTX A6000
"""
DIRECT = "link 0 00000000:3C:00.0\nlink 1 00000000:3B:00.0\n" * 6


@dataclass
class Eyes:
    """The looking process, and the file that its library reads."""

    process: subprocess.Popen[str]
    file: Path

    def machine(self, text: str) -> None:
        draft = self.file.with_suffix(".draft")
        draft.write_text(text)
        draft.rename(self.file)

    def ask(self, question: str) -> Any:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return None if question.startswith("advance") else json.loads(self.process.stdout.readline())

    def unusable(self) -> list[str]:
        return [gpu["unusable"] for gpu in self.ask("look")["gpus"]]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with a library each: of today, of an old driver, and one that is none."""
    folder = tmp_path_factory.mktemp("nvml")
    for name, options in (("new", []), ("old", ["-DOLD_DRIVER"])):
        (folder / name).mkdir()
        library = folder / name / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-shared", "-fPIC", *options, "-o", library, HERE / "nvml_stub.c"], check=True)
    (folder / "none").mkdir()
    (folder / "none" / "libnvidia-ml.so.1").write_text("not a library")
    return {path.name: path for path in folder.iterdir()}


@contextmanager
def eyes(library: Path, tmp_path: Path, machine: str) -> Iterator[Eyes]:
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0/numa_node").write_text("1\n")
    file = tmp_path / "machine"
    file.write_text(machine)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STUB": str(file), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.integration.node.nvidia.looking", str(tmp_path / "sys")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT) as process:
        try:
            yield Eyes(process, file)
        finally:
            process.kill()


def test_cards_links_and_neighbours_are_seen(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + DIRECT) as see:
        look = see.ask("look")

    assert look["trouble"] == ""
    assert look["processes"] == {"GPU-a": 2, "GPU-b": 0, "GPU-c": 0, "GPU-d": 0}
    linked = {"island": "nvlink-0", "bandwidth_gbps": 300}
    alone = {"island": "", "bandwidth_gbps": 0}
    a100 = {"model": "NVIDIA-A100-SXM4-80GB", "memory": 81920}
    assert look["gpus"] == [
        {"uuid": uuid, "node": "n1", "index": index, "unusable": "", "numa_node": numa, **more}
        for index, (uuid, numa, more) in enumerate(
            [
                ("GPU-a", 1, {**a100, **linked}),
                ("GPU-b", None, {**a100, **linked}),
                ("GPU-c", None, {"model": "Tesla-T4-rev-2", "memory": 16276, **alone}),
                ("GPU-d", None, {"model": "NVIDIA-RTX-A6000", "memory": 49140, **alone}),
            ]
        )
    ]


@pytest.mark.parametrize(
    ("links", "islands"),
    [
        pytest.param("", ["", "", "", ""], id="no links"),
        pytest.param(DIRECT, ["nvlink-0", "nvlink-0", "", ""], id="one pair"),
        pytest.param(
            "".join(f"link {card} 00000000:0{switch}:00.0\n" for card in range(4) for switch in (5, 6)),
            ["nvlink-0"] * 4,
            id="all through two switches",
        ),
        pytest.param(
            "link 0 00000000:05:00.0\nlink 2 00000000:05:00.0\nlink 1 00000000:06:00.0\nlink 3 00000000:06:00.0\n",
            ["nvlink-0", "nvlink-1", "nvlink-0", "nvlink-1"],
            id="two islands, each through its own switch",
        ),
        pytest.param("link 0 00000000:05:00.0\n", ["", "", "", ""], id="a link that leads to no other card"),
    ],
)
def test_cards_that_reach_each_other_are_an_island(
    libraries: dict[str, Path], tmp_path: Path, links: str, islands: list[str]
) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + links) as see:
        assert [gpu["island"] for gpu in see.ask("look")["gpus"]] == islands


def test_an_old_driver_says_what_it_can(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["old"], tmp_path, FOUR + DIRECT) as see:
        look = see.ask("look")

    assert [(gpu["uuid"], gpu["memory"], gpu["island"]) for gpu in look["gpus"]] == [
        ("GPU-a", 81920, ""),
        ("GPU-b", 81920, ""),
        ("GPU-c", 16276, ""),
        ("GPU-d", 49140, ""),
    ]
    assert look["trouble"] == ""


def test_a_card_with_a_critical_error_is_unusable_until_it_was_quiet_for_a_while(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    with eyes(libraries["new"], tmp_path, FOUR) as see:
        assert see.unusable() == [""] * 4
        see.machine(FOUR + "xid 0 13\nxid 2 48\n")  # the first is a program's own fault
        assert see.ask("wait") == "changed"
        assert see.unusable() == ["", "", "XID 48", ""]

        see.ask("advance 299")
        assert see.unusable() == ["", "", "XID 48", ""]
        see.ask("advance 2")
        assert see.unusable() == [""] * 4


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        pytest.param("remap 1\n", "memory rows are to be remapped: reset the card", id="a card that needs a reset"),
        pytest.param("mig 1\n", "it is cut into MIG slices, which Carrel does not manage", id="a card that is sliced"),
    ],
)
def test_a_card_that_nobody_can_have_is_unusable_until_it_is_mended(
    libraries: dict[str, Path], tmp_path: Path, fact: str, why: str
) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + fact) as see:
        assert see.unusable() == ["", why, "", ""]
        see.machine(FOUR)
        assert see.unusable() == [""] * 4


def test_a_card_that_fell_off_the_bus_is_still_known_by_its_name(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR) as see:
        see.ask("look")
        see.machine(FOUR + "lost 3\n")
        gpu = see.ask("look")["gpus"][3]
        assert (gpu["uuid"], gpu["unusable"]) == ("GPU-d", "it does not answer: GPU is lost")
        see.machine(FOUR)
        assert see.unusable() == [""] * 4


def test_no_card_is_told_of_twice_when_cards_were_renumbered_and_one_is_lost(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    first, second, *others = FOUR.splitlines(keepends=True)
    with eyes(libraries["new"], tmp_path, FOUR) as see:
        see.ask("look")
        see.machine("".join((second, first, *others)) + "lost 0\n")
        look = see.ask("look")
    assert [(gpu["uuid"], gpu["index"]) for gpu in look["gpus"]] == [("GPU-a", 1), ("GPU-c", 2), ("GPU-d", 3)]
    assert look["trouble"] == "card 0: GPU is lost"


def test_a_card_that_keeps_its_processes_secret_is_as_good_as_any(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "secret 0\n") as see:
        assert see.unusable() == [""] * 4


def test_a_card_that_was_lost_from_the_beginning_is_told_of(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "lost 3\n") as see:
        look = see.ask("look")
        assert [gpu["uuid"] for gpu in look["gpus"]] == ["GPU-a", "GPU-b", "GPU-c"]
        assert look["trouble"] == "card 3: GPU is lost"


@pytest.mark.parametrize(
    ("library", "words"),
    [
        pytest.param("none", "NVML Shared Library Not Found", id="no library"),
        pytest.param("new", "Driver Not Loaded", id="a library and no driver"),
    ],
)
def test_without_a_driver_there_are_no_cards_and_the_reason_is_told(
    libraries: dict[str, Path], tmp_path: Path, library: str, words: str
) -> None:
    with eyes(libraries[library], tmp_path, FOUR + "driver gone\n") as see:
        look = see.ask("look")
    assert look["gpus"] == []
    assert look["trouble"].startswith(f"no NVIDIA driver answers ({words})")


def test_a_driver_that_comes_and_goes_is_noticed(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "driver gone\n") as see:
        for text, cards in ((FOUR, 4), (FOUR + "driver gone\n", 0), (FOUR, 4)):
            see.machine(text)
            assert len(see.ask("look")["gpus"]) == cards
