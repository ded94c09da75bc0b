"""`carrel webhook` as a process, called over TLS by the embedded API for every pod that is created there."""

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from carrel.admission import certificates
from carrel.admission.assembly import AdmissionWebhook
from carrel.admission.certificates import Validity
from carrel.admission.handlers import ReviewHandler
from carrel.admission.metrics import WebhookMetrics
from carrel.admission.options import AdmissionOptions
from carrel.cluster.state import ClusterState
from carrel.dialects.booking_objects import BOOKINGS
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import ClusterError, DeleteOptions, JsonPatch, MergePatch
from carrel.kubernetes.objects.resources import (
    CONFIG_MAPS,
    CRDS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    PRIORITY_CLASSES,
    SECRETS,
)
from carrel.kubernetes.reflector import Informers
from carrel.manifests import crds, priority_classes, webhooks
from carrel.parsing.time import seconds
from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.http_server import serve
from testbed.kubelets import SimulatedKubelets
from tests.kit.configuration import config_file, configure
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.reviews import Reviewed, apply_answer, review
from tests.kit.reviews import a_pod as gpu_pod

GPU = {"nvidia.com/gpu": "1"}
Json = dict[str, Any]


class WebhookProcess:
    def __init__(self, running: asyncio.subprocess.Process) -> None:
        self.running = running
        self.story = ""
        self.url = ""

    async def wait_line(self, pattern: str) -> re.Match[str]:
        assert self.running.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while line := (await self.running.stderr.readline()).decode():
                self.story += line
                if found := re.search(pattern, line):
                    return found
        raise AssertionError(f"it ended before it logged {pattern!r}:\n{self.story}")

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}{path}", ssl=False) as answer:
            return answer.status, await answer.text()

    async def wait_ready(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                if (await self.get("/readyz"))[0] == 200:
                    return
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def a_webhook(
    server: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[WebhookProcess]:
    command = ["webhook", "--server", server, "--port", "0", *arguments]
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "carrel", *command),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    webhook = WebhookProcess(running)
    try:
        webhook.url = (await webhook.wait_line(r"listening url=(\S+)"))[1]
        await webhook.wait_ready()
        yield webhook
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


@contextlib.asynccontextmanager
async def a_cluster() -> AsyncIterator[tuple[Client, str]]:
    api = EmbeddedApi()
    client = Client(api)
    for each in crds():
        await client.create(CRDS, each)
    for name in ("carrel", "lab"):
        await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for each in priority_classes():
        await client.create(PRIORITY_CLASSES, each)
    await configure(client)
    async with serve(api) as served:
        yield client, served.url
        await client.aclose()


async def configure_webhook(client: Client, url: str) -> None:
    """Creates the webhook configuration as the chart does, and waits until the API server asks and would accept the
    webhook's certificate: the webhook has written rules and authority, and the certificate names the URL's host."""
    for each in webhooks(for_embedded_api=True):
        for webhook in each["webhooks"]:
            del webhook["rules"]
            webhook["clientConfig"] = {"url": f"{url}{webhook['clientConfig']['service']['path']}"}
        await client.create(MUTATING_WEBHOOKS, each)
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = await client.get(MUTATING_WEBHOOKS, "carrel")
            bundles = {webhook["clientConfig"].get("caBundle", "") for webhook in found["webhooks"]}
            is_asked = all(webhook.get("rules") for webhook in found["webhooks"])
            if is_asked and "" not in bundles and await _is_trusted(url, base64.b64decode(bundles.pop()).decode()):
                return
            await asyncio.sleep(0.02)


async def _is_trusted(url: str, authority: str) -> bool:
    context = ssl.create_default_context(cadata=authority)
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz", ssl=context):
            return True
    except aiohttp.ClientSSLError:
        return False


def a_pod(name: str, limits: Mapping[str, str] = GPU, **metadata: Any) -> Json:
    container = {"name": "main", "image": "work", "resources": {"limits": dict(limits)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container]},
    }


async def test_a_pod_is_admitted_and_the_webhook_stops_on_sigterm() -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        assert body == {"user_email": "kubernetes-admin", "namespace": "lab", "token": "t0ken"}, body
        return web.json_response({"schedulable": True, "until": tomorrow.isoformat(), "gpu": "NVIDIA-RTX-A6000"})

    app = web.Application()
    app.router.add_post("/api", answer)
    async with TestServer(app) as service, a_cluster() as (client, server):
        environment = {
            "API_URL": str(service.make_url("/api")),
            "API_TOKEN": "t0ken",
            "GPU_STATS_URL": "https://maia.lab.example/maia-api/gpu-stats/",
            "CARREL_SEAL_KEY": "a key that nobody knows",
        }
        async with a_webhook(server, environment=environment) as webhook:
            await configure_webhook(client, webhook.url)
            made = await client.create(PODS, a_pod("train"), "lab")
            other = await client.create(PODS, a_pod("other", {}), "lab")
            numbers = (await webhook.get("/metrics"))[1]
            webhook.running.send_signal(signal.SIGTERM)
            await webhook.wait_line("stopped")
            assert await webhook.running.wait() == 0
        unseen = await client.create(PODS, a_pod("unseen"), "lab")

    notes = made["metadata"]["annotations"]
    assert notes["carrel.dev/tier"] == "booked"
    assert notes["terminate-at"] == tomorrow.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert made["spec"]["schedulerName"] == "gpu-scheduler"
    assert made["spec"]["priorityClassName"] == "carrel-gpu"
    assert [each["name"] for each in made["spec"]["containers"][0]["env"]] == [
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ]
    assert "annotations" not in other["metadata"]
    assert "annotations" not in unseen["metadata"], (
        "the embedded API cannot tell GPU pods from others, so it admits pods without the webhook"
    )
    assert 'carrel_reviews_total{outcome="booked",verb="mutate"} 1.0' in numbers
    assert re.search(r"carrel_certificate_expiry_timestamp_seconds 1\.\d+e\+09", numbers)
    assert "t0ken" not in webhook.story and "Traceback" not in webhook.story
    assert webhook.story.count("unused_setting name=GPU_STATS_URL") == 1


async def test_without_another_booking_service_a_pod_is_admitted_by_the_bookings_of_the_cluster() -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    times = {"start": seconds(now - timedelta(hours=1)), "end": seconds(now + timedelta(days=1))}
    booking = {"apiVersion": "carrel.dev/v1", "kind": "Booking", "metadata": {"name": "b1"}}
    async with a_cluster() as (client, server):
        node = a_node("n1", 1)
        await SimulatedKubelets(client, [node], Informers(client).watch(PODS), lambda: now).announce()
        await client.create(BOOKINGS, {**booking, "spec": {"user": "kubernetes-admin", "gpus": 1, **times}})
        async with a_webhook(server, "--api-url", "") as webhook:
            await configure_webhook(client, webhook.url)
            made = await client.create(PODS, a_pod("train"), "lab")
            await wait_another_would_be(client, "opportunistic")  # the webhook has seen the first pod
            await client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
            await wait_another_would_be(client, "booked")
            await client.delete(BOOKINGS, "b1")
            await wait_another_would_be(client, "opportunistic")

    assert made["metadata"]["annotations"]["carrel.dev/tier"] == "booked"
    assert made["metadata"]["annotations"]["terminate-at"] == times["end"]


async def wait_another_would_be(client: Client, tier: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            made = await client.create(PODS, a_pod("another"), "lab", dry_run=True)
            if made["metadata"]["annotations"]["carrel.dev/tier"] == tier:
                return
            await asyncio.sleep(0.02)


async def test_owners_hand_overs_and_priority_classes_are_read_from_the_cluster() -> None:
    async with a_cluster() as (client, _):
        await client.patch(NAMESPACES, "lab", MergePatch({"metadata": {"annotations": {"owner": "alice"}}}))
        for name, phase in (("handover-gone", "ending"), ("handover-going", "announced")):
            record = {"pod": "lab/gone", "why": "revoked", "phase": phase, "owner": f"owner of {name}", "user": "alice"}
            times = dict.fromkeys(("decided", "due"), "2026-11-16T12:00:00Z")
            metadata = {"name": name, "labels": {"carrel.dev/handover": "owned"}}
            body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {**record, **times}}
            await client.create(CONFIG_MAPS, body, "carrel")
        replica = Replica(ClusterState(client), None, AdmissionOptions())
        handler = replica.handler()
        assert (await handler.mutate(b"{}")).status == 503, "before the caches are complete nothing is decided"
        running = asyncio.ensure_future(replica.informers.run())
        try:
            await replica.informers.wait_synced()
            job = "system:serviceaccount:kube-system:job-controller"
            successor, other, plain = [
                await review_by(handler, review(pod, job))
                for pod in (
                    gpu_pod(GPU, owner=owner) for owner in ("owner of handover-gone", "owner of handover-going", "")
                )
            ]
        finally:
            running.cancel()

    assert successor.env() == {"NVIDIA_VISIBLE_DEVICES": "none"}
    assert '"from":"gone"' in successor.annotations["carrel.dev/handed-over"]
    for each in (other, plain):
        assert each.annotations["carrel.dev/user"] == "alice"
        assert each.object["spec"]["priorityClassName"] == "carrel-gpu"


class Replica(AdmissionWebhook):
    def handler(self) -> ReviewHandler:
        metrics = WebhookMetrics()
        return ReviewHandler(self.admission, metrics, lambda: self.informers.is_synced)


async def review_by(handler: ReviewHandler, request_body: Json) -> Reviewed:
    status, body = await handler.mutate(json.dumps(request_body).encode())
    assert status == 200
    return apply_answer(request_body, json.loads(body))


async def test_certificates_are_renewed_while_pods_are_created_and_every_pod_is_reviewed() -> None:
    served = set()
    async with a_cluster() as (client, server), a_webhook(server, "--api-url", "") as webhook:
        await configure_webhook(client, webhook.url)
        await webhook.wait_line("certificate_loaded")  # the one that names the host of the URL
        for turn in range(3):
            secret = await client.get(SECRETS, "carrel-webhook-tls", "carrel")
            served.add(secret["data"]["tls.crt"])
            away = JsonPatch([{"op": "remove", "path": "/data/tls.crt"}])
            await client.patch(SECRETS, "carrel-webhook-tls", away, "carrel")
            made = await client.create(PODS, a_pod(f"p{turn}"), "lab")
            assert made["spec"]["schedulerName"] == "gpu-scheduler"
            await webhook.wait_line("certificate_loaded")
    assert len(served) == 3


async def test_certificate_files_are_loaded_again_after_others_renew_them(tmp_path: Path) -> None:
    now = datetime.now(UTC)

    def renew(days: int) -> str:
        """When it expires."""
        valid = Validity(now, now + timedelta(days=days))
        pair = certificates.issue(certificates.new_authority(valid), ["127.0.0.1"], valid)
        (tmp_path / "tls.crt").write_bytes(pair.certificate)
        (tmp_path / "tls.key").write_bytes(pair.key)
        return str(int(valid.ends.timestamp()))

    renew(1)
    async with (
        a_cluster() as (client, server),
        a_webhook(server, "--tls-folder", str(tmp_path), "--api-url", "") as webhook,
    ):
        assert (await webhook.get("/healthz"))[0] == 200
        await webhook.wait_line(f"certificate_loaded expires_at={renew(2)}")
        assert (await webhook.get("/healthz"))[0] == 200
        with pytest.raises(ClusterError):
            await client.get(SECRETS, "carrel-webhook-tls", "carrel")


async def test_a_port_that_is_in_use_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with a_cluster() as (_, server):
            command = (sys.executable, "-m", "carrel", "webhook", "--server", server, "--port", port, "--api-url", "")
            running = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
            async with asyncio.timeout(LIMIT_S):
                _, said = await running.communicate()

    assert running.returncode == 6
    assert f"✗ Cannot listen on 127.0.0.1:{port}" in said.decode() and "Traceback" not in said.decode()


async def test_it_stops_on_sigterm_also_before_it_has_a_certificate(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        server = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        command = (
            sys.executable,
            "-m",
            "carrel",
            "webhook",
            "--server",
            server,
            "--port",
            "0",
            "--tls-folder",
            "/nowhere",
            "--config",
            config_file(tmp_path),
        )
        running = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        webhook = WebhookProcess(running)
        await webhook.wait_line("certificate_unreadable")
        running.send_signal(signal.SIGTERM)
        await webhook.wait_line("stopped")
        assert await running.wait() == 0
