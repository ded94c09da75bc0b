"""`carrel extender` as a process, and callers that want to take it down: it goes on, and gives the memory back."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from carrel.scheduling.assembly import LARGEST_QUESTION
from tests.integration.scheduling.served_extender import ExtenderClient
from tests.integration.scheduling.test_process import Process, a_served_lab, carrel_process
from tests.kit.agent import becomes
from tests.kit.carrel_command import carrel
from tests.kit.eventually import eventually
from tests.kit.lab import Lab
from tests.kit.raw_http import raw_caller, raw_callers

MB = 1024 * 1024
SECRET = "0123456789abcdef0123456789abcdef"
FILTER = b"POST /carrel/filter HTTP/1.1\r\nhost: x\r\n"


def memory_mb(process: Process) -> int:
    """What the process has in memory now."""
    status = Path(f"/proc/{process.running.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024


@contextlib.asynccontextmanager
async def an_extender(*options: str, **environment: str) -> AsyncIterator[tuple[Lab, Process, str]]:
    async with (
        a_served_lab() as (lab, api),
        carrel_process("extender", "--server", api, "--port", "0", *options, environment=environment) as process,
    ):
        found = await process.wait_line(r"listening url=(\S+)")
        await process.wait_line("ready nodes=1")
        yield lab, process, found[1].replace("0.0.0.0", "127.0.0.1")


async def answers(url: str) -> bool:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as answer:
        return answer.status == 200


def whole_nodes(size: int) -> bytes:
    """As a scheduler without nodeCacheCapable sends it."""
    pod = {"metadata": {"name": "p", "namespace": "lab", "uid": "u"}, "spec": {"containers": [{"name": "main"}]}}
    images = [{"names": [f"images.lab/{each}@sha256:{each:064}"], "sizeBytes": each} for each in range(50)]
    node = json.dumps({"metadata": {"name": "n1"}, "status": {"images": images}}).encode()
    begin, end = b'{"Pod":' + json.dumps(pod).encode() + b',"NodeNames":null,"Nodes":{"items":[', b"]}}"
    count = (size - len(begin) - len(end)) // (len(node) + 16)
    named = (node.replace(b'"n1"', b'"n%010d"' % each) for each in range(count))
    return begin + b",".join(named) + end


async def test_slow_and_huge_callers_do_not_stop_it_and_leave_no_memory_behind() -> None:
    async with an_extender() as (lab, process, url), aiohttp.ClientSession() as session:
        caller = ExtenderClient(session, url)
        pod = await lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
        before = memory_mb(process)
        async with (
            raw_callers(url, 300, "127.0.0.3") as slow_headers,
            raw_callers(url, 100, "127.0.0.4") as slow_bodies,
            raw_callers(url, 20, "127.0.0.5") as floods,
        ):
            for each in slow_headers:
                await each.send(FILTER + b"x: " + b"y" * 60_000)
            for each in slow_bodies:
                await each.send(FILTER + b"content-length: %d\r\n\r\n" % LARGEST_QUESTION + b" " * MB)
            for each in floods:
                await each.send(FILTER + b"".join(b"x%d: y\r\n" % n for n in range(20_000)))
            huge = [asyncio.ensure_future(caller.post("/carrel/filter", b" " * (LARGEST_QUESTION + MB))) for _ in "123"]
            done = await asyncio.gather(*huge, return_exceptions=True)

            assert await answers(url)
            assert memory_mb(process) - before < 400, "100 bodies of 32 MiB were announced"
            assert all(isinstance(each, aiohttp.ClientError) or each.status in (413, 503) for each in done)  # type: ignore[union-attr]
            assert [await each.status() for each in floods] == [431] * 20
        await eventually(lambda: memory_mb(process) - before < 200, "the memory was given back")

        async def status() -> object:
            """As long as callers count that are gone, others are told to come again."""
            return (await caller.post("/carrel/filter", {"Pod": pod, "Nodes": None, "NodeNames": ["n1"]})).status

        await becomes(status, 200)
        assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
        assert await caller.bind(pod, "n1") == ""


async def test_whole_nodes_are_answered_and_take_little_more_than_their_size() -> None:
    body = whole_nodes(30 * MB)
    async with an_extender() as (_, process, url), aiohttp.ClientSession() as session:
        caller = ExtenderClient(session, url)
        before = memory_mb(process)
        for _ in range(3):
            answer = await caller.post("/carrel/filter", body)
            assert answer.status == 200
        assert len(answer.json["Nodes"]["items"]) > 1000
        await eventually(lambda: memory_mb(process) - before < 200, "the memory was given back")


# --- who calls -------------------------------------------------------------------------------------------------------


async def test_it_does_not_start_on_an_open_address_without_knowing_its_callers() -> None:
    refused = await carrel("extender", "--server", "http://127.0.0.1:9", "--bind-address", "0.0.0.0")

    assert refused.code == 2
    assert "with --bind-address 0.0.0.0 anybody who reaches the port could call the extender" in refused.err
    assert "set CARREL_PATH_SECRET or write --client-ca, or listen on 127.0.0.1" in refused.err


@pytest.mark.parametrize(
    ("secret", "options", "why"),
    [
        pytest.param("short", [], "CARREL_PATH_SECRET has 5 characters; at least 16 are needed", id="short"),
        pytest.param("a/secret?with=marks", [], "small letters, digits and - between them only", id="no path"),
        pytest.param(
            "", ["--client-ca", "/etc/hostname"], "--client-ca needs a server certificate", id="no certificate"
        ),
        pytest.param("", ["--tls-folder", "/nowhere"], "--tls-folder /nowhere", id="no such folder"),
    ],
)
async def test_settings_that_cannot_work_are_refused_with_the_reason(secret: str, options: list[str], why: str) -> None:
    refused = await carrel("extender", "--server", "http://127.0.0.1:9", *options, CARREL_PATH_SECRET=secret)

    assert refused.code == 2 and why in refused.err
    assert "short" not in refused.err and "a/secret" not in refused.err


async def test_with_a_secret_only_those_who_know_it_get_an_answer_and_the_log_does_not_say_it() -> None:
    options = ["--bind-address", "0.0.0.0", "--log-level", "debug"]
    secrets = f"another-{SECRET},{SECRET}"
    async with (
        an_extender(*options, CARREL_PATH_SECRET=secrets) as (lab, process, url),
        aiohttp.ClientSession() as session,
    ):
        pod = await lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
        question = {"Pod": pod, "Nodes": None, "NodeNames": ["n1"]}
        stranger, known = ExtenderClient(session, url), ExtenderClient(session, f"{url}/{SECRET}")
        by_password = ExtenderClient(session, url.replace("http://", f"http://carrel:{SECRET}@"))

        for path in ("/carrel/filter", "/carrel/bind", "/gpushare-scheduler/bind", f"/{SECRET}x/carrel/filter"):
            assert (await stranger.post(path, question)).status == 403
        assert (await stranger.get("/gpushare-scheduler/inspect")).status == 403
        assert await answers(url)
        for caller in (known, by_password):
            assert (await caller.post("/carrel/filter", question)).json["NodeNames"] == ["n1"]
        assert (await known.post("/gpushare-scheduler/filter", question)).json["NodeNames"] == ["n1"]

        # While the secret is changed, the old one is accepted too.
        changed = ExtenderClient(session, f"{url}/another-{SECRET}")
        assert (await changed.post("/carrel/filter", question)).json["NodeNames"] == ["n1"]
        assert await known.bind(pod, "n1") == ""

        process.running.terminate()
        _, story = await process.wait_end()
    assert "unknown_caller" in story and "CARREL_PATH_SECRET" in story and SECRET not in story


async def test_a_caller_without_the_secret_cannot_make_it_read_a_body() -> None:
    async with an_extender(CARREL_PATH_SECRET=SECRET) as (_, process, url):
        before = memory_mb(process)
        async with raw_callers(url, 100) as strangers:
            for each in strangers:
                await each.send(FILTER + b"content-length: %d\r\n\r\n" % LARGEST_QUESTION + b" " * MB)
            assert {await each.status() for each in strangers} <= {403, 0}
        assert memory_mb(process) - before < 150
        caller = await raw_caller(url)
        await caller.send(FILTER + b"content-length: 2\r\n\r\n{}")
        assert await caller.status() == 403
