"""`carrel webhook` as a process: only those whom it knows are answered, and nobody takes it down."""

import asyncio
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS, PODS
from testbed.certificates import Authority
from tests.integration.admission.test_process import WebhookProcess, a_cluster, a_pod, a_webhook, configure_webhook
from tests.kit.eventually import eventually
from tests.kit.raw_http import raw_callers
from tests.kit.reviews import a_pod as gpu_pod
from tests.kit.reviews import review

SECRET = "0123456789abcdef0123456789abcdef"
MB = 1024 * 1024


async def asked(webhook: WebhookProcess, path: str, tls: ssl.SSLContext | bool = False) -> int:
    body = review(gpu_pod({"nvidia.com/gpu": "1"}))
    async with aiohttp.ClientSession() as session, session.post(f"{webhook.url}{path}", json=body, ssl=tls) as answer:
        text = await answer.text()
        assert SECRET not in text
        return answer.status


async def test_the_secret_is_written_into_the_configuration_and_nobody_else_is_answered() -> None:
    environment = {"CARREL_PATH_SECRET": SECRET}
    async with (
        a_cluster() as (client, server),
        a_webhook(server, environment=environment) as webhook,
    ):
        await configure_webhook(client, webhook.url)
        (written,) = (await client.get(MUTATING_WEBHOOKS, "carrel"))["webhooks"]
        assert written["clientConfig"]["url"] == f"{webhook.url}/{SECRET}/mutate"

        made = await client.create(PODS, a_pod("train"), "lab")
        assert made["spec"]["schedulerName"] == "gpu-scheduler", "the API server knows the secret"
        assert await asked(webhook, "/mutate") == 403
        assert await asked(webhook, f"/{SECRET[:-1]}/mutate") == 403
        assert await asked(webhook, f"/{SECRET}/mutate") == 200
        assert (await webhook.get("/readyz"))[0] == 200
        webhook.running.terminate()
        await webhook.wait_line("stopped")
    assert "unknown_caller" in webhook.story and SECRET not in webhook.story


async def test_with_a_client_authority_a_certificate_of_it_is_needed_and_the_file_may_change(tmp_path: Path) -> None:
    ours, others = (Authority(tmp_path / name, datetime.now(UTC)) for name in ("ours", "others"))
    client_ca = tmp_path / "ca.crt"
    client_ca.write_bytes(ours.certificate.read_bytes())

    async def status(authority: Authority) -> int:
        pair = authority.client("kube-apiserver")
        context = ssl._create_unverified_context()  # only the other way is tested
        context.load_cert_chain(pair.certificate, pair.key)
        try:
            return await asked(webhook, "/mutate", context)
        except aiohttp.ClientError:
            return 0

    async with a_cluster() as (_, server), a_webhook(server, "--client-ca", str(client_ca)) as webhook:
        assert await asked(webhook, "/mutate") == 403
        assert await status(ours) == 200
        assert await status(others) == 0, "a certificate of another authority ends the handshake"
        assert (await webhook.get("/readyz"))[0] == 200, "probes show no certificate"

        client_ca.write_bytes(others.certificate.read_bytes())
        while await status(others) != 200:  # noqa: ASYNC110 # over HTTP
            await asyncio.sleep(0.05)
        assert await status(ours) == 0


async def test_it_does_not_start_on_an_open_address_without_knowing_its_callers() -> None:
    words = ("-m", "carrel", "webhook", "--server", "http://127.0.0.1:9", "--bind-address", "::")
    running = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    _, said = await running.communicate()
    assert running.returncode == 2
    assert b"with --bind-address :: anybody who reaches the port could call the webhook" in said


async def test_callers_that_begin_and_never_finish_take_no_memory_and_keep_nobody_out() -> None:
    async with a_cluster() as (client, server), a_webhook(server) as webhook:
        await configure_webhook(client, webhook.url)

        def memory_mb() -> int:
            status = Path(f"/proc/{webhook.running.pid}/status").read_text()
            return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024

        before = memory_mb()
        async with raw_callers(webhook.url, 600, "127.0.0.6") as strangers:
            for each in strangers[::2]:
                await each.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the begin of a handshake
            large = [asyncio.ensure_future(_send(webhook, 9 * MB)) for _ in range(12)]  # too many at a time
            too_large = [asyncio.ensure_future(_send(webhook, 25 * MB)) for _ in range(4)]
            assert set(await asyncio.gather(*large)) <= {0, 400, 503}, "it is no review"
            assert set(await asyncio.gather(*too_large)) <= {0, 413, 503}
            made: dict[str, Any] = await client.create(PODS, a_pod("train"), "lab")
            assert made["spec"]["schedulerName"] == "gpu-scheduler"
            assert (await webhook.get("/readyz"))[0] == 200
        await eventually(lambda: memory_mb() - before < 150, "the memory was given back")


async def _send(webhook: WebhookProcess, size: int) -> int:
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{webhook.url}/mutate", data=b"[" * size, ssl=False) as answer,
        ):
            return answer.status
    except aiohttp.ClientError:
        return 0  # it stopped reading before all was sent
