"""The agent as a process: probes, signals, and bad options."""

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import NotFound
from kubernetes_in_memory.http_server import serve
from tests.kit.agent import TWO_GPUS, write_gpus
from tests.kit.carrel_command import carrel
from tests.kit.configuration import config_file, configure
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.kubelet import a_kubelet
from tests.kit.lab import Lab, a_lab

CARREL = (sys.executable, "-m", "carrel", "agent")
BY_PLUGIN = "memory: {resource: plugin}"


@contextlib.asynccontextmanager
async def process(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process, and where it listens."""
    started = await asyncio.create_subprocess_exec(*CARREL, *options, stderr=asyncio.subprocess.PIPE)
    assert started.stderr is not None
    told = ""
    try:
        while not (found := re.search(r"listening url=(\S+)", told)):
            line = (await started.stderr.readline()).decode()
            assert line, told
            told += line
        yield started, found[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.communicate()


async def test_it_answers_probes_and_ends_on_sigterm() -> None:
    async with a_lab([], in_real_time=True) as lab, serve(lab.api) as server, a_kubelet() as kubelet:
        where = ["--kubelet-folder", str(kubelet.root)]
        gpus = ["--simulate", "2xTesla-V100:16276"]
        options = ["--server", server.url, "--node-name", "n1", "--port", "0", *gpus, *where]
        await configure(lab.client, BY_PLUGIN)
        async with process(*options) as (agent, url), aiohttp.ClientSession() as session:
            async with asyncio.timeout(LIMIT_S):
                while (await session.get(f"{url}/readyz")).status != 200:  # noqa: ASYNC110 # it can only be polled
                    await asyncio.sleep(0.05)
            metrics = await (await session.get(f"{url}/metrics")).text()
            assert 'carrel_node_gpus{usable="true"} 2.0' in metrics
            assert 'carrel_node_plugin_registered{resource="aliyun.com/gpu-mem"} 1.0' in metrics
            assert 'carrel_node_memory_resource{way="plugin"} 1.0' in metrics
            assert 'carrel_node_memory_resource{way="node"} 0.0' in metrics
            assert (await lab.client.get(GPU_NODE_STATUSES, "n1"))["status"]["total"] == 2

            agent.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(agent.wait(), LIMIT_S) == 0
        assert not list(kubelet.folder.glob("carrel-*.sock"))


async def test_a_second_agent_waits_until_the_first_ends() -> None:
    async with a_lab([], in_real_time=True) as lab, serve(lab.api) as server, a_kubelet() as kubelet:
        write_gpus(kubelet.folder / "gpus.yaml", TWO_GPUS)
        where = ["--kubelet-folder", str(kubelet.root)]
        gpus = ["--simulate", str(kubelet.folder / "gpus.yaml")]
        options = ["--server", server.url, "--node-name", "n1", "--port", "0", *gpus, *where]
        await configure(lab.client, BY_PLUGIN)
        async with process(*options) as (first, _):
            await eventually(lambda: len(kubelet.registered) == 2)
            async with process(*options) as (second, _):
                assert second.stderr is not None
                assert b"another agent serves this node" in await second.stderr.readline()
                assert len(kubelet.registered) == 2

                first.kill()
                await eventually(lambda: len(kubelet.registered) == 4)


async def test_a_missing_folder_is_reported_and_waited_for(tmp_path: Path) -> None:
    async with a_kubelet() as kubelet:
        folder = kubelet.folder / "not-yet"
        folder.write_text("a file")
        write_gpus(kubelet.folder / "gpus.yaml", TWO_GPUS)
        gpus = ["--simulate", str(kubelet.folder / "gpus.yaml")]
        options = ["--server", "http://127.0.0.1:1", "--node-name", "n1", "--port", "0", *gpus]
        options += ["--config", config_file(tmp_path)]
        async with process(*options, "--kubelet-folder", str(folder)) as (agent, _):
            assert agent.stderr is not None
            assert b"waiting: [Errno 20] Not a directory" in await agent.stderr.readline()
            agent.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(agent.wait(), LIMIT_S) == 0


async def test_without_a_driver_it_says_so_and_reports_no_gpus(tmp_path: Path) -> None:
    """A file that is not a library comes before whatever this machine may have."""
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    async with a_lab([], in_real_time=True) as lab, serve(lab.api) as server, a_kubelet() as kubelet:
        where = ["--kubelet-folder", str(kubelet.root)]
        options = ["--server", server.url, "--node-name", "n1", "--port", "0", *where]
        agent = await asyncio.create_subprocess_exec(
            *CARREL, *options, env={"LD_LIBRARY_PATH": str(tmp_path)}, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                while "message" not in (status := await _status(lab)):  # noqa: ASYNC110 # it can only be polled
                    await asyncio.sleep(0.05)
        finally:
            agent.terminate()
            _, told = await agent.communicate()

    assert status["total"] == 0
    assert status["message"].startswith("no NVIDIA driver answers (NVML Shared Library Not Found)")
    assert "trouble about=gpus: no NVIDIA driver answers" in told.decode()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param([], "The agent does not know the name of its node", id="no node"),
        pytest.param(["--node-name", "n1", "--simulate", "{bad}"], "line 2 ($.gpus[0].memoryMiB)", id="a bad file"),
        pytest.param(["--node-name", "n1", "--simulate", "{none}"], "No such file", id="no file"),
        pytest.param(
            ["--node-name", "n1", "--server", "http://127.0.0.1:9", "--config", "{bad}"],
            "gpus is no field",
            id="no field",
        ),
    ],
)
async def test_bad_options_end_it_with_the_reason(tmp_path: Path, options: list[str], words: str) -> None:
    bad = tmp_path / "gpus.yaml"
    bad.write_text("gpus:\n  - {model: T4, memoryMiB: lots}\n")
    given = [option.format(bad=bad, none=tmp_path / "none.yaml") for option in options]

    refused = await carrel("agent", *given)

    assert refused.code == 2
    assert words in refused.err


async def _status(lab: Lab) -> dict[str, Any]:
    try:
        found: dict[str, Any] = (await lab.client.get(GPU_NODE_STATUSES, "n1")).get("status", {})
    except NotFound:
        return {}
    return found
