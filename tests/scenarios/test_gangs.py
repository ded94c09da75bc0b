"""All pods of a gang are bound, or none; and no gang waits for ever."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.dialects.kai import POD_GROUPS
from carrel.ids import NodeName
from carrel.kubernetes.cluster import DeleteOptions, Json
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import CRDS, PODS
from carrel.ledger.coverage import Covered
from carrel.ledger.refusals import Refusal
from carrel.scheduling.gangs import GangTimeouts
from kubernetes_in_memory.faults import FaultPlan
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, N2, N3, N4, a_node
from tests.kit.kai import POD_GROUP_KIND, a_pod_group
from tests.kit.lab import Lab, Replica, a_lab

HASTY = GangTimeouts(together_s=0.3, back_off_s=0.0)
NODES = (N1, N2, N3, N4)


async def a_gang(lab: Lab, name: str, size: int, gpus: int = 1) -> list[Json]:
    """A claim that names the gang, and its pods."""
    claim = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"count": gpus}, "gangRef": name, "gangSize": size},
    }
    await lab.client.create(GPU_CLAIMS, claim, "lab")
    return [await a_member(lab, name, number) for number in range(size)]


async def a_member(lab: Lab, gang: str, number: int) -> Json:
    return await lab.pod(f"{gang}-{number}", annotations={"gpu.scheduling/claim": gang})


async def schedule(replica: Replica, pod: Json, nodes: Sequence[NodeName]) -> Refusal | None:
    """As kube-scheduler does: filter, then bind on one of the nodes that are left."""
    seen = await replica.sees(pod)
    found = replica.filter(seen, nodes)
    if not found.fitting:
        return Refusal(next(iter(found.refused.values())))
    return await replica.scheduler.bind(seen, min(found.fitting))


async def ready(replica: Replica, pods: Sequence[Json]) -> None:
    await eventually(lambda: len(replica.claims.store) > 0)
    for pod in pods:
        await replica.sees(pod)


async def test_a_gang_of_eight_over_four_nodes_is_bound_together() -> None:
    async with a_lab([a_node(name, gpus=4) for name in NODES]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 8, gpus=2)
        await ready(replica, pods)

        early = [asyncio.ensure_future(schedule(replica, pod, NODES)) for pod in pods[:7]]
        await eventually(lambda: len(list(replica.ledger.holders())) == 8)
        assert await lab.bound() == {}, "no member is bound before all are ready"

        assert await schedule(replica, pods[7], NODES) is None
        assert await asyncio.gather(*early) == [None] * 7
        assert len(await lab.bound()) == 8
        assert len(await lab.held()) == 16


async def test_a_gang_waits_until_its_members_exist_and_says_how_many_are_missing() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 3)
        await ready(replica, pods)
        await lab.client.delete(PODS, "job-2", "lab")
        await eventually(lambda: len(replica.pods.store) == 2)

        answer = await schedule(replica, pods[0], [N1])

        assert answer == Refusal("gang lab/job waits for 1 more member: 2 of 3 are here")


async def test_unschedulable_members_are_woken_when_the_gang_is_complete() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)

        replica.filter(await replica.sees(pods[1]), [N1])

        def woken() -> bool:
            found = replica.pods.store.get("job-0", "lab")
            return found is not None and "carrel.dev/woken-at" in found.metadata.annotations

        await eventually(woken)


async def test_if_one_member_never_comes_all_give_everything_back() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica(timeouts=HASTY) as replica:
        pods = await a_gang(lab, "job", 3)
        await ready(replica, pods)

        answers = await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods[:2]))

        assert all(answer and "waited too long for 1 of its members" in answer.reason for answer in answers)
        assert await lab.held() == {}
        assert await lab.bound() == {}
        assert [entry.free for entry in replica.ledger.entries(N1)] == [16276] * 4
        replica.ledger.audit()


async def test_a_plan_without_binds_expires() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica(timeouts=HASTY) as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        replica.filter(await replica.sees(pods[0]), [N1])
        assert [entry.free for entry in replica.ledger.entries(N1)] == [0, 0]

        lab.clock.now += timedelta(seconds=1)
        replica.scheduler.expire_promises()

        assert [entry.free for entry in replica.ledger.entries(N1)] == [16276, 16276]


async def test_two_gangs_that_fit_only_one_after_the_other_both_run() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica(timeouts=HASTY) as replica:
        first, second = await a_gang(lab, "first", 2), await a_gang(lab, "second", 2)
        await ready(replica, [*first, *second])
        await eventually(lambda: len(replica.claims.store) == 2)

        # Their members come mixed: so each gang could hold half of the GPUs.
        answers = await asyncio.gather(
            *(schedule(replica, pod, [N1]) for pair in zip(first, second, strict=True) for pod in pair)
        )

        assert sum(answer is None for answer in answers) == 2
        bound = await lab.bound()
        winners = [pods for pods in (first, second) if pods[0]["metadata"]["uid"] in bound]
        assert len(winners) == 1
        for pod in winners[0]:
            assert pod["metadata"]["uid"] in bound
            await lab.client.delete(PODS, pod["metadata"]["name"], "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: len(replica.pods.store) == 2)
        await replica.collector.collect()

        losers = second if winners[0] is first else first
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in losers)) == [None, None]


async def test_if_a_node_is_lost_during_the_binds_everything_is_given_back_and_the_gang_is_placed_elsewhere() -> None:
    nodes = [a_node(name, gpus=2) for name in NODES]
    async with a_lab(nodes) as lab, lab.replica(timeouts=HASTY) as replica:
        pods = await a_gang(lab, "job", 4)
        await ready(replica, pods)
        waiting = [asyncio.ensure_future(schedule(replica, pod, NODES)) for pod in pods[:3]]
        await eventually(lambda: len(list(replica.ledger.holders())) == 4)
        (lost,) = replica.filter(await replica.sees(pods[3]), NODES).fitting
        remaining = [name for name in NODES if name != lost]

        assert isinstance(await schedule(replica, pods[3], remaining), Refusal)
        assert all(isinstance(answer, Refusal) for answer in await asyncio.gather(*waiting))
        assert await lab.bound() == {}

        assert await asyncio.gather(*(schedule(replica, pod, remaining) for pod in pods)) == [None] * 4
        assert lost not in (await lab.bound()).values()


@pytest.mark.parametrize("after", range(1, 7))
async def test_after_a_crash_at_any_write_the_gang_continues_with_the_leases_it_has(after: int) -> None:
    """Two members: two pods are woken, two Leases taken, two Bindings written."""
    async with a_lab([a_node("n1", gpus=2)]) as lab:
        pods = await a_gang(lab, "job", 2)
        async with lab.replica(Faulty(lab.api, FaultPlan(seed=1, crash_after_write=after)), HASTY) as replica:
            await ready(replica, pods)
            answers = await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods), return_exceptions=True)
            await eventually(lambda: replica.transport.inner.writes >= after)
        held, bound = await lab.held(), await lab.bound()
        assert after == 6 or answers != [None, None] or len(bound) == 2

        async with lab.replica() as replica:
            rest = [pod for pod in pods if pod["metadata"]["uid"] not in bound]
            await ready(replica, rest)
            assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in rest)) == [None] * len(rest)
        assert len(await lab.bound()) == 2
        after_all = await lab.held()
        assert len(after_all) == 2
        assert all(after_all[lease].keys() >= shares.keys() for lease, shares in held.items()), (
            "every member keeps its GPUs"
        )


async def test_a_late_member_joins_a_running_gang() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None, None]
        await lab.client.delete(PODS, "job-1", "lab", how=DeleteOptions(grace_seconds=0))
        successor = await a_member(lab, "job", 1)
        await eventually(lambda: replica.pods.store.by_uid(pods[1]["metadata"]["uid"]) is None)
        await replica.collector.collect()

        assert await schedule(replica, successor, [N1]) is None


async def test_a_late_member_is_covered_with_gpus_that_another_gang_gave_back_when_it_was_asked_about() -> None:
    nodes = [a_node("n1", gpus=4)]
    async with a_lab(nodes, has_booker=False) as lab, lab.replica(timeouts=HASTY) as replica:
        booking = await lab.book()
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None, None]
        others = await a_gang(lab, "other", 2)
        late = await lab.pod("job-2", annotations={"gpu.scheduling/claim": "job", "carrel.dev/user": "ada@lab.example"})
        await eventually(lambda: len(replica.claims.store) == 2 and len(replica.bookings.store) == 1)
        for pod in (*pods, *others):
            await replica.sees(pod)
        replica.filter(await replica.sees(others[0]), [N1])
        assert replica.pod_facts(await replica.sees(late)).covered is None, "all GPUs are promised to the other gang"

        lab.clock.now += timedelta(seconds=1)  # whose time is up
        found = replica.filter(await replica.sees(late), [N1], chooses=True)

        assert found.fitting == ("n1",)
        (share,) = replica.ledger.shares_of(late["metadata"]["uid"]).values()
        assert share.coverage
        assert share.coverage.booking == booking["metadata"]["name"]


async def test_with_more_members_than_room_as_many_run_as_the_gang_needs() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica(timeouts=HASTY) as replica:
        pods = [*await a_gang(lab, "job", 2), await a_member(lab, "job", 2)]
        await ready(replica, pods)

        answers = await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods))

        assert answers[:2] == [None, None]
        assert answers[2] is not None and "joins them when they run" in answers[2].reason


async def test_a_plan_is_made_again_when_a_member_is_gone() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        pods = [*await a_gang(lab, "job", 2), await a_member(lab, "job", 2)]
        await ready(replica, pods)
        replica.filter(await replica.sees(pods[0]), [N1])
        await lab.client.delete(PODS, "job-2", "lab")
        await eventually(lambda: len(replica.pods.store) == 2)

        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods[:2])) == [None, None]
        assert replica.ledger.rooms[N1].whole == 1


async def test_if_one_member_cannot_write_its_lease_no_member_is_bound_and_nothing_is_held() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab:
        pods = await a_gang(lab, "job", 2)
        plan = FaultPlan(seed=3, refuse=1.0)
        async with lab.replica(Faulty(lab.api, plan), HASTY) as replica:
            await ready(replica, pods)
            answers = await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods), return_exceptions=True)

            assert None not in answers
            assert await lab.bound() == {}
            assert await lab.held() == {}
            assert replica.ledger.rooms[N1].whole == 2


async def test_a_member_that_the_cache_does_not_know_yet_is_refused_with_the_reason() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        pods = await a_gang(lab, "job", 2)
        await ready(replica, pods)
        stranger = msgspec.convert({**pods[0], "metadata": {**pods[0]["metadata"], "uid": "unheard-of"}}, Pod)

        found = replica.filter(stranger, [N1])

        assert not found.fitting
        assert "does not know" in found.refused[N1]
        assert replica.ledger.rooms[N1].whole == 2


async def test_the_gpus_of_a_member_whose_gang_runs_are_not_collected() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab:
        pods = await a_gang(lab, "job", 2)
        # Two pods woken, two Leases, one Binding; then the process is away for longer than any bind takes.
        async with lab.replica(Faulty(lab.api, FaultPlan(seed=1, crash_after_write=5)), HASTY) as replica:
            await ready(replica, pods)
            await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods), return_exceptions=True)
        assert len(await lab.bound()) == 1
        async with lab.replica() as replica:
            for _ in range(3):
                await replica.collector.collect()
                lab.clock.now += timedelta(minutes=2)

            assert len(await lab.held()) == 2


async def test_a_pod_group_gives_the_size_of_the_gang_where_kai_is_installed() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab:
        await lab.client.create(CRDS, POD_GROUP_KIND)
        await lab.client.create(POD_GROUPS, a_pod_group("pg-job", 3), "lab")
        async with lab.replica() as replica:
            half = {"gpu-fraction": "0.5", "pod-group-name": "pg-job"}
            pods = [await lab.pod(f"member-{number}", annotations=half) for number in range(2)]
            for pod in pods:
                await replica.sees(pod)

            answer = await schedule(replica, pods[0], [N1])

            assert answer == Refusal("gang lab/pg-job waits for 1 more member: 2 of 3 are here")


SUB_GROUPS = [
    {"name": "decode", "minSubGroup": 2},
    {"name": "leader", "parent": "decode", "minMember": 1},
    {"name": "workers", "parent": "decode", "minMember": 2},
    {"name": "prefill", "minMember": 1},
]


async def test_a_pod_group_with_sub_groups_is_placed_when_each_has_the_pods_that_it_needs() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab:
        await lab.client.create(CRDS, POD_GROUP_KIND)
        await lab.client.create(POD_GROUPS, a_pod_group("pg-job", minSubGroup=2, subGroups=SUB_GROUPS), "lab")
        async with lab.replica() as replica:
            half = {"gpu-fraction": "0.5", "pod-group-name": "pg-job"}
            groups = ("leader", "workers", "workers", "workers", "prefill")
            pods = []
            for number, group in enumerate(groups):
                labels = {"kai.scheduler/subgroup-name": group}
                pods.append(await lab.pod(f"member-{number}", annotations=half, labels=labels))
                await replica.sees(pods[-1])
                if group != "prefill":  # four members wait, and four are the least that the gang needs
                    why = await schedule(replica, pods[-1], [N1])
                    assert isinstance(why, Refusal) and "sub groups, and" in why.reason
                    assert await lab.bound() == {}
            assert "and 1 are complete: prefill has 0 of 1 pods" in str(why)

            answers = await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods))

            assert answers == [None] * 5
            assert len(await lab.bound()) == 5


async def test_a_pod_whose_pod_group_has_no_known_size_is_placed_by_itself_when_no_other_has_come() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", annotations={"gpu-fraction": "0.5", "pod-group-name": "pg-job"})
        assert isinstance(await schedule(replica, pod, [N1]), Refusal)

        lab.clock.now += timedelta(seconds=6)
        assert await schedule(replica, pod, [N1]) is None


async def test_pods_that_have_nothing_to_do_with_a_gang_are_not_read_to_find_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        others = [await lab.pod(f"other-{number}", limits={"nvidia.com/gpu": "1"}) for number in range(20)]
        pods = await a_gang(lab, "job", 2)
        await ready(replica, [*others, *pods])
        read: set[str] = set()
        look = replica.requests.as_admitted

        def noted(pod: Pod, covered: Covered | None = None) -> object:
            read.add(pod.metadata.name)
            return look(pod, covered)

        monkeypatch.setattr(replica.requests, "as_admitted", noted)

        replica.filter(await replica.sees(pods[0]), [N1])

        assert read == {"job-0", "job-1"}
