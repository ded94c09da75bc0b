"""`carrel doctor` as a process: its exit codes, its output, and what it leaves behind when it is interrupted."""

import asyncio
import json
import signal
import sys

import pytest

from carrel.cli.checks.table import CHECKS
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import MergePatch, Selection
from carrel.kubernetes.objects.resources import PODS
from kubernetes_in_memory.http_server import serve
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

DOCTOR = (sys.executable, "-m", "carrel", "doctor")
PROBE = ("--probe", "--probe-namespace", "lab", "--probe-image", "carrel:test")


async def started(*options: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*DOCTOR, *options, stdout=pipe, stderr=pipe)


async def probes(lab: Lab) -> list[str]:
    selection = Selection("lab", labels="app.kubernetes.io/name=carrel-doctor")
    return [each.metadata.name for each in (await lab.client.list(PODS, selection)).items]


async def test_it_prints_json_and_ends_with_1_if_something_fails() -> None:
    async with a_lab([a_node("n1")], in_real_time=True) as lab, serve(lab.api) as server:
        process = await started("--server", server.url, "--output", "json")
        out, err = await process.communicate()
    found = json.loads(out)
    assert process.returncode == 1
    assert err == b""
    assert {"state", "hop", "text", "advice", "page"} == set(found[0])
    assert {each["page"] for each in found} == {each.page for each in CHECKS if each.name != "visible GPUs"}


async def test_what_others_wrote_cannot_rewrite_the_terminal() -> None:
    async with a_lab([a_node("n1")], in_real_time=True) as lab, serve(lab.api) as server:
        message = MergePatch({"status": {"message": "\x1b[2Jall is well\nOK    everything"}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", message, subresource="status")
        process = await started("--server", server.url)
        out, _ = await process.communicate()
    assert b"\x1b" not in out
    assert b"all is well" in out
    assert b"\nOK    everything" not in out
    assert b"carrel doctor --probe starts two short pods" in out


async def test_an_api_server_that_does_not_answer_ends_it_with_6() -> None:
    process = await started("--server", "http://127.0.0.1:1")
    _, err = await process.communicate()
    assert process.returncode == 6
    assert b"No answer from http://127.0.0.1:1\n" in err


@pytest.mark.parametrize("interruption", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "the pod is deleted"])
async def test_its_pods_are_removed_when_it_is_interrupted(interruption: signal.Signals) -> None:
    async with a_lab([a_node("n1")], in_real_time=True) as lab, serve(lab.api) as server:
        process = await started("--server", server.url, *PROBE)
        async with asyncio.timeout(LIMIT_S):
            while not await probes(lab):  # noqa: ASYNC110 # it can only be polled
                await asyncio.sleep(0.05)
        process.send_signal(interruption)
        _, err = await process.communicate()
        left = await probes(lab)
    assert left == []
    assert process.returncode == 130
    assert b"Traceback" not in err
