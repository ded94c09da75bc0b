"""Nobody keeps a GPU by ending slowly: grace periods, finalizers and disruption budgets have bounds."""

import contextlib
from datetime import timedelta

import pytest

from carrel.ids import GpuUuid
from carrel.kubernetes.cluster import ClusterError, DeleteOptions, Forbidden, Json, MergePatch
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import PODS, Resource
from carrel.lifecycle.handing_over.successors import real_controller_of
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    OPPORTUNISTIC,
    TierController,
    a_booked_pod,
    an_opportunistic_pod,
    an_owner,
    an_unschedulable_booked_pod,
    catch_up,
    event_reasons,
    hand_over_records,
    pods_of,
    schedule,
    set_status,
    settle,
)

A_YEAR_S = 365 * 24 * 3600
BUDGETS = Resource(Object, "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
JOBS = Resource(Object, "batch", "v1", "jobs", "Job")


def of(person: str) -> dict[str, str]:
    return {**OPPORTUNISTIC, "carrel.dev/user": f"{person}@lab.example"}


async def delete_slowly(lab: Lab, name: str, grace_s: int = A_YEAR_S) -> None:
    await lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=grace_s))


async def a_round(lab: Lab, controller: TierController, seconds: float = 0) -> None:
    lab.clock.now += timedelta(seconds=seconds)
    await catch_up(lab, controller.replica)
    await controller.round()
    await catch_up(lab, controller.replica)


async def grace_of(lab: Lab, name: str) -> int:
    found: int = (await lab.client.get(PODS, name, "lab"))["metadata"]["deletionGracePeriodSeconds"]
    return found


# --- grace periods ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace_s", [A_YEAR_S, 10**11, 2**62], ids=["a year", "before all years", "after all years"])
async def test_a_pod_told_to_end_within_a_year_or_more_is_warned_and_then_deleted_again(grace_s: int) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "sleepy", grace_seconds=grace_s)
        await delete_slowly(lab, "sleepy", grace_s)
        controller = TierController(replica)

        await a_round(lab, controller)
        assert "GPUPodEndsSlowly sleepy" in await event_reasons(lab)
        await a_round(lab, controller, 299)
        assert await grace_of(lab, "sleepy") == grace_s, "it has five minutes"
        await a_round(lab, controller, 1)

        assert await grace_of(lab, "sleepy") == 30


async def test_whoever_comes_late_warns_first() -> None:
    """Also after a crash right after the warning: the next leader does not know of it."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "sleepy")
        await delete_slowly(lab, "sleepy")
        lab.clock.now += timedelta(hours=1)
        for _ in range(2):
            controller = TierController(replica)
            await a_round(lab, controller)
            assert await grace_of(lab, "sleepy") == A_YEAR_S
        await a_round(lab, controller, 29)
        assert await grace_of(lab, "sleepy") == A_YEAR_S
        await a_round(lab, controller, 1)

        assert await grace_of(lab, "sleepy") == 30


@pytest.mark.parametrize("whose", ["a booked pod", "a pod of an exempt namespace", "a pod with a usual grace period"])
async def test_others_end_in_their_own_time(whose: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        if whose == "a booked pod":
            await a_booked_pod(lab, replica, "sleepy")
        else:
            notes = {} if "exempt" in whose else OPPORTUNISTIC
            await an_opportunistic_pod(lab, replica, "sleepy", annotations=notes)
        given = 300 if "usual" in whose else A_YEAR_S
        await delete_slowly(lab, "sleepy", given)
        controller = TierController(replica)
        for _ in range(3):
            await a_round(lab, controller, 3600)

        assert await grace_of(lab, "sleepy") == given
        assert "GPUPodEndsSlowly sleepy" not in await event_reasons(lab)


async def test_a_pod_that_is_deleted_again_is_replaced_by_nobody() -> None:
    """Its owner had deleted it: it does not come back without a GPU."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "sleepy")
        await delete_slowly(lab, "sleepy")
        controller = TierController(replica)
        await a_round(lab, controller)
        await a_round(lab, controller, 300)
        await settle(lab, controller)

        assert await pods_of(lab) == {}
        assert await hand_over_records(lab) == []
        assert await lab.held() == {}


# --- another victim --------------------------------------------------------------------------------------------------


async def two_gpus_and_a_pod_that_does_not_end(lab: Lab, replica: Replica) -> TierController:
    await an_opportunistic_pod(lab, replica, "stuck", annotations=of("eve"))
    await an_opportunistic_pod(lab, replica, "other", annotations=of("bob"))
    finalizer = MergePatch({"metadata": {"finalizers": ["lab.example/never"]}})
    await lab.client.patch(PODS, "stuck", finalizer, "lab")
    await delete_slowly(lab, "stuck", 30)
    await an_unschedulable_booked_pod(lab, "urgent")
    return TierController(replica)


async def test_another_victim_is_chosen_when_one_does_not_end_in_time() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        controller = await two_gpus_and_a_pod_that_does_not_end(lab, replica)
        await a_round(lab, controller)
        assert await hand_over_records(lab) == [], "a GPU is being freed: nobody has to lose one"
        await a_round(lab, controller, 389)
        assert await hand_over_records(lab) == []

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)

        urgent, there = (await pods_of(lab))["urgent"], await pods_of(lab)
        assert urgent.spec.node_name == "n1"
        assert "carrel.dev/handed-over" in there["other"].metadata.annotations
        assert there["stuck"].metadata.deletion_timestamp, "it stays told to end"
        held = {uid for shares in (await lab.held()).values() for uid in shares}
        assert held == {urgent.metadata.uid, there["stuck"].metadata.uid}, "what it may still use is not free"
        assert [entry.kept_for for entry in replica.ledger.entries(N1)] == [None, None]


async def test_a_crash_after_any_write_chooses_no_third_victim() -> None:
    for k in range(1, 12):
        async with a_lab([a_node("n1", gpus=3)]) as lab:
            async with lab.replica() as replica:
                await an_opportunistic_pod(lab, replica, "third", annotations=of("ann"))
                controller = await two_gpus_and_a_pod_that_does_not_end(lab, replica)
                await a_round(lab, controller)
                lab.clock.now += timedelta(seconds=390)
            crashing = Faulty(lab.api, FaultPlan(seed=0, crash_after_write=k))
            try:
                async with lab.replica(crashing) as first:
                    await a_round(lab, TierController(first))
            except Crashed:
                pass
            async with lab.replica() as second:
                controller = TierController(second)
                await a_round(lab, controller)
                lab.clock.now += timedelta(seconds=100)  # by the clock of the next leader too
                await settle(lab, controller)

                there = await pods_of(lab)
                lost = [name for name, pod in there.items() if "carrel.dev/handed-over" in pod.metadata.annotations]
                assert len(lost) == 1, f"after write {k}: {lost}"
                assert there["urgent"].spec.node_name == "n1"


async def test_the_person_whose_pod_does_not_end_is_the_first_to_lose_another_gpu() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "also-eves", annotations=of("eve"))
        lab.clock.now += timedelta(hours=5)  # by the work that is lost, it would be the other one's
        controller = await two_gpus_and_a_pod_that_does_not_end(lab, replica)
        await a_round(lab, controller)
        lab.clock.now += timedelta(seconds=390)
        await settle(lab, controller)

        there = await pods_of(lab)
        assert there["other"].spec.node_name, "who holds no more than the equal share"
        assert "carrel.dev/handed-over" in there["also-eves"].metadata.annotations


async def test_without_another_victim_the_booked_pod_gets_the_gpu_when_it_is_free() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        stuck = await an_opportunistic_pod(lab, replica, "stuck")
        await lab.client.patch(PODS, "stuck", MergePatch({"metadata": {"finalizers": ["lab.example/never"]}}), "lab")
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica)
        for _ in range(4):
            await a_round(lab, controller, 600)
        entry = replica.ledger.entry(GpuUuid("GPU-n1-0"))
        assert entry and entry.kept_for and entry.kept_for.name == "urgent", "nobody else gets it"
        assert list(entry.shares) == [stuck["metadata"]["uid"]]

        ended = {"status": {"phase": "Failed"}}  # as the kubelet reports when the containers have ended
        await lab.client.patch(PODS, "stuck", MergePatch(ended), "lab", subresource="status")
        await a_round(lab, controller)
        await schedule(lab, replica, (N1,))

        assert (await pods_of(lab))["urgent"].spec.node_name == "n1"
        assert (await pods_of(lab))["stuck"].metadata.deletion_timestamp, "it hangs, without a GPU"


async def test_an_event_that_is_refused_keeps_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> None:
        raise Forbidden(403, "Forbidden", "exceeded quota: count/events")

    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "sleepy", grace_seconds=A_YEAR_S)
        await delete_slowly(lab, "sleepy")
        controller = TierController(replica)
        monkeypatch.setattr(EventRecorder, "record", refused)
        for _ in range(3):
            await a_round(lab, controller, 3600)

        assert await grace_of(lab, "sleepy") == 30


# --- disruption budgets ----------------------------------------------------------------------------------------------


async def forbid_evictions(lab: Lab) -> None:
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"}}
    selector = {"matchLabels": {"app": "rs"}}
    await lab.client.create(BUDGETS, {**budget, "spec": {"minAvailable": 1, "selector": selector}}, "lab")


async def a_protected_pod(lab: Lab, replica: Replica) -> Json:
    owner = await an_owner(lab)
    return await an_opportunistic_pod(lab, replica, "rs-1", owner=owner, labels={"app": "rs"}, annotations=of("eve"))


async def test_a_budget_protects_a_pod_for_ten_minutes_if_no_other_will_do() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        await a_protected_pod(lab, replica)
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica)
        await settle(lab, controller)
        lab.clock.now += timedelta(seconds=599)
        await settle(lab, controller)
        assert not (await pods_of(lab))["rs-1"].metadata.deletion_timestamp
        assert "RevocationHeldUp rs-1" in await event_reasons(lab)

        lab.clock.now += timedelta(seconds=1)
        await settle(lab, controller)

        assert (await pods_of(lab))["urgent"].spec.node_name == "n1"


async def test_while_a_budget_protects_one_pod_another_one_loses_its_gpu() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        protected = await a_protected_pod(lab, replica)
        lab.clock.now += timedelta(hours=5)
        await an_opportunistic_pod(lab, replica, "other", annotations=of("bob"))
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica)
        await settle(lab, controller)

        there = await pods_of(lab)
        assert there["urgent"].spec.node_name == "n1"
        assert there["rs-1"].metadata.uid == protected["metadata"]["uid"]
        assert not there["rs-1"].metadata.deletion_timestamp
        assert await hand_over_records(lab) == [], "the protected pod is left alone: its GPU is not needed"


async def test_two_budgets_protect_a_pod_no_longer_than_one() -> None:
    """Kubernetes answers 500 to an eviction of a pod that two budgets select."""
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        for name in ("one", "two"):
            budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}}
            selector = {"matchLabels": {"app": "rs"}}
            await lab.client.create(BUDGETS, {**budget, "spec": {"minAvailable": 0, "selector": selector}}, "lab")
        owner = await an_owner(lab)
        await an_opportunistic_pod(lab, replica, "rs-1", owner=owner, labels={"app": "rs"}, annotations=of("eve"))
        await set_status(lab, "rs-1", {"conditions": [{"type": "Ready", "status": "True"}]})
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica)

        await settle(lab, controller)
        assert (await pods_of(lab))["urgent"].spec.node_name == ""
        for _ in range(3):
            lab.clock.now += timedelta(minutes=11)
            await settle(lab, controller)

        pods = await pods_of(lab)
        assert "rs-1" not in pods and pods["urgent"].spec.node_name == "n1"


async def test_who_has_a_budget_loses_gpus_too() -> None:
    """A booked pod comes every two hours; one person's pods have a budget, those of others have none."""
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await forbid_evictions(lab)
        owner = await an_owner(lab)
        for number in range(2):
            name = f"eve-{number}"
            await an_opportunistic_pod(lab, replica, name, owner=owner, labels={"app": "rs"}, annotations=of("eve"))
        for who in ("bob", "ann"):
            await an_opportunistic_pod(lab, replica, who, annotations=of(who))
        controller = TierController(replica)
        for number in range(2):
            await an_unschedulable_booked_pod(lab, f"urgent-{number}")
            await settle(lab, controller)
            lab.clock.now += timedelta(hours=2)

        assert not {"eve-0", "eve-1"} <= set(await pods_of(lab))


async def test_a_new_leader_gives_a_budget_no_more_time() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        async with lab.replica() as replica:
            await forbid_evictions(lab)
            await a_protected_pod(lab, replica)
            await an_unschedulable_booked_pod(lab, "urgent")
            await settle(lab, TierController(replica))
        lab.clock.now += timedelta(seconds=600)
        async with lab.replica() as replica:
            await settle(lab, TierController(replica))

            assert (await pods_of(lab))["urgent"].spec.node_name == "n1"


# --- forged owners ---------------------------------------------------------------------------------------------------


def naming(kind: str, name: str, uid: str, version: str = "batch/v1") -> Json:
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}
    return {"metadata": {"name": "forger", "namespace": "lab", "ownerReferences": [owner]}}


async def test_an_owner_that_does_not_exist_counts_for_nothing() -> None:
    async with a_lab([]) as lab:
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "work"}]}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "real"}, "spec": {"template": template}}
        uid = (await lab.client.create(JOBS, job, "lab"))["metadata"]["uid"]
        owners = {
            "a real Job": naming("Job", "real", uid),
            "a Job with another uid": naming("Job", "real", "forged"),
            "a Job that does not exist": naming("Job", "ghost", "forged"),
            "a name that is no name": naming("Job", "../../pods", "forged"),
            "a version that does not exist": naming("Job", "real", uid, "batch/v9"),
            "a kind that the controller may not read": naming("Workflow", "any", "w-uid", "argo.example/v1"),
            "no owner": {"metadata": {"name": "bare", "namespace": "lab"}},
        }

        found = {words: await real_controller_of(lab.client, pod) for words, pod in owners.items()}

        assert {words for words, controller in found.items() if controller} == {
            "a real Job",
            "a kind that the controller may not read",
        }


@pytest.mark.parametrize("seed", range(4))
async def test_two_controllers_and_lost_answers_choose_one_other_victim(seed: int) -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab:
        async with lab.replica() as replica:
            await an_opportunistic_pod(lab, replica, "third", annotations=of("ann"))
            controller = await two_gpus_and_a_pod_that_does_not_end(lab, replica)
            await a_round(lab, controller)
            lab.clock.now += timedelta(seconds=390)
        faulty = Faulty(lab.api, FaultPlan(seed=seed, lose_answer=0.3, refuse=0.2))
        async with lab.replica(faulty) as first, lab.replica() as second:
            one, other = TierController(first), TierController(second)
            for _ in range(3):
                with contextlib.suppress(ClusterError):
                    await a_round(lab, one)
                with contextlib.suppress(ClusterError):
                    await a_round(lab, other)
        async with lab.replica() as last:
            await settle(lab, TierController(last))

            there = await pods_of(lab)
            lost = [name for name, pod in there.items() if "carrel.dev/handed-over" in pod.metadata.annotations]
            assert len(lost) == 1
            assert there["urgent"].spec.node_name == "n1"
