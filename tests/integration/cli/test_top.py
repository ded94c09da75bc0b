"""`carrel top` on the embedded API: once, and live on a terminal."""

import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import pytest

from carrel.ledger.gpu_usage import GpuSample
from carrel.ledger.gpus import MiB
from kubernetes_in_memory.http_server import serve
from tests.kit.carrel_command import carrel, carrel_process
from tests.kit.eventually import eventually
from tests.kit.gpu_use import BUSY, QUIET, ReportingAgent, holds_since
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.terminal import on_terminal

ADA = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}
BOB = {**ADA, "carrel.dev/user": "bob@lab.example"}
WHOLE = {"nvidia.com/gpu": "1"}
HOUR = timedelta(hours=1)


@asynccontextmanager
async def a_used_lab() -> AsyncIterator[Lab]:
    """ada works on GPU 0 of n1, bob is idle on GPU 1; two people share the GPU of n2."""
    async with a_lab([a_node("n1", gpus=3), a_node("n2", gpus=1)], in_real_time=True) as lab:
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("works", limits=WHOLE, annotations=ADA), "n1")
            await replica.bind(await lab.pod("idles", limits=WHOLE, annotations=BOB), "n1")
            for name, notes in (("half", ADA), ("other", BOB)):
                await replica.bind(await lab.pod(name, limits={"aliyun.com/gpu-mem": "8000"}, annotations=notes), "n2")
        for name in ("works", "idles", "half", "other"):
            await holds_since(lab, name, lab.clock.now - 2 * HOUR)
        await ReportingAgent(lab, "n1", 3).reports_of_today(gpu_0=BUSY, gpu_1=QUIET)
        await ReportingAgent(lab, "n2", 1).reports_of_today(gpu_0=BUSY)
        yield lab


async def test_without_a_terminal_it_prints_a_table_and_ends() -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        said = await carrel("top", "--server", served.url)
        process = await carrel_process("top", "--once", "--server", served.url)

    assert (said.code, said.err) == (0, "")
    assert process == said
    first, *table = said.out.splitlines()
    assert first == "4 GPUs of 2 nodes: 3 held (0 booked), 2 active, 1 idle; 1 free"
    rows = [re.split(r" {2,}", line) for line in table]
    assert rows[0] == ["NODE", "GPU", "MODEL", "UTIL", "USED", "HELD", "POWER", "TEMP", "POD", "PERSON", "TIER", "IDLE"]
    name, whole = "RTX-A6000", ["16G"]
    assert rows[1] == ["n1", "0", name, "90%", "8.8G", *whole, "280W", "70C", "lab/works", ADA[USER], TIER, "no"]
    assert rows[2][:-1] == ["n1", "1", name, "0%", "8.8G", *whole, "55W", "40C", "lab/idles", BOB[USER], TIER]
    assert re.fullmatch(r"\d\d:\d\d|\d+ \w{3}", rows[2][-1])
    assert rows[3] == ["n1", "2", name, "0%", "0.0G", "–", "25W", "–", "free", "–", "–", "–"]
    assert [row[-4:] for row in rows[4:]] == [["lab/half", ADA[USER], TIER, "?"], ["lab/other", BOB[USER], TIER, "?"]]


USER, TIER = "carrel.dev/user", "opportunistic"


async def test_for_programs_a_gpu_has_what_it_measures_and_its_pods_have_what_is_theirs() -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        gpus = json.loads((await carrel("top", "-o", "json", "--server", served.url)).out)

    assert [(gpu["node"], gpu["gpu"], gpu["activity"]) for gpu in gpus] == [
        *[("n1", 0, "active"), ("n1", 1, "idle"), ("n1", 2, None), ("n2", 0, "active")]
    ]
    assert {key: gpus[0][key] for key in list(gpus[0])[6:10]} == {
        "utilisation_percent": 90,
        "used_mib": 9000,
        "power_watts": 280,
        "temperature_celsius": 70,
    }
    assert [(pod["pod"], pod["mib"], pod["activity"]) for pod in gpus[3]["pods"]] == [
        ("lab/half", 8000, "unknown"),
        ("lab/other", 8000, "unknown"),
    ]
    assert gpus[1]["idle_since"] == gpus[1]["pods"][0]["idle_since"] is not None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--node", "n2"), [("n2", 0)]),
        (("--user", "BOB"), [("n1", 1), ("n2", 0)]),
        (("--model", "a6000", "--node", "n1"), [("n1", 0), ("n1", 1), ("n1", 2)]),
        (("--model", "h100"), []),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
async def test_only_what_is_asked_for_is_shown(words: tuple[str, ...], expected: list[tuple[str, int]]) -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        gpus = json.loads((await carrel("top", *words, "-o", "json", "--server", served.url)).out)

    assert [(gpu["node"], gpu["gpu"]) for gpu in gpus] == expected


async def test_a_node_that_is_not_there_is_an_error_also_on_a_terminal() -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        said = await carrel("top", "--node", "n9", "--server", served.url)
        with on_terminal("top", "--node", "n9", "--server", served.url) as terminal:
            await eventually(lambda: terminal.process.poll() is not None)
            await eventually(lambda: "✗ No GPUs on n9" in terminal.output)

    assert (said.code, said.err.splitlines()[0]) == (4, "✗ No GPUs on n9")
    assert terminal.process.returncode == 4


async def test_on_a_terminal_it_follows_the_cluster_and_obeys_keys() -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        with on_terminal("top", "--server", served.url) as terminal:
            picture = await terminal.shows("lab/works")
            assert [line.split()[:2] for line in picture[3:8]] == [
                *[["n1", "0"], ["n1", "1"], ["n1", "2"], ["n2", "0"], ["n2", "0"]]
            ]
            assert picture[1] == "4 GPUs of 2 nodes: 3 held (0 booked), 2 active, 1 idle; 1 free"

            await ReportingAgent(lab, "n1", 3).reports_of_today(gpu_0=QUIET, gpu_1=GpuSample(0.77, MiB(9), 99.0, 55))
            await terminal.shows("77%")
            terminal.types("u")
            picture = await terminal.shows("sorted by utilisation")
            assert [line.split()[:3] for line in picture[3:6]] == [
                ["n2", "0", "90%"],
                ["n2", "0", "7.8G"],
                ["n1", "1", "77%"],
            ]
            terminal.types("/idles\r")
            picture = await terminal.shows("filter: idles  (esc: clear)")
            assert [line.split()[:2] for line in picture[3:5]] == [["n1", "1"], []]
            terminal.types("\x1b")
            await terminal.shows("lines 1 to 5 of 5")

            terminal.resize(60, 8)
            os.kill(terminal.process.pid, signal.SIGWINCH)
            picture = await terminal.shows("lines 1 to 3 of 5")
            assert max(map(len, picture)) <= 60
            terminal.types("\x1b[F")
            await terminal.shows("lines 3 to 5 of 5")
            terminal.types("q")
            assert await terminal.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
async def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(number: signal.Signals) -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        with on_terminal("top", "--server", served.url) as terminal:
            await terminal.shows("lab/works")
            os.kill(terminal.process.pid, number)
            assert await terminal.ended() == 0


async def test_ctrl_c_ends_it_also_while_a_filter_is_typed() -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        with on_terminal("top", "--server", served.url) as terminal:
            await terminal.shows("lab/works")
            terminal.types("/lab")
            await terminal.shows("filter: lab_")
            terminal.types("\x03")
            assert await terminal.ended() == 0


async def test_while_the_cluster_does_not_answer_it_says_so_and_then_goes_on() -> None:
    async with a_used_lab() as lab, AsyncExitStack() as stack:
        async with serve(lab.api) as served:
            terminal = stack.enter_context(on_terminal("top", "--server", served.url))
            await terminal.shows("lab/works")
        picture = await terminal.shows("No answer from the cluster since")
        assert any("lab/works" in line for line in picture), "what was known is still there"

        async with serve(lab.api, port=int(served.url.rpartition(":")[2])):
            await terminal.shows("carrel top")
            await ReportingAgent(lab, "n1", 3).reports_of_today(gpu_0=GpuSample(0.77, MiB(9), 99.0, 55))
            await terminal.shows("77%")
            terminal.types("q")
            assert await terminal.ended() == 0


@pytest.mark.parametrize(
    ("environment", "has_colour", "bar"),
    [({}, True, "▁"), ({"NO_COLOR": "1"}, False, "▁"), ({"PYTHONIOENCODING": "latin-1"}, True, "_")],
    ids=["as usual", "no colours", "no UTF-8"],
)
async def test_a_terminal_with_less_shows_the_same_in_other_characters(
    environment: dict[str, str], has_colour: bool, bar: str
) -> None:
    async with a_used_lab() as lab, serve(lab.api) as served:
        with on_terminal("top", "--server", served.url, environment=environment) as terminal:
            picture = await terminal.shows("lab/idles")
            assert bar * 9 in picture[4], "it has been idle for ten minutes"
            assert ("\x1b[33m" in terminal.output) is has_colour
            terminal.types("q")
            assert await terminal.ended() == 0


async def test_a_cluster_that_cannot_be_read_is_reported_before_the_terminal_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with on_terminal("top", "--server", url) as terminal:
        await eventually(lambda: terminal.process.poll() is not None)
        await eventually(lambda: f"✗ No answer from {url}" in terminal.output)
    assert terminal.process.returncode == 6
    assert "\x1b[?1049h" not in terminal.output
