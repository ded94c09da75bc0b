"""A gang whose members fail somewhere tries elsewhere, and one that is gone keeps nothing."""

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest

from carrel.ids import NodeName
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, Json, MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.refusals import Refusal
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.scenarios.test_bind_check import bind
from tests.scenarios.test_gangs import HASTY, a_gang, a_member, ready, schedule

NAMES = (N1, N2)


async def told(replica: Replica, pod: Json, nodes: tuple[NodeName, ...] = NAMES) -> list[str]:
    return list(replica.filter(await replica.sees(pod), nodes, chooses=True).fitting)


async def delete(lab: Lab, pod: Json) -> None:
    await lab.client.delete(PODS, pod["metadata"]["name"], "lab", how=DeleteOptions(grace_seconds=0))


async def test_a_member_that_asks_again_is_planned_elsewhere_for_half_a_minute() -> None:
    async with a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)

        assert await told(replica, pods[0]) == ["n1"]
        lab.clock.now += timedelta(seconds=20)
        assert await told(replica, pods[0]) == ["n2"], "it was not bound to n1"
        lab.clock.now += timedelta(seconds=20)
        assert await told(replica, pods[0]) == ["n1"], "it has failed on both within half a minute, so either will do"
        assert await told(replica, pods[1]) == ["n1"], "what one member avoids is no matter for the others"
        replica.ledger.audit()


async def test_a_member_that_asks_again_gets_its_node_again_if_there_is_no_other() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)

        for _ in range(3):
            assert await told(replica, pods[0], (N1,)) == ["n1"]
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None, None]


async def test_others_change_places_with_a_member_that_could_not_be_bound() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        first = await told(replica, pods[0])

        second = await told(replica, pods[0])

        assert {*first, *second} == {"n1", "n2"}
        assert await told(replica, pods[1]) == first


async def test_members_that_wait_are_not_disturbed_if_another_that_failed_has_nowhere_else_to_go() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        waiting = asyncio.ensure_future(schedule(replica, pods[0], [N1]))
        await eventually(lambda: replica.ledger.rooms[N1].whole == 0)

        assert [await told(replica, pods[1], (N1,)) for _ in range(3)] == [["n1"]] * 3

        assert not waiting.done()
        assert await schedule(replica, pods[1], [N1]) is None
        assert await waiting is None


async def test_a_question_about_a_member_whose_bind_is_under_way_changes_nothing() -> None:
    """As after a restart of kube-scheduler, whose calls go on here."""
    async with a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        waiting = asyncio.ensure_future(schedule(replica, pods[0], NAMES))
        await eventually(lambda: len(list(replica.ledger.holders())) == 2)

        for _ in range(3):
            assert await told(replica, pods[0]) == ["n1"]
            refusal = await replica.bind(pods[0], "n1")
            assert refusal is not None and "is under way" in refusal.reason

        assert await schedule(replica, pods[1], NAMES) is None
        assert await waiting is None


async def test_after_a_restart_of_kube_scheduler_all_members_ask_again_and_are_bound() -> None:
    async with a_lab([a_node("n1", gpus=4), a_node("n2", gpus=4)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 4)
        await ready(replica, pods)
        for pod in pods:
            await told(replica, pod)

        async def attempts(pod: Json) -> int:
            number = 1
            while await schedule(replica, pod, NAMES) is not None:
                number += 1
            return number

        assert max(await asyncio.gather(*map(attempts, pods))) <= 4, "a few are refused once more"
        assert len(await lab.bound()) == 4


async def test_a_gang_of_which_one_member_fails_everywhere_lets_others_go_first_in_the_end() -> None:
    names = tuple(NodeName(f"n{number}") for number in range(8))
    async with a_lab([a_node(name, gpus=1) for name in names]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)

        answers = []
        for _ in range(14):
            replica.scheduler.expire_promises()
            answers.append(await told(replica, pods[0], names))
            lab.clock.now += timedelta(seconds=10)

        assert [] in answers, "not longer than a plan may wait for its members"
        assert all(left != right for left, right in pairwise(answers) if left)


async def test_members_do_not_avoid_their_nodes_because_another_was_late() -> None:
    async with (
        a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab,
        lab.replica(timeouts=HASTY) as replica,
    ):
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        late = await schedule(replica, pods[0], NAMES)
        assert late is not None and "waited too long for 1 of its members" in late.reason

        assert await told(replica, pods[0]) == ["n1"]


async def test_a_member_that_may_go_to_fewer_nodes_than_the_others_is_planned_there() -> None:
    async with (
        a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab,
        lab.replica(timeouts=HASTY) as replica,
    ):
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert await told(replica, pods[0]) == ["n1"]
        assert await told(replica, pods[1], (N2,)) == [], "it was assumed that it may go where the first one may"

        answers = await asyncio.gather(schedule(replica, pods[0], NAMES), schedule(replica, pods[1], [N2]))

        assert list(answers) == [None, None]


@pytest.mark.parametrize("how", ["deleted", "finished", "in another gang", "bound by another replica"])
async def test_a_plan_ends_with_one_of_its_members(how: str) -> None:
    async with a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        waiting = asyncio.ensure_future(schedule(replica, pods[0], [N1]))
        await eventually(lambda: replica.ledger.rooms[N1].whole == 0)

        if how == "deleted":
            await delete(lab, pods[1])
        elif how == "finished":
            failed = MergePatch({"status": {"phase": "Failed"}})
            await lab.client.patch(PODS, "job-1", failed, "lab", subresource="status")
        elif how == "in another gang":
            other = MergePatch({"metadata": {"annotations": {"pod-group-name": "other"}}})
            await lab.client.patch(PODS, "job-1", other, "lab")
        else:
            await lab.client.bind(BindTarget("lab", "job-1", pods[1]["metadata"]["uid"], "n2"))

        refusal = await waiting
        assert refusal is not None and "is planned again, because lab/job-1 " in refusal.reason
        assert replica.ledger.rooms[N1].whole == 2
        replica.ledger.audit()


async def test_a_plan_that_is_made_later_has_all_the_time_although_one_before_it_failed() -> None:
    async with a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert await told(replica, pods[0]) == ["n1"]
        assert await told(replica, pods[0], ()) == [], "it failed there, and may go nowhere else"

        lab.clock.now += timedelta(seconds=118)
        assert await told(replica, pods[0]) == ["n1"]
        lab.clock.now += timedelta(seconds=30)

        assert await told(replica, pods[1]) == ["n1"], "its plan is not over"


async def test_the_gpus_of_a_gang_that_is_deleted_are_free_at_once_and_its_successor_need_not_wait() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert await told(replica, pods[0], (N1,)) == ["n1"]

        for pod in pods:
            await delete(lab, pod)
        await eventually(lambda: len(replica.pods.store) == 0)

        other = await lab.pod("other", limits={"nvidia.com/gpu": "2"})
        assert await told(replica, other, (N1,)) == ["n1"]
        await delete(lab, other)
        successors = [await a_member(lab, "job", number) for number in range(2)]
        await ready(replica, successors)
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in successors)) == [None, None]


# --- binds that are refused before they are begun --------------------------------------------------------------------


async def tainted(lab: Lab, replica: Replica, name: str, *taints: Json) -> None:
    await lab.client.patch(NODES, name, MergePatch({"spec": {"taints": list(taints)}}))

    def is_seen() -> bool:
        found = replica.nodes.store.get(name)
        return found is not None and len(found.spec.taints) == len(taints)

    await eventually(is_seen)


async def test_a_refused_bind_ends_the_promise_and_counts_as_a_failed_attempt() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        pod, other = [await lab.pod(name, limits={"nvidia.com/gpu": "1"}) for name in ("train", "other")]
        assert await told(replica, pod) == ["n1"]
        await tainted(lab, replica, "n1", {"key": "broken", "effect": "NoSchedule"})

        assert "is tainted broken:NoSchedule" in await bind(replica, pod, "n1")

        await tainted(lab, replica, "n1")
        assert await told(replica, other) == ["n1"], "what was promised is free again"
        await delete(lab, other)
        await eventually(lambda: replica.ledger.rooms[N1].whole == 1)
        assert await told(replica, pod) == ["n2"], "and the pod tries elsewhere first"


async def test_a_refused_bind_of_a_member_ends_the_plan_of_its_gang() -> None:
    async with a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert await told(replica, pods[0]) == ["n1"]
        await tainted(lab, replica, "n1", {"key": "broken", "effect": "NoSchedule"})

        assert "is tainted broken:NoSchedule" in await bind(replica, pods[0], "n1")

        assert replica.ledger.rooms[N1].whole == 2
        assert await told(replica, pods[0]) == ["n2"]


async def test_a_second_bind_that_is_refused_does_not_end_the_first() -> None:
    async with a_lab([a_node("n1", gpus=2), a_node("n2", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        waiting = asyncio.ensure_future(schedule(replica, pods[0], [N1]))
        await eventually(lambda: replica.ledger.rooms[N1].whole == 0)
        await tainted(lab, replica, "n1", {"key": "broken", "effect": "NoSchedule"})

        assert "is tainted broken:NoSchedule" in await bind(replica, pods[0], "n1")

        assert not waiting.done()
        assert await schedule(replica, pods[1], [N1]) is None
        assert await waiting is None


@pytest.mark.parametrize("how", ["deleted", "finished", "bound"])
async def test_nothing_is_promised_to_a_pod_that_needs_nothing_any_more(how: str) -> None:
    """kube-scheduler learns of it later than Carrel."""
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits={"nvidia.com/gpu": "1"})
        as_it_was = await replica.sees(pod)
        if how == "deleted":
            await delete(lab, pod)
            await eventually(lambda: replica.pods.store.get("train", "lab") is None)
        else:
            change = {"status": {"phase": "Failed"}} if how == "finished" else {"metadata": {"labels": {"a": "b"}}}
            if how == "bound":
                assert await replica.bind(pod, "n1") is None
            await lab.client.patch(PODS, "train", MergePatch(change), "lab", subresource="status" * (how == "finished"))
            await replica.sees(await lab.client.get(PODS, "train", "lab"))
        before = replica.ledger.rooms[N1].whole

        assert not isinstance(replica.scheduler.filter(as_it_was, (N1,), chooses=True), Refusal)

        assert replica.ledger.rooms[N1].whole == before
