"""A controller whose clock is wrong ends no pod early, and none late."""

import asyncio
import base64
from datetime import timedelta
from email.utils import format_datetime

import pytest

from carrel.admission.certificates import validity
from carrel.admission.run import renew_certificates
from carrel.admission.served_certificate import ServedCertificate
from carrel.admission.settings import WebhookSettings
from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.resources import PODS, SECRETS
from carrel.kubernetes.server_clock import ServerClock
from carrel.kubernetes.transport import ApiRequest, ApiResponse
from carrel.lifecycle.assembly import tier_parts_on
from carrel.lifecycle.tier_options import TierOptions
from tests.kit.gpus import a_node
from tests.kit.lab import QUICK, Lab, a_lab
from tests.kit.tiers import an_opportunistic_pod

HALF_PAST = MergePatch({"metadata": {"annotations": {"terminate-at": "2026-11-16T12:30:00Z"}}})


class Dated:
    """A transport whose answers say the API server's time."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    async def send(self, request: ApiRequest) -> ApiResponse:
        answer = await self._lab.api.send(request)
        date = format_datetime(self._lab.clock.now, usegmt=True)
        return ApiResponse(answer.status, answer.body, {**answer.headers, "date": date}, answer.stream)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("ahead", [timedelta(hours=1), -timedelta(days=400)], ids=["an hour ahead", "a year behind"])
async def test_a_pod_ends_when_the_api_server_says_so(ahead: timedelta) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        await lab.client.patch(PODS, "train", HALF_PAST, "lab")
        client = Client(Dated(lab), clock=ServerClock(lambda: lab.clock.now + ahead))
        state = ClusterState(client, ClusterOptions(now=client.clock.now, watch_timing=QUICK))
        watching = asyncio.ensure_future(state.informers.run())
        try:
            await state.informers.wait_synced()
            expiry = tier_parts_on(state, TierOptions(frozenset({"gpu-scheduler"}))).expiry

            lab.clock.now += timedelta(minutes=29, seconds=58)
            assert expiry.expired() == []
            lab.clock.now += timedelta(seconds=4)
            assert [pod.metadata.name for pod in expiry.expired()] == ["train"]
        finally:
            watching.cancel()
            await asyncio.wait([watching])


@pytest.mark.parametrize("ahead", [timedelta(hours=2), -timedelta(days=400)], ids=["2 hours ahead", "a year behind"])
async def test_the_webhooks_certificates_are_valid_by_the_api_servers_clock(ahead: timedelta) -> None:
    """It is the one that checks them. By a clock that is far behind, they would have expired before they are served."""
    async with a_lab([]) as lab:
        client = Client(Dated(lab), clock=ServerClock(lambda: lab.clock.now + ahead))
        served = ServedCertificate()
        renewing = asyncio.ensure_future(renew_certificates(client, WebhookSettings(), served))
        try:
            await served.wait_loaded()
            stored = (await lab.client.get(SECRETS, WebhookSettings().tls_secret, "carrel"))["data"]
            for name in ("tls.crt", "ca.crt"):
                valid = validity(base64.b64decode(stored[name]))
                assert valid.begins <= lab.clock.now <= valid.ends - timedelta(days=89), name
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])
