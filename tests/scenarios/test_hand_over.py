"""Hand-over to CPU: whatever goes wrong between two writes, no workload is lost and none is doubled."""

import asyncio
import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest

from carrel.kubernetes.cluster import ClusterError, DeleteOptions, Json, MergePatch, Selection
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CONFIG_MAPS, EVENTS, PODS, Resource
from carrel.lifecycle.hand_over import HandOverResult
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.faults import Faulty
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    OPPORTUNISTIC,
    TierController,
    an_opportunistic_pod,
    an_owner,
    an_unschedulable_booked_pod,
    catch_up,
    pods_of,
    set_status,
    settle,
)

BUDGETS = Resource(Object, "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


async def records(lab: Lab) -> list[str]:
    return [each.metadata.name for each in (await lab.client.list(CONFIG_MAPS, Selection("carrel"))).items]


async def events(lab: Lab) -> list[str]:
    return [
        f"{each.reason} {each.involved_object.name}" for each in (await lab.client.list(EVENTS, Selection("lab"))).items
    ]


async def test_the_successor_is_the_same_pod_without_its_gpu() -> None:
    notes = {
        **OPPORTUNISTIC,
        "carrel.dev/gpu-cards": "1",
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
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train", annotations=notes, containers=[container], limits={})
        await an_unschedulable_booked_pod(lab, "urgent")

        await settle(lab, TierController(replica))

        successor = await lab.client.get(PODS, "train", "lab")
        assert successor["metadata"]["uid"] != train["metadata"]["uid"]
        mark = json.loads(successor["metadata"]["annotations"].pop("carrel.dev/handed-over"))
        assert mark == {"at": "2026-11-16T12:00:00Z", "why": "revoked", "from": train["metadata"]["uid"]}
        assert successor["metadata"]["annotations"] == {"team": "vision"}
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
        assert await records(lab) == []
        assert {"GPURevoked train", "HandedOverToCPU train"} <= set(await events(lab))
        record = f"/api/v1/namespaces/carrel/configmaps/handover-{train['metadata']['uid']}"
        touched = [write for write in replica.transport.writes if record in write]
        assert touched == [f"DELETE {record}"], "nothing has changed since it was written"


# --- what goes wrong -------------------------------------------------------------------------------------------------


class Story:
    """One revocation, from a booked pod that waits to both pods being served."""

    def __init__(self, lab: Lab, train: Json, urgent: Json) -> None:
        self.lab, self.train, self.urgent = lab, train, urgent

    async def live(self, transport: Faulty, rounds: int = 12) -> None:
        """A controller, until it dies or `rounds` have passed. What fails is tried again."""
        async with self.lab.replica(transport) as replica:
            controller = TierController(replica)
            for _ in range(rounds):
                with contextlib.suppress(ClusterError):
                    await controller.round()
                await self._kubelet()
                await asyncio.sleep(0.01)  # the watches have their turn

    async def _kubelet(self) -> None:
        for pod in (await pods_of(self.lab)).values():
            if pod.metadata.deletion_timestamp:
                only_it = DeleteOptions(uid=pod.metadata.uid, grace_seconds=0)
                await self.lab.client.delete(PODS, pod.metadata.name, "lab", how=only_it)

    async def ends_well(self) -> None:
        async with self.lab.replica() as replica:
            await settle(self.lab, TierController(replica))
        pods = await pods_of(self.lab)
        assert pods.keys() == {"train", "urgent", "bystander"}, "no workload is lost, none is doubled"
        assert pods["urgent"].metadata.uid == self.urgent["metadata"]["uid"]
        assert pods["urgent"].spec.node_name
        assert not pods["urgent"].metadata.annotations.get("carrel.dev/handed-over")
        mark = json.loads(pods["train"].metadata.annotations["carrel.dev/handed-over"])
        assert mark["from"] == self.train["metadata"]["uid"], "a successor of the pod itself, not of a successor"
        assert "carrel.dev/handed-over" not in pods["bystander"].metadata.annotations, "no victim is superfluous"
        assert await records(self.lab) == []


@contextlib.asynccontextmanager
async def a_story() -> Any:
    async with a_lab([a_node("n1", cards=2)]) as lab:
        async with lab.replica() as replica:
            await an_opportunistic_pod(lab, replica, "bystander")
            lab.clock.now += timedelta(hours=1)
            train = await an_opportunistic_pod(lab, replica, "train")
        yield Story(lab, train, await an_unschedulable_booked_pod(lab, "urgent"))


async def writes_of_a_good_day() -> int:
    async with a_story() as story:
        calm = Faulty(story.lab.api, FaultPlan(seed=0))
        await story.live(calm)
        await story.ends_well()
        return calm.writes


async def test_a_crash_after_any_write_loses_and_doubles_nothing() -> None:
    writes = await writes_of_a_good_day()
    assert writes >= 6, "kept, intended, told, ended, created, closed"
    for number in range(1, writes + 1):
        async with a_story() as story:
            with contextlib.suppress(Crashed, ExceptionGroup):
                await story.live(Faulty(story.lab.api, FaultPlan(seed=number, crash_after_write=number)))
            await story.ends_well()


@pytest.mark.parametrize("seed", range(15))
async def test_refusals_lost_answers_and_stale_reads_lose_and_double_nothing(seed: int) -> None:
    plan = FaultPlan(seed, refuse=0.2, lose_answer=0.2, stale_list=0.2, drop_watch=0.05, delay_event=0.2)
    async with a_story() as story:
        await story.live(Faulty(story.lab.api, plan))
        await story.ends_well()


@pytest.mark.parametrize("seed", range(10))
async def test_two_controllers_at_once_lose_and_double_nothing(seed: int) -> None:
    async with a_story() as story:
        pair = [Faulty(story.lab.api, FaultPlan(seed * 2 + n, delay_event=0.3, lose_answer=0.1)) for n in range(2)]
        await asyncio.gather(*(story.live(each) for each in pair), return_exceptions=False)
        await story.ends_well()


# --- pods that are not just gone --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def an_announced_end(**spec: Any) -> Any:
    """A victim that has been told, and has ten minutes left."""
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        train = await an_opportunistic_pod(lab, replica, "train", **spec)
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica, grace_s=600)
        await catch_up(lab, replica)
        await controller.round()
        yield lab, replica, controller, train


async def test_a_victim_is_told_when_it_has_to_leave_and_has_until_then() -> None:
    async with an_announced_end() as (lab, _, controller, train):
        assert (await lab.annotations("train"))["carrel.dev/leave-by"] == "2026-11-16T12:10:00Z"
        lab.clock.now += timedelta(minutes=9, seconds=59)
        await settle(lab, controller)
        assert (await pods_of(lab))["train"].metadata.uid == train["metadata"]["uid"]

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)

        assert (await pods_of(lab))["train"].metadata.uid != train["metadata"]["uid"]
        assert controller.results == [HandOverResult.HANDED_OVER]


async def test_the_successor_is_the_pod_as_it_was_in_the_end_not_as_it_was_told() -> None:
    """In the meantime somebody gave it another image, and a label. A pod that is resized in place changes like that."""
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


async def test_a_pod_that_its_controller_has_let_go_of_meanwhile_is_brought_back_by_us() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
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
        assert await records(lab) == []


async def test_a_pod_that_its_user_deletes_before_it_has_to_leave_does_not_come_back() -> None:
    async with an_announced_end() as (lab, _, controller, __):
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))

        await settle(lab, controller)

        pods = await pods_of(lab)
        assert pods.keys() == {"urgent"}
        assert pods["urgent"].spec.node_name == "n1"
        assert controller.results == [HandOverResult.LEFT]


async def test_a_pod_that_finishes_before_it_has_to_leave_is_not_run_again() -> None:
    async with an_announced_end() as (lab, _, controller, train):
        await set_status(lab, "train", {"phase": "Succeeded"})

        await settle(lab, controller)

        pods = await pods_of(lab)
        assert pods["train"].metadata.uid == train["metadata"]["uid"]
        assert pods["urgent"].spec.node_name == "n1"


@pytest.mark.parametrize(
    ("asked", "given"), [(30, 30), (300, 300), (31_536_000, 300)], ids=["a while", "the longest", "a year"]
)
async def test_a_victim_has_the_time_it_asks_for_to_end_but_not_for_ever(asked: int, given: int) -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "train", grace_seconds=asked)
        await an_unschedulable_booked_pod(lab, "urgent")
        await catch_up(lab, replica)

        await TierController(replica).round()

        assert (await lab.client.get(PODS, "train", "lab"))["metadata"]["deletionGracePeriodSeconds"] == given


async def test_a_name_that_somebody_took_meanwhile_is_left_alone() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
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


# --- pods that have a controller --------------------------------------------------------------------------------------


async def an_owned_victim(lab: Lab, replica: Replica) -> tuple[Json, TierController]:
    pod = await an_opportunistic_pod(lab, replica, "rs-1", owner=await an_owner(lab), labels={"app": "rs"})
    await set_status(lab, "rs-1", {"conditions": [{"type": "Ready", "status": "True"}]})
    await an_unschedulable_booked_pod(lab, "urgent")
    await catch_up(lab, replica)
    return pod, TierController(replica)


async def test_a_pod_with_a_controller_is_evicted_and_its_replacement_is_the_controllers() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)

        await settle(lab, controller)

        assert (await pods_of(lab)).keys() == {"urgent"}
        record = await lab.client.get(CONFIG_MAPS, f"handover-{pod['metadata']['uid']}", "carrel")
        assert record["metadata"]["labels"] == {"carrel.dev/handover": "owned"}
        assert record["data"]["owner"] == pod["metadata"]["ownerReferences"][0]["uid"], (
            "by which the webhook knows its next pod"
        )
        assert "successor" not in record["data"]

        await replace_it(lab, pod)
        await settle(lab, controller)

        assert await records(lab) == []


async def replace_it(lab: Lab, pod: Json, name: str = "rs-2") -> None:
    """As its controller does, and the webhook, which writes on the new pod whom it replaces."""
    mark = {"at": "2026-11-16T12:00:00Z", "why": "revoked", "from": pod["metadata"]["uid"]}
    notes = {"carrel.dev/handed-over": json.dumps(mark)}
    await lab.pod(name, annotations=notes, owner=pod["metadata"]["ownerReferences"][0])


async def test_a_controller_that_does_not_replace_its_pod_is_not_waited_for_for_ever() -> None:
    """A Job that was suspended at that moment, say."""
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        _, controller = await an_owned_victim(lab, replica)
        await settle(lab, controller)

        lab.clock.now += timedelta(minutes=9, seconds=59)
        await settle(lab, controller)
        assert await records(lab) != []

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)

        assert await records(lab) == []
        assert controller.results == [HandOverResult.UNWANTED]


async def test_a_job_that_replaces_its_pod_before_it_is_gone_is_done_with_at_once() -> None:
    """As `podReplacementPolicy: TerminatingOrFailed` has it. Its next pod is none of the successors."""
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)
        await controller.round()
        assert (await pods_of(lab))["rs-1"].metadata.deletion_timestamp

        await replace_it(lab, pod)
        await catch_up(lab, replica)
        await controller.round()

        assert "rs-1" in await pods_of(lab), "it is still going"
        assert await records(lab) == []
        assert controller.results == [HandOverResult.HANDED_OVER]


async def test_a_pod_that_a_budget_held_for_hours_is_replaced_as_late_as_that() -> None:
    """As `podReplacementPolicy: Failed` has it: the Job waits until the pod is gone, and then a while longer."""
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        pod, controller = await an_owned_victim(lab, replica)
        await settle(lab, controller)
        lab.clock.now += timedelta(hours=3)
        await lab.client.delete(BUDGETS, "all", "lab")
        await settle(lab, controller)
        assert (await pods_of(lab)).keys() == {"urgent"}

        lab.clock.now += timedelta(minutes=6)
        await settle(lab, controller)
        assert await records(lab) != [], "the webhook must know the Job's next pod"

        await replace_it(lab, pod)
        await settle(lab, controller)
        assert await records(lab) == []
        assert controller.results == [HandOverResult.HANDED_OVER]


async def successions(lab: Lab) -> dict[str, str]:
    """uid of a pod that lost its card → the name of its successor."""
    notes = {name: pod.metadata.annotations.get("carrel.dev/handed-over") for name, pod in (await pods_of(lab)).items()}
    return {json.loads(mark)["from"]: name for name, mark in notes.items() if mark}


async def test_two_pods_of_one_job_at_once_have_two_successors_though_the_webhook_names_one_of_them_twice() -> None:
    async with a_lab([a_node("n1", cards=2)]) as lab, lab.replica() as replica:
        owner = await an_owner(lab)
        first, second = [await an_opportunistic_pod(lab, replica, f"job-{number}", owner=owner) for number in range(2)]
        for name in ("urgent-1", "urgent-2"):
            await an_unschedulable_booked_pod(lab, name)
        controller = TierController(replica)
        await settle(lab, controller)
        assert len(await records(lab)) == 2

        for name in ("job-2", "job-3"):
            await replace_it(lab, first, name)
        await settle(lab, controller)

        assert await successions(lab) == {first["metadata"]["uid"]: "job-2", second["metadata"]["uid"]: "job-3"}
        assert await records(lab) == []


async def test_siblings_that_keep_their_gpu_are_nobodys_successors() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)
        await settle(lab, controller)

        for name in ("x", "y"):
            await lab.pod(name, owner=pod["metadata"]["ownerReferences"][0])
        await settle(lab, controller)

        assert await successions(lab) == {}
        assert await records(lab) == [f"handover-{pod['metadata']['uid']}"]


@pytest.mark.parametrize("whose", ["an older pod", "another controller's pod"])
async def test_nobody_is_taken_for_a_successor_who_is_none(whose: str) -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)
        stranger = {"metadata": {"uid": "somebody-else", "ownerReferences": pod["metadata"]["ownerReferences"]}}
        if whose == "another controller's pod":
            uid = (await pods_of(lab))["urgent"].metadata.uid  # somebody whom there is
            another = {"apiVersion": "v1", "kind": "Pod", "name": "urgent", "uid": uid, "controller": True}
            stranger["metadata"]["ownerReferences"] = [another]
        for name in ("x", "y"):
            await replace_it(lab, stranger, name)
        if whose == "an older pod":
            lab.clock.now += timedelta(seconds=1)

        await settle(lab, controller)

        assert set(await successions(lab)) == {"somebody-else"}
        assert await records(lab) == [f"handover-{pod['metadata']['uid']}"]


@pytest.mark.parametrize("phase", ["announced", "ending"])
async def test_a_pod_that_its_job_deletes_because_it_is_suspended(phase: str) -> None:
    """Before its end it has left by itself. After that nobody can tell the one from the other."""
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        await an_owned_victim(lab, replica)
        controller = TierController(replica, grace_s=600 if phase == "announced" else 0)
        await controller.round()
        await lab.client.delete(PODS, "rs-1", "lab", how=DeleteOptions(grace_seconds=0))

        await settle(lab, controller)
        assert controller.results == ([HandOverResult.LEFT] if phase == "announced" else [])

        lab.clock.now += timedelta(minutes=10)
        await settle(lab, controller)
        assert await records(lab) == []
        assert (await pods_of(lab)).keys() == {"urgent"}


async def test_the_end_of_a_booking_waits_for_no_budget_and_its_replacement_is_awaited_also_when_it_comes_late() -> (
    None
):
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        over = {"carrel.dev/tier": "booked", "terminate-at": "2026-11-16T09:00:00Z"}  # nobody was there to end it
        pod = await an_opportunistic_pod(
            lab, replica, "rs-1", owner=await an_owner(lab), labels={"app": "rs"}, annotations=over
        )

        await settle(lab, TierController(replica))

        assert await pods_of(lab) == {}
        assert await records(lab) == [f"handover-{pod['metadata']['uid']}"]


@pytest.mark.parametrize("why", ["revoked", "expired"])
async def test_a_pod_of_a_controller_is_evicted_so_that_a_job_can_tell(why: str) -> None:
    """Who is evicted gets the condition DisruptionTarget, which a Job's `podFailurePolicy` can let pass."""
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        over = {"carrel.dev/tier": "booked", "terminate-at": "2026-11-16T09:00:00Z"}
        notes = over if why == "expired" else OPPORTUNISTIC
        await an_opportunistic_pod(lab, replica, "rs-1", owner=await an_owner(lab), annotations=notes)
        if why == "revoked":
            await an_unschedulable_booked_pod(lab, "urgent")
        await catch_up(lab, replica)

        await TierController(replica).round()

        writes = [each for each in replica.transport.writes if "/pods/rs-1" in each]
        assert writes[-1] == "POST /api/v1/namespaces/lab/pods/rs-1/eviction"
        assert (await pods_of(lab))["rs-1"].metadata.deletion_timestamp


async def forbid_evictions(lab: Lab) -> None:
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"}}
    selector = {"matchLabels": {"app": "rs"}}
    await lab.client.create(BUDGETS, {**budget, "spec": {"minAvailable": 1, "selector": selector}}, "lab")


async def test_a_disruption_budget_is_waited_for_and_the_pod_says_so() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        pod, controller = await an_owned_victim(lab, replica)

        await settle(lab, controller)
        assert (await pods_of(lab))["rs-1"].metadata.uid == pod["metadata"]["uid"]
        assert "RevocationHeldUp rs-1" in await events(lab)
        card = replica.ledger.card("GPU-n1-0")
        assert card and card.kept_for and card.kept_for.full_name == "lab/urgent", "nobody else gets it meanwhile"

        await lab.client.delete(BUDGETS, "all", "lab")
        await settle(lab, controller)

        assert (await pods_of(lab))["urgent"].spec.node_name == "n1"
