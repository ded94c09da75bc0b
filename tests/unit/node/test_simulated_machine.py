"""The GPUs of one machine from a file, which may be edited while an agent runs."""

import asyncio
from pathlib import Path

import pytest

from carrel.node.simulated_machine import SimulatedMachine
from carrel.parsing import Malformed
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import N1, N2

GOOD = """\
gpus:
  - {model: NVIDIA-RTX-A6000, memoryMiB: 49140}
  - {model: NVIDIA-RTX-A6000, memoryMiB: 49140}
"""
FAILED = GOOD.replace("49140}\n  -", '49140, unusable: "XID 79"}\n  -')
BAD = GOOD.replace("memoryMiB: 49140}\n  -", "memoryMiB: lots}\n  -")


def edit(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gpus.yaml"
    path.write_text(GOOD)
    return path


async def test_an_edited_file_changes_the_gpus_and_keeps_their_uuids(file: Path) -> None:
    machine = SimulatedMachine(file, N1)
    before = await machine.read_state()
    changed = asyncio.ensure_future(machine.wait_changed())
    edit(file, FAILED)
    await asyncio.wait_for(changed, LIMIT_S)
    after = await machine.read_state()

    assert [gpu.unusable for gpu in before.gpus] == ["", ""]
    assert [gpu.unusable for gpu in after.gpus] == ["XID 79", ""]
    assert [gpu.uuid for gpu in before.gpus] == [gpu.uuid for gpu in after.gpus]
    assert SimulatedMachine(file, N2)._gpus[0].uuid != after.gpus[0].uuid


async def test_a_file_may_say_what_the_driver_of_a_gpu_keeps(file: Path) -> None:
    edit(file, GOOD.replace("49140}", "49140, keptMiB: 450}", 1))
    state = await SimulatedMachine(file, N1).read_state()

    assert [gpu.memory for gpu in state.gpus] == [49140, 49140]
    assert [state.details[gpu.uuid].kept for gpu in state.gpus] == [450, 0]


async def test_a_malformed_file_is_reported_with_its_line_and_the_gpus_stay_as_they_were(file: Path) -> None:
    machine = SimulatedMachine(file, N1)
    good = (await machine.read_state()).gpus

    for text, words in (
        (BAD, "gpus.yaml: line 2 ($.gpus[0].memoryMiB) is 'lots'; expected a whole number"),
        ("gpus: [", "line 1"),
        ("gpus:\n  - {model: x, memoryMiB: 2026-13-45}", "line 2 is 'month must be in 1..12"),
        ("gpus: " + "[" * 5000, "expected YAML that is nested less deeply"),
        ("nodes: []", "unknown field `nodes`"),
        ("gpus: [] # \x00", r"line 1 is '\x00'; expected YAML"),
    ):
        edit(file, text)
        state = await machine.read_state()
        assert state.gpus == good
        assert words in state.trouble
    file.write_bytes(b"gpus:\n  - \xff")  # noqa: ASYNC240 # a moment
    assert (await machine.read_state()).trouble == r"gpus.yaml: line 2 is b'\xff'; expected text in UTF-8"
    file.rename(file.with_suffix(".moved"))  # noqa: ASYNC240 # a moment
    assert (await machine.read_state()).gpus == good
    edit(file, FAILED)
    state = await machine.read_state()
    assert (state.trouble, [gpu.unusable for gpu in state.gpus]) == ("", ["XID 79", ""])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(BAD, id="a text instead of a number"),
        pytest.param("", id="an empty file"),
        pytest.param("gpus: 3", id="no list"),
        pytest.param("gpus:\n  - {model: x, memoryMiB: 0}", id="a GPU without memory"),
        pytest.param("gpus:\n  - {model: x, memoryMiB: 99999999999999999999}", id="a GPU that is too large"),
        pytest.param('gpus:\n  - {model: "", memoryMiB: 1}', id="a GPU without a name"),
        pytest.param("gpus:\n  - {model: x}", id="a missing field"),
        pytest.param("gpus:\n  - {model: x, memoryMiB: 1, colour: red}", id="an unknown field"),
        pytest.param("\tgpus: []", id="not YAML"),
        pytest.param("gpus: [] # \x00", id="a control character"),
    ],
)
def test_the_agent_does_not_start_with_a_file_that_cannot_be_read(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(Malformed, match=r"line [12]"):
        SimulatedMachine(file, N1)


async def test_gpus_may_be_given_in_short() -> None:
    machine = SimulatedMachine("2xTesla-T4:15360+1xNVIDIA-A100-SXM4-80GB:81920", N1)
    gpus = (await machine.read_state()).gpus
    assert [(gpu.index, gpu.model, gpu.memory) for gpu in gpus] == [
        (0, "Tesla-T4", 15360),
        (1, "Tesla-T4", 15360),
        (2, "NVIDIA-A100-SXM4-80GB", 81920),
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param("99xTesla-T4:15360", "99; expected", id="more GPUs than a node has"),
        pytest.param("2xTesla-T4:0", "0; expected", id="no memory"),
    ],
)
def test_a_wrong_number_in_short_is_named(given: str, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        SimulatedMachine(given, N1)


def test_gpus_that_are_neither_in_short_nor_a_file_are_not_found() -> None:
    with pytest.raises(FileNotFoundError):
        SimulatedMachine("2xTesla-T4", N1)


async def test_a_gpu_does_what_the_file_says(file: Path) -> None:
    edit(file, GOOD.replace("49140}\n", "49140, activity: training}\n", 1))
    machine = SimulatedMachine(file, N1)
    training, unused = (await machine.sample()).values()
    assert (training.utilisation or 0) > 0
    assert (unused.utilisation, unused.used) == (0.0, 0)


def test_an_unknown_activity_is_refused_with_the_known_ones(file: Path) -> None:
    edit(file, GOOD.replace("49140}\n", "49140, activity: mining}\n", 1))
    with pytest.raises(Malformed, match="activity is 'mining'; expected training, notebook"):
        SimulatedMachine(file, N1)
