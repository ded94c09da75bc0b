"""A notebook that finds no GPU within a minute goes on without one, before its hub gives up. None is lost."""

import contextlib
from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.dialects.options import WhenFull
from carrel.ids import PodUid
from carrel.kubernetes.cluster import DeleteOptions, MergePatch
from carrel.kubernetes.objects.resources import NAMESPACES, PODS
from carrel.ledger.gpus import MiB
from carrel.ledger.shares import Holder, Share
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, a_node
from tests.kit.lab import NOON, Lab, Replica, a_lab
from tests.kit.tiers import (
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    an_opportunistic_pod,
    an_owner,
    catch_up,
    end_deleted,
    event_reasons,
    hand_over_records,
    pods_of,
    schedule,
    settle,
)

HUB = {"hub.jupyter.org/username": "ada", "carrel.dev/user": "ada@lab.example", **OPPORTUNISTIC}
WAIT_S = 60


def controller_on(replica: Replica, **options: Any) -> TierController:
    return TierController(replica, wait_before_cpu_s=WAIT_S, **options)


async def has_gpu(lab: Lab, name: str) -> bool:
    return bool((await pods_of(lab))[name].spec.containers[0].resources.limits.get("nvidia.com/gpu"))


async def a_full_lab(lab: Lab, replica: Replica) -> None:
    await an_opportunistic_pod(lab, replica, "busy")
    await catch_up(lab, replica)


async def test_a_notebook_that_waits_for_a_minute_goes_on_without_a_gpu() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        waiting = await lab.pod("notebook", limits=WHOLE, annotations=HUB)
        controller = controller_on(replica)
        lab.clock.now = NOON + timedelta(seconds=WAIT_S - 1)
        await settle(lab, controller)
        assert await has_gpu(lab, "notebook")

        lab.clock.now = NOON + timedelta(seconds=WAIT_S)
        await settle(lab, controller)

        assert controller.results == [HandOverResult.HANDED_OVER] and not await hand_over_records(lab)
        assert not await has_gpu(lab, "notebook")
        successor = await lab.annotations("notebook")
        assert successor["carrel.dev/runs-without-gpu"] == (
            "this pod runs without a GPU: it waited for one, and on Mon 16 Nov 12:01 UTC none was free"
        )
        assert successor["carrel.dev/user"] == "ada@lab.example"
        assert waiting["metadata"]["uid"] in successor["carrel.dev/handed-over"]
        reasons = await event_reasons(lab)
        assert {"NoGPUFree notebook", "HandedOverToCPU notebook"} <= set(reasons)


@pytest.mark.parametrize(
    ("pod", "options"),
    [
        pytest.param({"annotations": OPPORTUNISTIC}, {}, id="no notebook, and nobody says cpu"),
        pytest.param({"annotations": HUB}, {"when_full": WhenFull.WAIT}, id="the setting says wait"),
        pytest.param({"annotations": {**HUB, "pod-group-name": "g"}}, {}, id="a member of a gang"),
        pytest.param({"annotations": {**HUB, "carrel.dev/booking": "b9"}}, {}, id="made for a booking"),
        pytest.param({"annotations": {**HUB, "carrel.dev/no-successor": "true"}}, {}, id="nothing would follow it"),
        pytest.param({"annotations": HUB, "gates": ["example.com/quota"]}, {}, id="held back by a gate"),
        pytest.param(
            {"annotations": {**HUB, "carrel.dev/user": "soon@lab.example"}},
            {},
            id="a booking of its person starts soon",
        ),
        pytest.param(
            {"annotations": {"hub.jupyter.org/username": "ada", "carrel.dev/user": "ada@lab.example"}},
            {},
            id="older than Carrel: it has no tier",
        ),
        pytest.param({"annotations": {**HUB, "carrel.dev/gpu-model": "H100"}, "limits": {}}, {}, id="it asks for none"),
    ],
)
async def test_a_pod_waits_on(pod: dict[str, Any], options: dict[str, Any]) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        await lab.book("soon@lab.example", start=NOON + timedelta(minutes=40), name="soon")
        before = await lab.pod("notebook", **{"limits": WHOLE, **pod})
        lab.clock.now = NOON + timedelta(minutes=5)

        await settle(lab, controller_on(replica, **options))

        assert (await pods_of(lab))["notebook"].metadata.uid == before["metadata"]["uid"]


async def test_a_pod_waits_for_its_claim_however_long_and_then_as_long_as_others_for_a_gpu() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        before = await lab.pod("notebook", annotations={**HUB, "gpu.scheduling/claim": "late"})
        controller = controller_on(replica)
        lab.clock.now += timedelta(minutes=30)
        await settle(lab, controller)
        why = replica.waiting_reason.why(await replica.sees(before))
        assert why is not None
        assert why.reason == (
            "pod lab/notebook names the GpuClaim 'late', which does not exist in namespace 'lab'; create it"
        )

        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "late"}}
        await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        await eventually(lambda: replica.claims.store.get("late", "lab"))
        lab.clock.now += timedelta(seconds=WAIT_S - 1)
        await settle(lab, controller)
        assert (await pods_of(lab))["notebook"].metadata.uid == before["metadata"]["uid"], "its time begins now"

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)
        assert "carrel.dev/runs-without-gpu" in await lab.annotations("notebook")


async def test_a_pod_gets_its_gpu_when_its_claim_comes_and_one_is_free() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await lab.pod("notebook", annotations={**HUB, "gpu.scheduling/claim": "late"})
        controller = controller_on(replica)
        lab.clock.now += timedelta(minutes=30)
        await settle(lab, controller)
        assert await lab.held() == {}

        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "late"}}
        await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        await eventually(lambda: replica.claims.store.get("late", "lab"))
        await settle(lab, controller)
        assert (await lab.annotations("notebook"))["gpu.scheduling/allocated"] == "n1:0"


async def test_a_pod_that_is_being_bound_waits_on() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        before = await lab.pod("notebook", limits=WHOLE, annotations=HUB)
        (entry,) = replica.ledger.entries(N1)
        share = Share(Holder(PodUid(before["metadata"]["uid"]), "lab", "notebook"), entry.gpu.uuid, MiB(1))
        assert await replica.lease_writer.record_share(entry.gpu, share)
        lab.clock.now = NOON + timedelta(minutes=5)

        await settle(lab, controller_on(replica))

        assert (await pods_of(lab))["notebook"].metadata.uid == before["metadata"]["uid"]


async def test_a_pod_of_a_controller_waits_on() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        before = await lab.pod("job-1", limits=WHOLE, annotations=HUB, owner=await an_owner(lab))
        lab.clock.now = NOON + timedelta(minutes=5)

        await settle(lab, controller_on(replica))

        assert (await pods_of(lab))["job-1"].metadata.uid == before["metadata"]["uid"]


@pytest.mark.parametrize(("says", "has"), [("cpu", False), ("wait", True)])
async def test_the_namespace_goes_before_the_setting(says: str, has: bool) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        note = MergePatch({"metadata": {"annotations": {"carrel.dev/when-full": says}}})
        await lab.client.patch(NAMESPACES, "lab", note)
        await a_full_lab(lab, replica)
        await lab.pod("train", limits=WHOLE, annotations=HUB if says == "wait" else OPPORTUNISTIC)
        lab.clock.now = NOON + timedelta(minutes=2)

        await settle(lab, controller_on(replica))

        assert await has_gpu(lab, "train") is has


async def test_with_zero_a_pod_waits_for_ever() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        await lab.pod("notebook", limits=WHOLE, annotations=HUB)
        lab.clock.now = NOON + timedelta(days=1)

        await settle(lab, TierController(replica))

        assert await has_gpu(lab, "notebook")


async def test_four_students_and_one_gpu_that_becomes_free_one_gets_it_and_three_go_on_without() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        names = [f"notebook-{number}" for number in range(4)]
        for name in names:
            await lab.pod(name, limits=WHOLE, annotations=HUB)
        controller = controller_on(replica)
        await settle(lab, controller)
        lab.clock.now = NOON + timedelta(seconds=WAIT_S)
        await lab.client.delete(PODS, "busy", "lab", how=DeleteOptions(grace_seconds=0))
        await catch_up(lab, replica)
        await replica.collector.collect()
        await catch_up(lab, replica)

        await controller.parts.cpu_after_wait.begin_due()
        assert await hand_over_records(lab) == [], "there is room: the scheduler decides who gets it"
        await settle(lab, controller)

        with_gpu = [name for name in names if await has_gpu(lab, name)]
        assert len(with_gpu) == 1 and (await pods_of(lab))[with_gpu[0]].spec.node_name == "n1"
        assert controller.results.count(HandOverResult.HANDED_OVER) == 3


async def test_a_pod_that_is_bound_at_this_moment_keeps_its_gpu() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        waiting = await lab.pod("notebook", limits=WHOLE, annotations=HUB)
        controller = controller_on(replica)
        lab.clock.now = NOON + timedelta(seconds=WAIT_S)
        await catch_up(lab, replica)
        (name,) = await controller.parts.cpu_after_wait.begin_due()

        await lab.client.delete(PODS, "busy", "lab", how=DeleteOptions(grace_seconds=0))
        await catch_up(lab, replica)
        await replica.collector.collect()
        await schedule(lab, replica, (N1,))

        assert await controller.parts.hand_overs.advance(name) is HandOverResult.CALLED_OFF
        found = (await pods_of(lab))["notebook"]
        assert found.metadata.uid == waiting["metadata"]["uid"] and found.spec.node_name == "n1"


async def test_time_that_a_pod_was_held_back_does_not_count() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        await lab.pod("notebook", limits=WHOLE, annotations=HUB, gates=["example.com/quota"])
        controller = controller_on(replica)
        lab.clock.now = NOON + timedelta(minutes=10)
        await settle(lab, controller)
        await lab.client.patch(PODS, "notebook", MergePatch({"spec": {"schedulingGates": None}}), "lab")
        lab.clock.now += timedelta(seconds=WAIT_S - 1)
        await settle(lab, controller)
        assert await has_gpu(lab, "notebook")

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)
        assert not await has_gpu(lab, "notebook")


async def test_one_pod_that_fails_does_not_stop_the_others() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_full_lab(lab, replica)
        for name in ("a", "b"):
            await lab.pod(name, limits=WHOLE, annotations=HUB)
        lab.clock.now = NOON + timedelta(seconds=WAIT_S)
        controller = controller_on(replica)
        await catch_up(lab, replica)
        await lab.client.delete(PODS, "a", "lab", how=DeleteOptions(grace_seconds=0))  # the cache is old

        assert len(await controller.parts.cpu_after_wait.begin_due()) == 1


@pytest.mark.parametrize("crash_after", range(1, 8))
async def test_a_crash_after_any_write_leaves_exactly_one_pod_and_it_has_no_gpu(crash_after: int) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        async with lab.replica() as replica:
            await a_full_lab(lab, replica)
            await lab.pod("notebook", limits=WHOLE, annotations=HUB)
        lab.clock.now = NOON + timedelta(seconds=WAIT_S)
        async with lab.replica(Faulty(lab.api, FaultPlan(1, crash_after_write=crash_after))) as first:
            with contextlib.suppress(Crashed, BaseExceptionGroup):
                await settle(lab, controller_on(first))
        await end_deleted(lab)

        async with lab.replica() as second, lab.replica() as third:
            for replica in (second, third):
                await settle(lab, controller_on(replica))

        assert sorted(await pods_of(lab)) == ["busy", "notebook"]
        assert not await has_gpu(lab, "notebook") and not await hand_over_records(lab)
