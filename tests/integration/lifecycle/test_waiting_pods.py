"""What the leader tells pods that wait: nothing while scheduling gates hold them, and what is missing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from carrel.cluster.state import ClusterState
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.resources import EVENTS
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.lifecycle.reconciler import Reconciler
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.tiers import remove_gates, set_status

TOO_MUCH = {"nvidia.com/gpu": "2"}
GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}


@contextlib.asynccontextmanager
async def a_leader(lab: Lab) -> AsyncIterator[None]:
    replica = ClusterState(Client(lab.api))
    reconciler = Reconciler(replica, frozenset({"gpu-scheduler"}), ControllerMetrics(lambda: True))
    tasks = [asyncio.ensure_future(replica.informers.run())]
    await replica.informers.wait_synced()
    tasks.append(asyncio.ensure_future(reconciler.run()))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pods_with_events(lab: Lab) -> set[str]:
    """The pods with Events."""
    return {event.involved_object.name for event in (await lab.client.list(EVENTS, Selection("lab"))).items}


async def wait_event(lab: Lab, name: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            if name in await pods_with_events(lab):
                return
            await asyncio.sleep(0.05)


async def test_a_gated_pod_gets_no_event_until_its_gates_are_removed() -> None:
    async with a_lab([a_node("n1", gpus=1)], in_real_time=True) as lab:
        for name, limits in (("gated", TOO_MUCH), ("has-room", {"nvidia.com/gpu": "1"})):
            await lab.pod(name, limits=limits, gates=["example.com/quota"])
            await set_status(lab, name, {"conditions": [GATED]})
        async with a_leader(lab):
            await lab.pod("later", limits=TOO_MUCH)
            await wait_event(lab, "later")  # by then the others were reconciled
            assert await pods_with_events(lab) == {"later"}
            assert "carrel.dev/woken-at" not in await lab.annotations("has-room")

            await remove_gates(lab, "gated")
            await wait_event(lab, "gated")


async def test_a_pod_that_waits_for_its_claim_says_so_and_is_tried_again_as_soon_as_the_claim_is_there() -> None:
    async with a_lab([a_node("n1", gpus=1)], in_real_time=True) as lab:
        await lab.pod("early", annotations={"gpu.scheduling/claim": "late"})
        async with a_leader(lab):
            await wait_event(lab, "early")
            (event,) = (await lab.client.list(EVENTS, Selection("lab"))).items
            assert "names the GpuClaim 'late', which does not exist in namespace 'lab'; create it" in event.message

            body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "late"}}
            await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
            async with asyncio.timeout(LIMIT_S):
                while "carrel.dev/woken-at" not in await lab.annotations("early"):  # noqa: ASYNC110 - on the API server
                    await asyncio.sleep(0.05)
