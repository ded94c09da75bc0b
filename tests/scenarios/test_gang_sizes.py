"""A gang whose size neither its pods nor their claim say is as large as what made its pods says, or as it becomes."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import CRDS, PODS, Resource
from carrel.ledger.refusals import Refusal
from tests.kit.definitions import definition
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, N3, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.scenarios.test_gangs import schedule

JOBS: Resource[Any] = Resource(Object, "batch", "v1", "jobs", "Job")
STATEFUL_SETS: Resource[Any] = Resource(Object, "apps", "v1", "statefulsets", "StatefulSet")
REPLICA_SETS: Resource[Any] = Resource(Object, "apps", "v1", "replicasets", "ReplicaSet")
JOB_SETS: Resource[Any] = Resource(Object, "jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")

CLAIMED = {"gpu.scheduling/claim": "train"}
TEMPLATE = {"metadata": {"annotations": CLAIMED}, "spec": {"containers": [{"name": "main", "image": "work"}]}}


async def a_claim(lab: Lab) -> None:
    """As in the document: it names its gang, and not how large that is."""
    spec = {"devices": {"count": 1}, "gangRef": "my-distributed-training-job"}
    body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "train"}, "spec": spec}
    await lab.client.create(GPU_CLAIMS, body, "lab")


async def a_maker(lab: Lab, kind: Resource[Any], name: str, spec: Json, **metadata: Any) -> Json:
    """An object that makes pods, and a reference to it for them."""
    body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name, **metadata}, "spec": spec}
    made = await lab.client.create(kind, body, "lab")
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "name": name,
        "uid": made["metadata"]["uid"],
        "controller": True,
    }


def a_job(parallelism: int, **spec: Any) -> Json:
    return {"parallelism": parallelism, "template": TEMPLATE, **spec}


async def pods_by(lab: Lab, owner: Json | None, names: Sequence[str], **spec: Any) -> list[Json]:
    owned = {"owner": owner} if owner else {}
    return [await lab.pod(name, annotations=CLAIMED, **owned, **spec) for name in names]


async def why(replica: Replica, pod: Json) -> str:
    answer = await schedule(replica, pod, [N1])
    return answer.reason if isinstance(answer, Refusal) else ""


async def becomes_known(replica: Replica, pods: Sequence[Json]) -> None:
    """The extender asks what made the pods, without waiting for the answer."""
    for pod in pods:
        await replica.sees(pod)
    await eventually(lambda: replica.claims.store.get("train", "lab"))
    for pod in pods:
        replica.filter(await replica.sees(pod), [N1])
    await replica.gang_sizes.wait_looked_up()


async def test_the_pods_of_a_job_wait_for_as_many_as_it_runs_at_once() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        owner = await a_maker(lab, JOBS, "train", a_job(3, completions=10))
        pods = await pods_by(lab, owner, ["train-a", "train-b"])
        await becomes_known(replica, pods)

        gang = "lab/my-distributed-training-job"
        assert await why(replica, pods[0]) == f"gang {gang} waits for 1 more member: 2 of 3 are here"
        assert await lab.held() == {}

        pods += await pods_by(lab, owner, ["train-c"])
        await replica.sees(pods[-1])
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None] * 3


async def test_a_gang_whose_size_becomes_known_wakes_its_pods() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        pods = await pods_by(lab, await a_maker(lab, JOBS, "train", a_job(2)), ["train-a", "train-b"])
        for pod in pods:
            await replica.sees(pod)
        await eventually(lambda: replica.claims.store.get("train", "lab"))

        assert "waits until Job lab/train is read" in await why(replica, pods[0])

        await eventually(lambda: all("carrel.dev/woken-at" in each.metadata.annotations for each in replica.pods.store))


async def test_a_member_that_kube_scheduler_saw_first_is_not_placed_as_if_it_were_alone() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        pods = await pods_by(lab, await a_maker(lab, JOBS, "train", a_job(2)), ["train-a"])
        await becomes_known(replica, pods)
        not_watched_yet = await replica.sees(pods[0])
        await lab.client.delete(PODS, "train-a", "lab")
        await eventually(lambda: replica.pods.store.get("train-a", "lab") is None)

        answer = replica.filter(not_watched_yet, [N1])

        assert not isinstance(answer, Refusal)
        assert list(answer.fitting) == []


async def test_a_job_that_has_few_completions_left_makes_a_smaller_gang() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        owner = await a_maker(lab, JOBS, "train", a_job(4, completions=8))
        await lab.client.patch(JOBS, "train", MergePatch({"status": {"succeeded": 6}}), "lab", subresource="status")
        pods = await pods_by(lab, owner, ["train-y", "train-z"])
        await becomes_known(replica, pods)

        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None] * 2


async def test_the_size_never_is_the_number_of_claims() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        owner = await a_maker(lab, JOBS, "train", a_job(2))
        pods = await pods_by(lab, owner, ["train-a"])
        await becomes_known(replica, pods)

        assert "waits for 1 more member" in await why(replica, pods[0]), "there is one claim, and a gang of two pods"


async def test_a_stateful_set_that_starts_in_parallel_makes_a_gang() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        spec = {"replicas": 2, "podManagementPolicy": "Parallel", "template": TEMPLATE}
        pods = await pods_by(lab, await a_maker(lab, STATEFUL_SETS, "train", spec), ["train-0", "train-1"])
        await becomes_known(replica, pods)

        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None] * 2


async def test_a_stateful_set_that_starts_one_pod_after_the_other_is_told_that_it_would_wait_for_ever() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        pods = await pods_by(
            lab, await a_maker(lab, STATEFUL_SETS, "train", {"replicas": 2, "template": TEMPLATE}), ["train-0"]
        )
        await becomes_known(replica, pods)

        reason = await why(replica, pods[0])
        assert "StatefulSet train starts its pods one after the other" in reason
        assert "set podManagementPolicy: Parallel" in reason
        assert replica.waiting_reason.why(await replica.sees(pods[0])) == Refusal(reason), "people are told the same"
        assert await lab.held() == {}


async def test_the_surge_pod_of_a_rolling_update_does_not_complete_the_old_gang() -> None:
    async with a_lab([a_node("n1", gpus=8)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        old = await a_maker(lab, REPLICA_SETS, "train-1", {"replicas": 3, "template": TEMPLATE})
        new = await a_maker(lab, REPLICA_SETS, "train-2", {"replicas": 1, "template": TEMPLATE})
        pods = await pods_by(lab, old, ["train-1-a", "train-1-b"], labels={"pod-template-hash": "1"})
        pods += await pods_by(lab, new, ["train-2-a"], labels={"pod-template-hash": "2"})
        await becomes_known(replica, pods)

        assert "waits for 1 more member: 2 of 3 are here" in await why(replica, pods[0])
        assert await schedule(replica, pods[2], [N1]) is None, "the new ReplicaSet makes one pod so far"


async def test_the_jobs_of_a_job_set_make_one_gang() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await lab.client.create(CRDS, definition(JOB_SETS))
        await a_claim(lab)
        jobs = [
            {"name": "workers", "replicas": 2, "template": {"spec": a_job(1)}},
            {"name": "watcher", "replicas": 1, "template": {"spec": {"template": {"spec": {"containers": []}}}}},
        ]
        owner = await a_maker(lab, JOB_SETS, "train", {"replicatedJobs": jobs})
        makers = [await a_maker(lab, JOBS, f"train-{i}", a_job(1), ownerReferences=[owner]) for i in range(2)]
        first = await pods_by(lab, makers[0], ["train-0-a"])
        await becomes_known(replica, first)
        assert "waits for 1 more member: 1 of 2 are here" in await why(replica, first[0])

        pods = [*first, *await pods_by(lab, makers[1], ["train-1-a"])]
        await becomes_known(replica, pods)
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None] * 2


async def test_each_group_of_a_leader_worker_set_is_a_gang() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        notes = {**CLAIMED, "leaderworkerset.sigs.k8s.io/size": "2"}
        labels = {"leaderworkerset.sigs.k8s.io/group-key": "a"}
        pods = [await lab.pod(f"lws-0-{i}", annotations=notes, labels=labels) for i in range(2)]
        other = await lab.pod(
            "lws-1", annotations=notes, labels={**labels, "leaderworkerset.sigs.k8s.io/group-key": "b"}
        )
        await becomes_known(replica, [*pods, other])

        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None] * 2
        assert "waits for 1 more member: 1 of 2 are here" in await why(replica, other)


async def test_pods_that_nothing_made_are_a_gang_when_no_more_have_come_for_some_seconds() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        pods = await pods_by(lab, None, ["train-a"])
        await becomes_known(replica, pods)
        assert "has 1 pod so far, and nothing says how many it will have" in await why(replica, pods[0])

        lab.clock.now += timedelta(seconds=3)
        pods += await pods_by(lab, None, ["train-b"])
        await replica.sees(pods[1])
        lab.clock.now += timedelta(seconds=3)
        assert "has 2 pods so far" in await why(replica, pods[0]), "the second came three seconds ago"

        lab.clock.now += timedelta(seconds=3)
        assert await asyncio.gather(*(schedule(replica, pod, [N1]) for pod in pods)) == [None] * 2


async def test_pods_that_are_all_there_are_woken_when_the_seconds_are_over() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        pods = await pods_by(lab, None, ["train-a", "train-b"])
        await becomes_known(replica, pods)
        replica.gang_sizes.refresh()

        lab.clock.now += timedelta(seconds=6)
        replica.gang_sizes.refresh()

        await eventually(lambda: all("carrel.dev/woken-at" in each.metadata.annotations for each in replica.pods.store))


async def test_pods_of_a_kind_of_maker_that_carrel_does_not_know_are_counted() -> None:
    async with a_lab([a_node("n1", gpus=4)]) as lab, lab.replica() as replica:
        await a_claim(lab)
        owner = {"apiVersion": "example.com/v1", "kind": "Simulation", "name": "train", "uid": "1", "controller": True}
        pods = await pods_by(lab, owner, ["train-a"])
        await becomes_known(replica, pods)

        assert "has 1 pod so far" in await why(replica, pods[0])


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_gang_that_loses_a_node_gets_its_lost_pods_back_elsewhere(lost: int) -> None:
    nodes = [a_node(name, gpus=2) for name in ("n1", "n2", "n3")]
    async with a_lab(nodes) as lab, lab.replica() as replica:
        await a_claim(lab)
        owner = await a_maker(lab, JOBS, "train", a_job(4))
        pods = await pods_by(lab, owner, [f"train-{i}" for i in range(4)])
        await becomes_known(replica, pods)
        assert await asyncio.gather(*(schedule(replica, pod, [N1, N2]) for pod in pods)) == [None] * 4

        gone = [uid for uid, node in (await lab.bound()).items() if node == "n1"][:lost]
        for pod in pods:
            if pod["metadata"]["uid"] in gone:
                await lab.client.delete(PODS, pod["metadata"]["name"], "lab", how=DeleteOptions(grace_seconds=0))
        again = await pods_by(lab, owner, [f"train-again-{i}" for i in range(lost)])
        await becomes_known(replica, again)
        await eventually(lambda: len(replica.pods.store) == 4)

        for pod in again:
            assert await schedule(replica, pod, [N2, N3]) is None, "the others run: it joins them"
        assert set((await lab.bound()).values()) >= {"n2", "n3"}
