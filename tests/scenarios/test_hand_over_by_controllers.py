"""Hand-over to CPU of pods that have a controller: they are evicted, and their controller replaces them."""

import json
from datetime import timedelta

import pytest

from carrel.ids import GpuUuid
from carrel.kubernetes.cluster import DeleteOptions, Json
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS, Resource
from carrel.lifecycle.handing_over.hand_over import HandOverResult
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    OPPORTUNISTIC,
    TierController,
    an_opportunistic_pod,
    an_owner,
    an_unschedulable_booked_pod,
    catch_up,
    event_reasons,
    hand_over_records,
    pods_of,
    set_status,
    settle,
)

BUDGETS = Resource(Object, "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
EXPIRED = {"terminate-at": "2026-11-16T09:00:00Z"}


async def an_owned_victim(lab: Lab, replica: Replica) -> tuple[Json, TierController]:
    pod = await an_opportunistic_pod(lab, replica, "rs-1", owner=await an_owner(lab), labels={"app": "rs"})
    await set_status(lab, "rs-1", {"conditions": [{"type": "Ready", "status": "True"}]})
    await an_unschedulable_booked_pod(lab, "urgent")
    await catch_up(lab, replica)
    return pod, TierController(replica)


async def test_a_pod_with_a_controller_is_evicted_and_the_controller_replaces_it() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)

        await settle(lab, controller)

        assert (await pods_of(lab)).keys() == {"urgent"}
        record = await lab.client.get(CONFIG_MAPS, f"handover-{pod['metadata']['uid']}", "carrel")
        assert record["metadata"]["labels"] == {"carrel.dev/handover": "owned"}
        assert record["data"]["owner"] == pod["metadata"]["ownerReferences"][0]["uid"], (
            "by it the webhook recognises the replacement"
        )
        assert "successor" not in record["data"]

        await create_replacement(lab, pod)
        await settle(lab, controller)

        assert await hand_over_records(lab) == []


async def create_replacement(lab: Lab, pod: Json, name: str = "rs-2") -> None:
    """As the controller does, and the webhook, which writes on the new pod which pod it succeeds."""
    mark = {"at": "2026-11-16T12:00:00Z", "why": "revoked", "from": pod["metadata"]["uid"]}
    notes = {"carrel.dev/handed-over": json.dumps(mark)}
    await lab.pod(name, annotations=notes, owner=pod["metadata"]["ownerReferences"][0])


async def test_a_hand_over_ends_if_the_controller_does_not_replace_the_pod() -> None:
    """For example, a Job that was suspended at that moment."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        _, controller = await an_owned_victim(lab, replica)
        await settle(lab, controller)

        lab.clock.now += timedelta(minutes=9, seconds=59)
        await settle(lab, controller)
        assert await hand_over_records(lab) != []

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)

        assert await hand_over_records(lab) == []
        assert controller.results == [HandOverResult.UNWANTED]


async def test_a_hand_over_ends_at_once_if_the_job_replaces_its_pod_early() -> None:
    """With `podReplacementPolicy: TerminatingOrFailed`. The next pod of the Job is no successor."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)
        await controller.round()
        assert (await pods_of(lab))["rs-1"].metadata.deletion_timestamp

        await create_replacement(lab, pod)
        await catch_up(lab, replica)
        await controller.round()

        assert "rs-1" in await pods_of(lab), "it is still terminating"
        assert await hand_over_records(lab) == []
        assert controller.results == [HandOverResult.HANDED_OVER]


async def test_a_pod_that_a_budget_protected_for_hours_still_gets_its_replacement() -> None:
    """With `podReplacementPolicy: Failed`: the Job waits until the pod is gone, and then a while longer."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        pod, controller = await an_owned_victim(lab, replica)
        await settle(lab, controller)
        lab.clock.now += timedelta(hours=3)
        await lab.client.delete(BUDGETS, "all", "lab")
        await settle(lab, controller)
        assert (await pods_of(lab)).keys() == {"urgent"}

        lab.clock.now += timedelta(minutes=6)
        await settle(lab, controller)
        assert await hand_over_records(lab) != [], "the webhook must know the Job's next pod"

        await create_replacement(lab, pod)
        await settle(lab, controller)
        assert await hand_over_records(lab) == []
        assert controller.results == [HandOverResult.HANDED_OVER]


async def successions(lab: Lab) -> dict[str, str]:
    """uid of a pod that lost its GPU → the name of its successor."""
    notes = {name: pod.metadata.annotations.get("carrel.dev/handed-over") for name, pod in (await pods_of(lab)).items()}
    return {json.loads(mark)["from"]: name for name, mark in notes.items() if mark}


async def test_two_pods_of_one_job_get_two_successors_although_the_webhook_names_one_pod_twice() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        owner = await an_owner(lab)
        first, second = [await an_opportunistic_pod(lab, replica, f"job-{number}", owner=owner) for number in range(2)]
        for name in ("urgent-1", "urgent-2"):
            await an_unschedulable_booked_pod(lab, name)
        controller = TierController(replica)
        await settle(lab, controller)
        assert len(await hand_over_records(lab)) == 2

        for name in ("job-2", "job-3"):
            await create_replacement(lab, first, name)
        await settle(lab, controller)

        assert await successions(lab) == {first["metadata"]["uid"]: "job-2", second["metadata"]["uid"]: "job-3"}
        assert await hand_over_records(lab) == []


async def test_pods_of_the_same_job_that_keep_their_gpu_are_no_successors() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)
        await settle(lab, controller)

        for name in ("x", "y"):
            await lab.pod(name, owner=pod["metadata"]["ownerReferences"][0])
        await settle(lab, controller)

        assert await successions(lab) == {}
        assert await hand_over_records(lab) == [f"handover-{pod['metadata']['uid']}"]


@pytest.mark.parametrize("whose", ["an older pod", "another controller's pod"])
async def test_a_pod_that_succeeds_no_pod_does_not_end_a_hand_over(whose: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod, controller = await an_owned_victim(lab, replica)
        stranger = {"metadata": {"uid": "somebody-else", "ownerReferences": pod["metadata"]["ownerReferences"]}}
        if whose == "another controller's pod":
            uid = (await pods_of(lab))["urgent"].metadata.uid  # it must exist
            another = {"apiVersion": "v1", "kind": "Pod", "name": "urgent", "uid": uid, "controller": True}
            stranger["metadata"]["ownerReferences"] = [another]
        for name in ("x", "y"):
            await create_replacement(lab, stranger, name)
        if whose == "an older pod":
            lab.clock.now += timedelta(seconds=1)

        await settle(lab, controller)

        assert set(await successions(lab)) == {"somebody-else"}
        assert await hand_over_records(lab) == [f"handover-{pod['metadata']['uid']}"]


@pytest.mark.parametrize("phase", ["announced", "ending"])
async def test_a_pod_that_its_suspended_job_deletes_gets_no_successor(phase: str) -> None:
    """Before its announced end it ended by itself. Later, that cannot be told from an end by Carrel."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_owned_victim(lab, replica)
        controller = TierController(replica, grace_s=600 if phase == "announced" else 0)
        await controller.round()
        await lab.client.delete(PODS, "rs-1", "lab", how=DeleteOptions(grace_seconds=0))

        await settle(lab, controller)
        assert controller.results == ([HandOverResult.LEFT] if phase == "announced" else [])

        lab.clock.now += timedelta(minutes=10)
        await settle(lab, controller)
        assert await hand_over_records(lab) == []
        assert (await pods_of(lab)).keys() == {"urgent"}


async def test_the_end_of_a_booking_ignores_budgets_and_a_late_replacement_counts() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        pod = await an_opportunistic_pod(
            lab, replica, "rs-1", owner=await an_owner(lab), labels={"app": "rs"}, annotations=EXPIRED
        )

        await settle(lab, TierController(replica))

        assert await pods_of(lab) == {}
        assert await hand_over_records(lab) == [f"handover-{pod['metadata']['uid']}"]


@pytest.mark.parametrize("why", ["revoked", "expired"])
async def test_a_pod_of_a_controller_is_evicted_so_that_a_job_sees_a_disruption(why: str) -> None:
    """An evicted pod gets the condition DisruptionTarget, which a Job's `podFailurePolicy` can ignore."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        notes = EXPIRED if why == "expired" else OPPORTUNISTIC
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


async def test_a_revocation_waits_for_a_disruption_budget_and_writes_an_event() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        pod, controller = await an_owned_victim(lab, replica)

        await settle(lab, controller)
        assert (await pods_of(lab))["rs-1"].metadata.uid == pod["metadata"]["uid"]
        assert "RevocationHeldUp rs-1" in await event_reasons(lab)
        entry = replica.ledger.entry(GpuUuid("GPU-n1-0"))
        assert entry and entry.kept_for and entry.kept_for.name == "urgent", "no other pod gets it meanwhile"

        await lab.client.delete(BUDGETS, "all", "lab")
        await settle(lab, controller)

        assert (await pods_of(lab))["urgent"].spec.node_name == "n1"
