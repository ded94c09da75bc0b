"""Hand-over to CPU of bare pods: whatever fails between two writes, no pod is lost and none is created twice."""

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.hand_over_record import Why
from carrel.kubernetes.cluster import ClusterError, DeleteOptions, Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import NAMESPACES, PODS, SECRETS
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.faults import Faulty
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.tiers import (
    OF_A_HUB,
    OPPORTUNISTIC,
    TierController,
    a_service_of,
    an_opportunistic_pod,
    an_owner,
    an_unschedulable_booked_pod,
    catch_up,
    end_deleted,
    event_reasons,
    hand_over_records,
    owners_of_services,
    pods_of,
    set_status,
    settle,
)


async def test_each_hand_over_is_counted_once_with_its_cause_and_its_outcome() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica)
        closed = controller.parts.hand_overs.closed
        await settle(lab, controller)
        assert closed == {(Why.REVOKED, HandOverResult.HANDED_OVER): 1}
        assert await controller.parts.hand_overs.advance("carrel-hand-over-gone") is HandOverResult.HANDED_OVER
        assert closed.total() == 1, "another replica has closed it, and counted it"


async def test_the_successor_is_the_same_pod_without_its_gpu() -> None:
    notes = {
        **OPPORTUNISTIC,
        "carrel.dev/gpu-count": "1",
        "carrel.dev/user": "ada@lab.org",
        "team": "vision",
    }
    container = {
        "name": "main",
        "image": "work",
        "command": ["train"],
        "resources": {"limits": {"cpu": "2"}},
        "env": [
            {
                "name": "NVIDIA_VISIBLE_DEVICES",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['carrel.dev/devices']"}},
            },
            {"name": "CUDA_VISIBLE_DEVICES", "value": "0"},
            {"name": "EPOCHS", "value": "90"},
        ],
    }
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train", annotations=notes, containers=[container], limits={})
        await an_unschedulable_booked_pod(lab, "urgent")

        await settle(lab, TierController(replica))

        successor = await lab.client.get(PODS, "train", "lab")
        assert successor["metadata"]["uid"] != train["metadata"]["uid"]
        mark = json.loads(successor["metadata"]["annotations"].pop("carrel.dev/handed-over"))
        assert mark == {"at": "2026-11-16T12:00:00Z", "why": "revoked", "from": train["metadata"]["uid"]}
        lost = successor["metadata"]["annotations"].pop("carrel.dev/notice")
        assert lost == "this pod lost its GPU at Mon 16 Nov 12:00 UTC for a booked pod; it runs without a GPU now"
        why = "the one that it had was needed for a booked pod on Mon 16 Nov 12:00 UTC"
        assert successor["metadata"]["annotations"] == {
            "team": "vision",
            "carrel.dev/user": "ada@lab.org",
            "carrel.dev/runs-without-gpu": f"this pod runs without a GPU: {why}",
            "carrel.dev/asked-for": '{"gpus": 1}',
        }
        assert "nodeName" not in successor["spec"]
        assert successor["spec"]["schedulerName"] == "default-scheduler"
        main = successor["spec"]["containers"][0]
        assert main["command"] == ["train"]
        assert main["resources"]["limits"] == {"cpu": "2"}
        assert main["env"] == [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": ""},
            {"name": "CUDA_VISIBLE_DEVICES", "value": ""},
            {"name": "EPOCHS", "value": "90"},
        ]
        assert await hand_over_records(lab) == []
        assert {"GPURevoked train", "HandedOverToCPU train"} <= set(await event_reasons(lab))
        record = f"/api/v1/namespaces/carrel/configmaps/handover-{train['metadata']['uid']}"
        touched = [write for write in replica.transport.writes if record in write]
        assert touched == [f"PUT {record}", f"DELETE {record}"], "it names the manifest, and then it is done"


# --- faults ----------------------------------------------------------------------------------------------------------


class RevocationRun:
    """One revocation, from a booked pod that waits until it is placed and its victim is handed over."""

    def __init__(self, lab: Lab, train: Json, urgent: Json) -> None:
        self.lab, self.train, self.urgent = lab, train, urgent

    async def run_controller(self, transport: Faulty, rounds: int = 12) -> None:
        """Runs a controller until it crashes or `rounds` have passed. What fails is tried again."""
        async with self.lab.replica(transport) as replica:
            controller = TierController(replica)
            for _ in range(rounds):
                with contextlib.suppress(ClusterError):
                    await controller.round()
                await self._kubelet()
                await asyncio.sleep(0.01)  # let the watches run

    async def _kubelet(self) -> None:
        for pod in (await pods_of(self.lab)).values():
            if pod.metadata.deletion_timestamp:
                only_it = DeleteOptions(uid=pod.metadata.uid, grace_seconds=0)
                await self.lab.client.delete(PODS, pod.metadata.name, "lab", how=only_it)

    async def check(self) -> None:
        async with self.lab.replica() as replica:
            await settle(self.lab, TierController(replica))
        pods = await pods_of(self.lab)
        assert pods.keys() == {"train", "urgent", "bystander"}, "no pod is lost, none is created twice"
        assert pods["urgent"].metadata.uid == self.urgent["metadata"]["uid"]
        assert pods["urgent"].spec.node_name
        assert not pods["urgent"].metadata.annotations.get("carrel.dev/handed-over")
        mark = json.loads(pods["train"].metadata.annotations["carrel.dev/handed-over"])
        assert mark["from"] == self.train["metadata"]["uid"], "it succeeds the pod itself, not another successor"
        assert "carrel.dev/handed-over" not in pods["bystander"].metadata.annotations, "no victim is superfluous"
        assert await owners_of_services(self.lab) == {"train": [pods["train"].metadata.uid]}, "its address leads to it"
        assert await hand_over_records(self.lab) == []


@contextlib.asynccontextmanager
async def a_revocation() -> Any:
    async with a_lab([a_node("n1", gpus=2)]) as lab:
        async with lab.replica() as replica:
            await an_opportunistic_pod(lab, replica, "bystander")
            lab.clock.now += timedelta(hours=1)
            train = await an_opportunistic_pod(lab, replica, "train", labels=OF_A_HUB)
            await a_service_of(lab, train)
        # A notebook has had its Service for a while: also the stalest list shows it.
        for number in range(FaultPlan(seed=0).stale_by):
            label = {"metadata": {"labels": {"number": str(number)}}}
            await lab.client.patch(NAMESPACES, "elsewhere", MergePatch(label))
        yield RevocationRun(lab, train, await an_unschedulable_booked_pod(lab, "urgent"))


async def writes_without_faults() -> int:
    async with a_revocation() as run:
        calm = Faulty(run.lab.api, FaultPlan(seed=0))
        await run.run_controller(calm)
        await run.check()
        return calm.writes


async def test_a_crash_after_any_write_loses_and_duplicates_nothing() -> None:
    writes = await writes_without_faults()
    assert writes >= 9, "keep, record, announce, manifest, its name, end, create, the Service, close"
    for number in range(1, writes + 1):
        async with a_revocation() as run:
            with contextlib.suppress(Crashed, BaseExceptionGroup):
                await run.run_controller(Faulty(run.lab.api, FaultPlan(seed=number, crash_after_write=number)))
            await run.check()


@pytest.mark.parametrize("seed", range(15))
async def test_refusals_lost_answers_and_stale_reads_lose_and_duplicate_nothing(seed: int) -> None:
    plan = FaultPlan(seed, refuse=0.2, lose_answer=0.2, stale_list=0.2, drop_watch=0.05, delay_event=0.2)
    async with a_revocation() as run:
        await run.run_controller(Faulty(run.lab.api, plan))
        await run.check()


@pytest.mark.parametrize("seed", range(10))
async def test_two_controllers_at_once_lose_and_duplicate_nothing(seed: int) -> None:
    async with a_revocation() as run:
        pair = [Faulty(run.lab.api, FaultPlan(seed * 2 + n, delay_event=0.3, lose_answer=0.1)) for n in range(2)]
        await asyncio.gather(*(run.run_controller(each) for each in pair), return_exceptions=False)
        await run.check()


# --- pods that change before their end --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def an_announced_end(**spec: Any) -> Any:
    """A victim whose end is announced, and that has ten minutes left."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train", **spec)
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica, grace_s=600)
        await catch_up(lab, replica)
        await controller.round()
        yield lab, replica, controller, train


async def test_a_victim_learns_when_it_will_end_and_runs_until_then() -> None:
    async with an_announced_end() as (lab, _, controller, train):
        assert (await lab.annotations("train"))["carrel.dev/leave-by"] == "2026-11-16T12:10:00Z"
        lab.clock.now += timedelta(minutes=9, seconds=59)
        await settle(lab, controller)
        assert (await pods_of(lab))["train"].metadata.uid == train["metadata"]["uid"]

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)

        assert (await pods_of(lab))["train"].metadata.uid != train["metadata"]["uid"]
        assert controller.results == [HandOverResult.HANDED_OVER]


async def test_the_successor_is_the_pod_as_it_was_at_its_end() -> None:
    """Meanwhile somebody gave it another image and a label. A pod that is resized in place changes in this way too."""
    async with an_announced_end() as (lab, _, controller, train):
        updated = [{**train["spec"]["containers"][0], "image": "work:2"}]
        changed = {"spec": {"containers": updated}, "metadata": {"labels": {"stage": "late"}}}
        await lab.client.patch(PODS, "train", MergePatch(changed), "lab")

        lab.clock.now += timedelta(minutes=10)
        await settle(lab, controller)

        successor = await lab.client.get(PODS, "train", "lab")
        assert successor["metadata"]["uid"] != train["metadata"]["uid"]
        assert successor["spec"]["containers"][0]["image"] == "work:2"
        assert successor["metadata"]["labels"] == {"stage": "late"}
        assert controller.results == [HandOverResult.HANDED_OVER]


async def test_a_victim_that_a_booking_covered_for_a_while_is_a_victim_again_when_that_is_cancelled() -> None:
    eve = {**OPPORTUNISTIC, "carrel.dev/user": "eve@lab.example"}
    async with an_announced_end(annotations=eve) as (lab, _, controller, train):
        await lab.book("eve@lab.example")
        await settle(lab, controller)
        assert controller.results == [HandOverResult.CALLED_OFF]
        assert "carrel.dev/leave-by" not in await lab.annotations("train")

        await lab.client.delete(BOOKINGS, "booking-eve")
        await settle(lab, controller)
        lab.clock.now += timedelta(minutes=10)
        await settle(lab, controller)

        assert (await pods_of(lab))["train"].metadata.uid != train["metadata"]["uid"]
        assert controller.results == [HandOverResult.CALLED_OFF, HandOverResult.HANDED_OVER]


async def test_a_pod_that_lost_its_controller_meanwhile_is_created_again_by_carrel() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train", owner=await an_owner(lab))
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica, grace_s=600)
        await catch_up(lab, replica)
        await controller.round()
        await lab.client.patch(PODS, "train", MergePatch({"metadata": {"ownerReferences": None}}), "lab")

        lab.clock.now += timedelta(minutes=10)
        await settle(lab, controller)

        mark = json.loads((await lab.annotations("train"))["carrel.dev/handed-over"])
        assert mark["from"] == train["metadata"]["uid"]
        assert await hand_over_records(lab) == []


async def test_a_pod_that_its_user_deletes_before_its_end_gets_no_successor() -> None:
    async with an_announced_end() as (lab, _, controller, __):
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))

        await settle(lab, controller)

        pods = await pods_of(lab)
        assert pods.keys() == {"urgent"}
        assert pods["urgent"].spec.node_name == "n1"
        assert controller.results == [HandOverResult.LEFT]


async def test_a_pod_that_finishes_before_its_end_is_not_run_again() -> None:
    async with an_announced_end() as (lab, _, controller, train):
        await set_status(lab, "train", {"phase": "Succeeded"})

        await settle(lab, controller)

        pods = await pods_of(lab)
        assert pods["train"].metadata.uid == train["metadata"]["uid"]
        assert pods["urgent"].spec.node_name == "n1"


@pytest.mark.parametrize(
    ("asked", "given"), [(30, 30), (300, 300), (31_536_000, 300)], ids=["half a minute", "the limit", "a year"]
)
async def test_a_victim_gets_its_termination_grace_period_up_to_a_limit(asked: int, given: int) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train", grace_seconds=asked)
        await an_unschedulable_booked_pod(lab, "urgent")
        await catch_up(lab, replica)

        await TierController(replica).round()

        assert (await lab.client.get(PODS, "train", "lab"))["metadata"]["deletionGracePeriodSeconds"] == given


async def test_a_negative_grace_period_that_an_old_api_server_accepted_breaks_no_round() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train")
        await an_unschedulable_booked_pod(lab, "urgent")
        read = replica.cluster.get

        async def with_negative_grace(*arguments: Any, **more: Any) -> Json:
            found = await read(*arguments, **more)
            if arguments[:2] == (PODS, "train") and found["metadata"]["uid"] == train["metadata"]["uid"]:
                found["spec"]["terminationGracePeriodSeconds"] = -1
            return found

        replica.cluster.get = with_negative_grace  # type: ignore[method-assign] # the embedded API accepts none
        controller = TierController(replica)
        await settle(lab, controller)

        successor = await lab.client.get(PODS, "train", "lab")
        assert successor["metadata"]["uid"] != train["metadata"]["uid"]
        assert successor["spec"]["terminationGracePeriodSeconds"] == 1
        assert controller.results == [HandOverResult.HANDED_OVER]


async def test_nobody_keeps_a_gpu_by_changing_the_pod_all_the_time() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train")
        await an_unschedulable_booked_pod(lab, "urgent")
        await catch_up(lab, replica)
        controller, changes = TierController(replica), 0
        delete = replica.cluster.delete

        async def deleted_too_late(*arguments: Any, **more: Any) -> Any:
            nonlocal changes
            if arguments[1] == "train":
                changes += 1
                await lab.client.patch(PODS, "train", MergePatch({"metadata": {"labels": {"n": str(changes)}}}), "lab")
            return await delete(*arguments, **more)

        replica.cluster.delete = deleted_too_late  # type: ignore[method-assign] # its owner is always faster
        for _ in range(20):
            await controller.round()
            await end_deleted(lab)

        kept = (await lab.client.list(SECRETS, Selection("carrel"))).items
        assert (await lab.client.get(PODS, "train", "lab"))["metadata"]["uid"] != train["metadata"]["uid"]
        assert changes <= 7 and len(kept) <= 7


async def test_a_pod_whose_annotations_are_full_is_ended_all_the_same() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train")
        used = sum(len(key) + len(value) for key, value in train["metadata"]["annotations"].items())
        full = {"filler": "x" * (256 * 1024 - used - len("filler"))}
        await lab.client.patch(PODS, "train", MergePatch({"metadata": {"annotations": full}}), "lab")
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica, grace_s=60)
        await settle(lab, controller)
        lab.clock.now += timedelta(minutes=2)

        await settle(lab, controller)

        assert "train" not in await pods_of(lab), "what Carrel has to write on a successor does not fit"
        assert controller.results == [HandOverResult.UNWANTED]
        assert "NotHandedOver train" in await event_reasons(lab)


async def test_a_pod_that_somebody_else_created_under_the_name_is_left_alone() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train")
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica)
        await catch_up(lab, replica)
        await controller.round()
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        mine = await lab.pod("train")

        await settle(lab, controller)

        assert (await pods_of(lab))["train"].metadata.uid == mine["metadata"]["uid"]
        assert controller.results == [HandOverResult.TAKEN]
