"""The reconciler on an API server that refuses calls, loses answers, drops watches and shows old lists."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from carrel.cluster.options import ClusterOptions
from carrel.cluster.state import ClusterState
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import DeleteOptions, Selection
from carrel.kubernetes.objects.resources import EVENTS, PODS
from carrel.kubernetes.reflector import WatchTiming
from carrel.kubernetes.timing import Backoff
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.lifecycle.reconciler import Reconciler
from kubernetes_in_memory.faults import FaultPlan
from tests.kit.eventually import LIMIT_S
from tests.kit.faults import Faulty
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

IMPATIENT = WatchTiming(resync_s=1.0, backoff=Backoff(first_s=0.01, limit_s=0.1))


@contextlib.asynccontextmanager
async def a_leader(lab: Lab, plan: FaultPlan) -> AsyncIterator[Faulty]:
    transport = Faulty(lab.api, plan)
    replica = ClusterState(Client(transport), ClusterOptions(watch_timing=IMPATIENT))
    reconciler = Reconciler(replica, frozenset({"gpu-scheduler"}), ControllerMetrics(lambda: True))
    watching = asyncio.ensure_future(replica.informers.run())
    await replica.informers.wait_synced()
    working = asyncio.ensure_future(reconciler.run())
    try:
        yield transport
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


@pytest.mark.parametrize("seed", range(5))
async def test_after_faults_gpus_are_free_claims_are_right_and_running_pods_have_their_gpus(seed: int) -> None:
    plan = FaultPlan(
        seed, refuse=0.2, lose_answer=0.2, stale_list=0.2, drop_watch=0.1, double_event=0.1, expire_watch=0.1
    )
    async with a_lab([a_node("n1", gpus=4)], in_real_time=True) as lab:
        claim = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
        await lab.client.create(GPU_CLAIMS, {**claim, "spec": {"devices": {"count": 1}}}, "lab")
        uids = {}
        async with lab.replica() as extender, a_leader(lab, plan) as transport:
            for name in ("goes", "claims", "goes-too", "stays"):
                notes = {"gpu.scheduling/claim": "one"} if name == "claims" else {"carrel.dev/gpu-count": "1"}
                pod = await lab.pod(name, annotations=notes)
                uids[name] = pod["metadata"]["uid"]
                assert await extender.bind(pod, "n1") is None
            await lab.pod("waits", annotations={"carrel.dev/gpu-count": "4"})
            for name in ("goes", "goes-too"):
                await lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))

            held = await _settled(lab, {uids["claims"], uids["stays"]})

        assert held == {uids["claims"], uids["stays"]}, transport.story
        status = (await lab.client.get(GPU_CLAIMS, "one", "lab"))["status"]
        assert (status["phase"], status["allocated"]) == ("Bound", "n1:1"), transport.story
        reasons = [event.reason for event in (await lab.client.list(EVENTS, Selection("lab"))).items]
        assert reasons.count("GPUAssigned") <= 4, "one Event for each pod"
        assert reasons.count("WaitingForGPU") >= 1
        assert transport.story, "a run without a fault proves nothing"


async def _settled(lab: Lab, living: set[str]) -> set[str]:
    """The holders of GPUs once the leader has done its work."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            held = {uid for shares in (await lab.held()).values() for uid in shares}
            status = (await lab.client.get(GPU_CLAIMS, "one", "lab")).get("status", {})
            told = {event.reason for event in (await lab.client.list(EVENTS, Selection("lab"))).items}
            if held <= living and status.get("phase") == "Bound" and "WaitingForGPU" in told:
                return held
            await asyncio.sleep(0.05)
