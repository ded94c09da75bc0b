"""The real binding of NVIDIA's library, with a fake library."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.eventually import LIMIT_S
from tests.kit.programs import c_compiler

HERE = Path(__file__).parent
ROOT = HERE.parents[3]

FOUR = """\
gpu GPU-a 00000000:3B:00.0 81920 2 NVIDIA A100-SXM4-80GB
gpu GPU-b 00000000:3C:00.0 81920 0 NVIDIA A100-SXM4-80GB
gpu GPU-c 00000000:AF:00.0 16276 0 Tesla T4 (rev 2)
gpu GPU-d 00010000:01:00.0 49140 0 NVIDIA RTX A6000
"""
DIRECT = "link 0 00000000:3C:00.0\nlink 1 00000000:3B:00.0\n" * 6


@dataclass
class Eyes:
    """The process that reads the GPUs, and the file that its library reads."""

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
    """Folders with a library each: a current one, one of an old driver, and a file that is not a library."""
    folder = tmp_path_factory.mktemp("nvml")
    for name, options in (("new", []), ("old", ["-DOLD_DRIVER"])):
        (folder / name).mkdir()
        library = folder / name / "libnvidia-ml.so.1"
        subprocess.run([*c_compiler(), "-shared", "-fPIC", *options, "-o", library, HERE / "nvml_stub.c"], check=True)
    (folder / "none").mkdir()
    (folder / "none" / "libnvidia-ml.so.1").write_text("not a library")
    return {path.name: path for path in folder.iterdir()}


@contextmanager
def eyes(library: Path, tmp_path: Path, machine: str, answer_s: float = LIMIT_S) -> Iterator[Eyes]:
    """`answer_s`: how long a GPU may take to answer."""
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0").mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0/numa_node").write_text("1\n")
    file = tmp_path / "machine"
    file.write_text(machine)
    source = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_STUB": str(file), "PYTHONPATH": source}
    command = [sys.executable, "-m", "tests.integration.node.nvidia.print_gpus", str(tmp_path / "sys"), str(answer_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT) as process:
        try:
            yield Eyes(process, file)
        finally:
            process.kill()


def until(is_so: Callable[[], bool]) -> None:
    """On a slow machine a GPU that does not hang may take longer than the test allows."""
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, "it never was so"


def test_gpus_links_and_numa_nodes_are_read(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + DIRECT) as update:
        look = update.ask("look")

    assert look["trouble"] == ""
    assert look["processes"] == {"GPU-a": 2, "GPU-b": 0, "GPU-c": 0, "GPU-d": 0}
    assert look["details"]["GPU-a"] == {
        "product_name": "NVIDIA A100-SXM4-80GB",
        "compute_capability": [8, 0],
        "address": "0000:3b:00.0",
        "driver_version": "550.54.15",
        "cuda_version": "12.4",
        "kept": 0,
    }
    linked = {"island": "nvlink-0", "bandwidth_gbps": 300}
    unlinked = {"island": "", "bandwidth_gbps": 0}
    a100 = {"model": "NVIDIA-A100-SXM4-80GB", "memory": 81920}
    assert look["gpus"] == [
        {
            "uuid": uuid,
            "node": "n1",
            "index": index,
            "unusable": "",
            "numa_node": numa,
            "number": None,
            "slice": None,
            **more,
        }
        for index, (uuid, numa, more) in enumerate(
            [
                ("GPU-a", 1, {**a100, **linked}),
                ("GPU-b", None, {**a100, **linked}),
                ("GPU-c", None, {"model": "Tesla-T4-rev-2", "memory": 16276, **unlinked}),
                ("GPU-d", None, {"model": "NVIDIA-RTX-A6000", "memory": 49140, **unlinked}),
            ]
        )
    ]


def test_what_the_driver_keeps_is_read_and_an_old_one_does_not_say_it(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    for name, kept in (("new", {"GPU-a": 0, "GPU-b": 0, "GPU-c": 450, "GPU-d": 0}), ("old", {})):
        (tmp_path / name).mkdir()
        with eyes(libraries[name], tmp_path / name, FOUR + "keeps 2 450\n") as update:
            look = update.ask("look")
        assert [gpu["memory"] for gpu in look["gpus"]] == [81920, 81920, 16276, 49140]
        found = {uuid: details["kept"] for uuid, details in look["details"].items()}
        assert found == (kept or dict.fromkeys(found, 0))


def test_limits_of_control_groups_are_read(libraries: dict[str, Path], tmp_path: Path) -> None:
    said = FOUR + "limit 0 8138 /sys/fs/cgroup/a\nlimit 0 0 /sys/fs/cgroup/b\n"
    with eyes(libraries["new"], tmp_path, said) as update:
        update.ask("look")
        found = {path: update.ask(f"limits GPU-a /sys/fs/cgroup/{path}") for path in ("a", "b", "other", "gone")}
        of_another = update.ask("limits GPU-b /sys/fs/cgroup/a")

    assert found == {"a": [8138], "b": [None], "other": [None], "gone": []}, "of what has gone nothing is known"
    assert of_another == [None]


def test_a_driver_without_limits_says_nothing_about_them(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["old"], tmp_path, FOUR) as update:
        update.ask("look")
        assert update.ask("limits GPU-a /sys/fs/cgroup/a") == []


@pytest.mark.parametrize(
    ("links", "islands"),
    [
        pytest.param("", ["", "", "", ""], id="no links"),
        pytest.param(DIRECT, ["nvlink-0", "nvlink-0", "", ""], id="one pair"),
        pytest.param(
            "".join(f"link {gpu} 00000000:0{switch}:00.0\n" for gpu in range(4) for switch in (5, 6)),
            ["nvlink-0"] * 4,
            id="all through two switches",
        ),
        pytest.param(
            "link 0 00000000:05:00.0\nlink 2 00000000:05:00.0\nlink 1 00000000:06:00.0\nlink 3 00000000:06:00.0\n",
            ["nvlink-0", "nvlink-1", "nvlink-0", "nvlink-1"],
            id="two islands, each through its own switch",
        ),
        pytest.param("link 0 00000000:05:00.0\n", ["", "", "", ""], id="a link that leads to no other GPU"),
    ],
)
def test_linked_gpus_are_an_island(libraries: dict[str, Path], tmp_path: Path, links: str, islands: list[str]) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + links) as update:
        assert [gpu["island"] for gpu in update.ask("look")["gpus"]] == islands


def test_what_an_old_driver_does_not_support_is_left_out(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["old"], tmp_path, FOUR + DIRECT) as update:
        look = update.ask("look")

    assert [(gpu["uuid"], gpu["memory"], gpu["island"]) for gpu in look["gpus"]] == [
        ("GPU-a", 81920, ""),
        ("GPU-b", 81920, ""),
        ("GPU-c", 16276, ""),
        ("GPU-d", 49140, ""),
    ]
    assert look["trouble"] == ""


def test_a_gpu_with_a_critical_error_is_unusable_until_it_had_none_for_a_while(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    with eyes(libraries["new"], tmp_path, FOUR) as update:
        assert update.unusable() == [""] * 4
        update.machine(FOUR + "xid 0 13\nxid 2 48\n")  # the first is a program's own fault
        assert update.ask("wait") == "changed"
        assert update.unusable() == ["", "", "XID 48", ""]

        update.ask("advance 299")
        assert update.unusable() == ["", "", "XID 48", ""]
        update.ask("advance 2")
        assert update.unusable() == [""] * 4


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        pytest.param("remap 1\n", "memory rows are to be remapped: reset the GPU", id="a GPU that needs a reset"),
        pytest.param("mig 1\n", "MIG is enabled on it, and it has no slices", id="a GPU without slices"),
    ],
)
def test_a_faulty_gpu_is_unusable_until_it_is_repaired(
    libraries: dict[str, Path], tmp_path: Path, fact: str, why: str
) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + fact) as update:
        assert update.unusable() == ["", why, "", ""]
        update.machine(FOUR)
        assert update.unusable() == [""] * 4


def test_a_lost_gpu_is_still_reported_with_its_uuid(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR) as update:
        update.ask("look")
        update.machine(FOUR + "lost 3\n")
        gpu = update.ask("look")["gpus"][3]
        assert (gpu["uuid"], gpu["unusable"]) == ("GPU-d", "it does not answer: GPU is lost")
        update.machine(FOUR)
        assert update.unusable() == [""] * 4


def test_no_gpu_is_reported_twice_when_gpus_were_renumbered_and_one_is_lost(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    first, second, *others = FOUR.splitlines(keepends=True)
    with eyes(libraries["new"], tmp_path, FOUR) as update:
        update.ask("look")
        update.machine("".join((second, first, *others)) + "lost 0\n")
        look = update.ask("look")
    assert [(gpu["uuid"], gpu["index"]) for gpu in look["gpus"]] == [("GPU-a", 1), ("GPU-c", 2), ("GPU-d", 3)]
    assert look["trouble"] == "GPU 0: GPU is lost"


def test_a_gpu_that_does_not_show_its_processes_is_usable(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "secret 0\n") as update:
        assert update.unusable() == [""] * 4


def test_a_gpu_that_never_answered_is_reported(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "lost 3\n") as update:
        look = update.ask("look")
        assert [gpu["uuid"] for gpu in look["gpus"]] == ["GPU-a", "GPU-b", "GPU-c"]
        assert look["trouble"] == "GPU 3: GPU is lost"


@pytest.mark.parametrize(
    ("library", "words"),
    [
        pytest.param("none", "NVML Shared Library Not Found", id="no library"),
        pytest.param("new", "Driver Not Loaded", id="a library and no driver"),
    ],
)
def test_without_a_driver_there_are_no_gpus_and_the_reason_is_reported(
    libraries: dict[str, Path], tmp_path: Path, library: str, words: str
) -> None:
    with eyes(libraries[library], tmp_path, FOUR + "driver gone\n") as update:
        look = update.ask("look")
    assert look["gpus"] == []
    assert look["trouble"].startswith(f"no NVIDIA driver answers ({words})")


def test_a_driver_that_is_loaded_or_unloaded_is_noticed(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "driver gone\n") as update:
        for text, gpus in ((FOUR, 4), (FOUR + "driver gone\n", 0), (FOUR, 4)):
            update.machine(text)
            assert len(update.ask("look")["gpus"]) == gpus


def test_what_gpus_do_is_read_and_what_one_does_not_say_is_unknown(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "use 0 37 1200 251000 64\n") as update:
        update.ask("look")
        samples = update.ask("sample")
    assert samples["GPU-a"] == {"utilisation": 0.37, "used": 1200, "power_watts": 251.0, "temperature_celsius": 64}
    assert samples["GPU-b"] == {"utilisation": None, "used": 0, "power_watts": None, "temperature_celsius": None}


CALLS = {"percent": "utilisation", "used": "used", "watts": "power_watts", "celsius": "temperature_celsius"}


@pytest.mark.parametrize("how", ["mute", "errs"])
@pytest.mark.parametrize("call", CALLS)
def test_each_thing_that_a_gpu_does_not_say_is_unknown_alone(
    libraries: dict[str, Path], tmp_path: Path, call: str, how: str
) -> None:
    said = {"utilisation": 0.37, "used": 1200, "power_watts": 251.0, "temperature_celsius": 64}
    using = "use 0 37 1200 251000 64\nuse 1 37 1200 251000 64\n"
    with eyes(libraries["new"], tmp_path, FOUR + using) as update:
        update.ask("look")
        update.machine(FOUR + using + f"{how} 0 {call}\n")
        samples = update.ask("sample")
    assert samples["GPU-a"] == {**said, CALLS[call]: None}
    assert samples["GPU-b"] == said


def test_a_gpu_that_says_nothing_has_no_sample_and_the_others_have(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "use 1 37 1200 251000 64\n") as update:
        update.ask("look")
        update.machine(FOUR + "use 1 37 1200 251000 64\nlost 0\n")
        assert sorted(update.ask("sample")) == ["GPU-b", "GPU-c", "GPU-d"]


def test_an_old_driver_says_what_it_can(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["old"], tmp_path, FOUR + "use 0 37 1200 251000 64\n") as update:
        update.ask("look")
        assert update.ask("sample")["GPU-a"]["used"] == 1200


def test_a_gpu_whose_call_hangs_holds_up_no_other(libraries: dict[str, Path], tmp_path: Path) -> None:
    using = "".join(f"use {gpu} 50 100 90000 40\n" for gpu in range(4))
    with eyes(libraries["new"], tmp_path, FOUR + using + "hangs 1\n", answer_s=1) as update:
        until(lambda: len(update.ask("look")["gpus"]) == 4 and len(update.ask("sample")) == 3)
        for _ in range(3):
            assert "GPU-b" not in update.ask("sample")
        assert [gpu["uuid"] for gpu in update.ask("look")["gpus"]] == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


def test_a_gpu_whose_driver_hangs_is_unusable_and_the_others_are_reported(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    with eyes(libraries["new"], tmp_path, FOUR, answer_s=1) as update:
        until(lambda: update.unusable() == [""] * 4)
        update.machine(FOUR + "stuck 2\n")
        until(lambda: update.unusable() == ["", "", "it does not answer: no answer in time", ""])
        assert [gpu["uuid"] for gpu in update.ask("look")["gpus"]] == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]


def test_a_driver_that_is_reloaded_is_sampled_again(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "use 0 37 1200 251000 64\n") as update:
        update.ask("look")
        update.machine(FOUR + "driver gone\n")
        update.ask("look")
        assert update.ask("sample") == {}
        update.machine(FOUR + "use 0 12 1200 251000 64\n")
        update.ask("look")
        assert update.ask("sample")["GPU-a"]["utilisation"] == 0.12


SEVEN = "mig 0\n" + "".join(f"slice 0 {number} MIG-a{number} 9728 {number % 2} 1g.10gb\n" for number in range(7))
TWO_KINDS = "mig 0\nslice 0 0 MIG-c 40192 0 3g.40gb\nslice 0 1 MIG-b 19968 1 2g.20gb\n"


def slices(look: Any) -> list[tuple[str, int, str, int]]:
    return [(gpu["uuid"], gpu["index"], gpu["model"], gpu["memory"]) for gpu in look["gpus"] if gpu["slice"]]


def test_a_divided_gpu_is_reported_as_its_slices(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + DIRECT + SEVEN) as update:
        look = update.ask("look")

    model = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert slices(look) == [(f"MIG-a{number}", 1000 + number, model, 9728) for number in range(7)]
    first = next(gpu for gpu in look["gpus"] if gpu["slice"])
    of = {"profile": "1g.10gb", "parent": "GPU-a", "parent_index": 0, "parent_memory": 81920, "is_gpu": False}
    assert (first["slice"], first["island"], first["numa_node"]) == (of, "", 1)
    assert [gpu["uuid"] for gpu in look["gpus"] if not gpu["slice"]] == ["GPU-b", "GPU-c", "GPU-d"]
    assert {uuid: look["processes"][uuid] for uuid in ("MIG-a0", "MIG-a1")} == {"MIG-a0": 0, "MIG-a1": 1}


@pytest.mark.parametrize(
    "more", [pytest.param("", id="by their names"), pytest.param("nameless\n", id="by their parts")]
)
def test_slices_of_a_gpu_may_differ(libraries: dict[str, Path], tmp_path: Path, more: str) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + TWO_KINDS + "slice 0 5 MIG-d 9728 0 1g.10gb+me\n" + more) as update:
        look = update.ask("look")

    a100, last = "NVIDIA-A100-SXM4-80GB-MIG-", "1g.10gb" if more else "1g.10gb.me"
    assert slices(look) == [
        ("MIG-c", 1000, f"{a100}3g.40gb", 40192),
        ("MIG-b", 1001, f"{a100}2g.20gb", 19968),
        ("MIG-d", 1005, f"{a100}{last}", 9728),
    ]


def test_a_part_of_a_slices_processors_is_named_as_such(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + "mig 0\nnameless\nslice 0 0 MIG-c 40192 0 1c.3g.40gb\n") as update:
        assert slices(update.ask("look"))[0][2] == "NVIDIA-A100-SXM4-80GB-MIG-1c.3g.40gb"


def test_a_gpu_that_hides_its_memory_counts_as_its_slices_together(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + SEVEN + "closed 0\n") as update:
        assert update.ask("look")["gpus"][-1]["slice"]["parent_memory"] == 7 * 9728


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        pytest.param("lost 0\n", "it does not answer: GPU is lost", id="does not answer"),
        pytest.param("remap 0\n", "memory rows are to be remapped: reset the GPU", id="must be reset"),
    ],
)
def test_a_gpu_that_falls_ill_makes_all_its_slices_ill(
    libraries: dict[str, Path], tmp_path: Path, fact: str, why: str
) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + SEVEN) as update:
        assert update.unusable() == [""] * 10
        update.machine(FOUR + SEVEN + fact)
        look = update.ask("look")

    assert [gpu["unusable"] for gpu in look["gpus"] if gpu["slice"]] == [why] * 7
    assert [gpu["unusable"] for gpu in look["gpus"] if not gpu["slice"]] == [""] * 3


def test_an_error_of_a_gpu_is_one_of_all_its_slices(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + SEVEN) as update:
        update.ask("look")
        update.machine(FOUR + SEVEN + "xid 0 48\n")
        assert update.ask("wait") == "changed"
        assert update.unusable() == [""] * 3 + ["XID 48"] * 7


def test_slices_come_and_go(libraries: dict[str, Path], tmp_path: Path) -> None:
    with eyes(libraries["new"], tmp_path, FOUR + SEVEN) as update:
        assert len(slices(update.ask("look"))) == 7
        update.machine(FOUR + TWO_KINDS)
        assert [uuid for uuid, *_ in slices(update.ask("look"))] == ["MIG-c", "MIG-b"]
        assert set(update.ask("sample")) == {"GPU-b", "GPU-c", "GPU-d", "MIG-b", "MIG-c"}
        update.machine(FOUR)
        assert [gpu["uuid"] for gpu in update.ask("look")["gpus"]] == ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
