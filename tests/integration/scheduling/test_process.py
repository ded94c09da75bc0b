"""`carrel extender` as a process, against the embedded API over HTTP."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest

from carrel.cluster.placement_rules import rules_in_force
from carrel.kubernetes.objects.resources import LEASES
from kubernetes_in_memory.http_server import serve
from tests.integration.scheduling.served_extender import ExtenderClient
from tests.kit.agent import becomes
from tests.kit.carrel_command import carrel
from tests.kit.configuration import config_file
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab


class Process:
    def __init__(self, running: asyncio.subprocess.Process) -> None:
        self.running = running
        self.lines: list[str] = []

    async def wait_line(self, pattern: str) -> re.Match[str]:
        assert self.running.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while line := (await self.running.stderr.readline()).decode():
                self.lines.append(line)
                if found := re.search(pattern, line):
                    return found
        raise AssertionError(f"it ended before it said {pattern!r}:\n{''.join(self.lines)}")

    async def wait_end(self) -> tuple[int, str]:
        async with asyncio.timeout(LIMIT_S):
            _, rest = await self.running.communicate()
        return self.running.returncode or 0, "".join(self.lines) + rest.decode()


@contextlib.asynccontextmanager
async def carrel_process(*arguments: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "carrel",
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield Process(running)
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


@contextlib.asynccontextmanager
async def a_served_lab() -> AsyncIterator[tuple[Lab, str]]:
    async with a_lab([a_node("n1")], in_real_time=True) as lab, serve(lab.api) as served:
        yield lab, served.url


async def test_it_reports_the_rules_by_which_it_places_pods_and_again_if_they_are_gone(tmp_path: Path) -> None:
    """Commands of people read them there (tests/integration/cli)."""
    more = "scheduling: {placement: spread}\npods: {schedulers: [ours]}"
    text = f"memory: {{unit: GiB}}\ntiers: {{opportunisticGpus: 2}}\n{more}"
    async with (
        a_served_lab() as (lab, url),
        carrel_process("extender", "--server", url, "--port", "0", "--config", config_file(tmp_path, text)),
    ):

        async def unit() -> str:
            rules = await rules_in_force(lab.client, "carrel")
            return rules.memory_unit.value if rules is not None else ""

        await becomes(unit, "GiB")
        rules = await rules_in_force(lab.client, "carrel")
        assert rules is not None
        assert (rules.opportunistic_gpus, rules.spreads, rules.needs_seal, rules.claims_of) == (2, True, False, None)
        assert rules.schedulers is not None and {"ours", "gpu-scheduler"} <= set(rules.schedulers)

        await lab.client.delete(LEASES, "carrel-extender", "carrel")
        await becomes(unit, "GiB")


async def test_it_serves_binds_stops_on_sigterm_and_logs_both() -> None:
    async with a_served_lab() as (lab, url), carrel_process("extender", "--server", url, "--port", "0") as process:
        found = await process.wait_line(r"listening url=(\S+)")
        await process.wait_line("ready nodes=1")
        async with aiohttp.ClientSession() as session:
            caller = ExtenderClient(session, found[1])
            assert (await caller.get("/readyz")).status == 200
            pod = await lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
            assert (await caller.filter(pod, ["n1"]))["NodeNames"] == ["n1"]
            assert await caller.bind(pod, "n1") == ""

            # A gang whose second member comes only after the signal is still bound together.
            gang = {"pod-group-name": "pair", "carrel.dev/gang-size": "2", "gpu-fraction": "0.5"}
            one, two = [await lab.pod(name, annotations=gang) for name in ("one", "two")]
            await _until_fits(caller, one)
            waiting = asyncio.ensure_future(caller.bind(one, "n1"))
            await _until_under_way(caller, waiting)
            process.running.send_signal(signal.SIGTERM)
            await process.wait_line("stopping binds_under_way=1")
            assert (await caller.get("/readyz")).status == 503
            assert await caller.bind(two, "n1") == ""
            assert await waiting == ""
        code, story = await process.wait_end()

    assert code == 0
    assert re.search(r"^\d{4}-\d\d-\d\dT[\d:.]+Z INFO bound pod=lab/train node=n1$", story, re.MULTILINE)
    assert "INFO stopping binds_under_way=" in story
    assert "Traceback" not in story


async def test_probes_reach_it_where_kube_schedulers_calls_do_not() -> None:
    options = ["--port", "0", "--health-address", "127.0.0.1:0"]
    async with a_served_lab() as (_, url), carrel_process("extender", "--server", url, *options) as process:
        for_probes = (await process.wait_line(r"health url=(\S+)"))[1]
        await process.wait_line("ready nodes=1")
        async with aiohttp.ClientSession() as session:
            caller = ExtenderClient(session, for_probes)
            assert (await caller.get("/readyz")).status == 200
            assert "carrel_" in (await caller.get("/metrics")).text
            async with session.post(f"{for_probes}/carrel/bind", json={}) as answer:
                assert answer.status == 404


async def test_a_health_address_without_a_port_is_refused() -> None:
    refused = await carrel("extender", "--server", "http://127.0.0.1:1", "--health-address", "nowhere")

    assert refused.code == 2
    assert "expected an address and a port" in refused.err


async def _until_fits(caller: ExtenderClient, pod: object) -> dict[str, object]:
    """A gang's members may not all be in the cache yet."""
    for _ in range(LIMIT_S * 20):
        found: dict[str, object] = await caller.filter(pod, ["n1"])
        if found["NodeNames"]:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(found)


async def _until_under_way(caller: ExtenderClient, bind: "asyncio.Future[str]") -> None:
    for _ in range(LIMIT_S * 20):
        assert not bind.done(), await bind
        if "carrel_binds_under_way 1.0" in (await caller.get("/metrics")).text:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("no bind is under way")


async def test_it_is_alive_but_not_ready_while_the_api_server_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        async with carrel_process("extender", "--server", address, "--port", "0") as process:
            found = await process.wait_line(r"waiting url=(\S+)")
            async with aiohttp.ClientSession() as session:
                caller = ExtenderClient(session, found[1])
                assert (await caller.get("/healthz")).status == 200
                ready = await caller.get("/readyz")
                assert (ready.status, "has not said the configuration" in ready.text) == (503, True)
            process.running.send_signal(signal.SIGTERM)
            code, _ = await process.wait_end()

    assert code == 0


async def test_gpushares_variables_are_read_and_an_option_wins_over_them() -> None:
    async with a_served_lab() as (_, url):
        environment = {"PORT": "1", "LOG_LEVEL": "debug"}
        async with carrel_process("extender", "--server", url, "--port", "0", environment=environment) as process:
            found = await process.wait_line(r"listening url=http://127.0.0.1:(\d+)")

    assert found[1] != "1"


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        pytest.param({"PORT": "many"}, "CARREL_PORT or PORT", id="a port that is no number"),
        pytest.param({"LOG_LEVEL": "loud"}, "CARREL_LOG_LEVEL or LOG_LEVEL", id="a level that is none"),
    ],
)
async def test_a_wrong_setting_is_refused_with_its_name(environment: dict[str, str], complaint: str) -> None:
    refused = await carrel("extender", **environment)

    assert refused.code == 2
    assert complaint in refused.err
    assert "Traceback" not in refused.err


async def test_without_a_cluster_it_says_what_to_do(tmp_path: Path) -> None:
    environment = {"KUBECONFIG": str(tmp_path / "nothing"), "KUBERNETES_SERVICE_HOST": "", "CARREL_SEAL_KEY": "none"}
    ended = await carrel("extender", **environment)

    assert ended.code == 2
    assert ended.err.splitlines()[0] == "✗ No usable kubeconfig"
    assert "Try:" in ended.err.splitlines()[2]


async def test_a_port_that_is_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with carrel_process("extender", "--server", "http://127.0.0.1:1", "--port", port) as process:
            code, told = await process.wait_end()

    assert code == 6
    assert f"✗ Cannot listen on 127.0.0.1:{port}" in told
