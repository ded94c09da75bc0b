"""The command as a process: it loads manifests, prints how to reach it, and stops on a signal."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

LIMIT_S = 300.0
MANIFEST = """
apiVersion: v1
kind: Namespace
metadata: {name: lab}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: train, namespace: lab, uid: old, resourceVersion: "7"}
  spec: {containers: [{name: main, image: busybox}]}
  status: {phase: Running}
"""


@asynccontextmanager
async def a_server(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kubernetes_in_memory", "--port", "0", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_what_was_loaded_and_stops_although_watches_are_open(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "lab.yaml").write_text(MANIFEST)
    config = tmp_path / "kubeconfig"
    async with a_server("--load", str(tmp_path / "lab.yaml"), "--kubeconfig", str(config)) as process:
        assert process.stdout is not None
        greeting = [(await process.stdout.readline()).decode() for _ in range(3)]
        assert "2 objects loaded." in greeting[1]
        assert f"kubectl --kubeconfig {config} get pods -A -w" in greeting[2]
        url = yaml.safe_load(config.read_text())["clusters"][0]["cluster"]["server"]
        assert url in greeting[0]
        async with aiohttp.ClientSession(url) as http:
            async with http.get("/api/v1/namespaces/lab/pods/train") as answer:
                assert (await answer.json())["status"]["phase"] == "Running"
            watch = await http.get("/api/v1/pods", params={"watch": "1"})
            process.send_signal(number)
            await watch.content.read()
        assert await process.wait() == 0


async def test_all_manifests_that_cannot_be_loaded_are_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("kind: Desk\napiVersion: v1\n---\n" + MANIFEST.replace("main,", "Main,"))
    arguments = ("--load", str(tmp_path / "bad.yaml"), "--load", str(tmp_path / "none.yaml"))
    async with a_server(*arguments) as process:
        _, errors = await process.communicate()
    told = errors.decode()
    assert process.returncode == 1
    assert "bad.yaml, document 1: v1 has no 'Desk' here, only ConfigMap, " in told
    assert 'bad.yaml, document 3, item 1: Pod "train" is invalid: spec.containers[0].name' in told
    assert "none.yaml: No such file or directory" in told


async def test_a_port_that_is_in_use_is_reported(tmp_path: Path) -> None:
    async with a_server() as process:
        assert process.stdout is not None
        port = (await process.stdout.readline()).decode().split(":")[2].split(",")[0]
        async with a_server("--port", port) as second:
            _, errors = await second.communicate()
        assert second.returncode == 1
        assert f"cannot serve on port {port}" in errors.decode()
