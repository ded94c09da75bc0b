"""A GPU is free when its node says that the containers are gone; the API server's word alone is not enough."""

from datetime import timedelta

import pytest

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import DeleteOptions, MergePatch
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.ledger.placement import Placement, place
from carrel.ledger.shares import Holder
from carrel.parsing.time import seconds
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, a_node, memory
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import an_opportunistic_pod, set_status

BY_FORCE = DeleteOptions(grace_seconds=0)


async def report(lab: Lab, *orphans: str, replica: Replica | None = None) -> None:
    """What an agent that sees containers reports, fifteen seconds after the last time."""
    lab.clock.now += timedelta(seconds=15)
    heartbeat = seconds(lab.clock.now)
    status = MergePatch({"status": {"heartbeat": heartbeat, "orphans": list(orphans)}})
    await lab.client.patch(GPU_NODE_STATUSES, "n1", status, subresource="status")
    if replica is not None:
        await is_known(replica, heartbeat)


async def is_known(replica: Replica, heartbeat: str) -> None:
    def seen() -> bool:
        found = replica.node_statuses.store.get("n1")
        return found is not None and found.status.heartbeat == heartbeat

    await eventually(seen)


async def freed(replica: Replica) -> list[str]:
    return [each.why for each in await replica.collector.collect()]


async def a_running_pod(lab: Lab, replica: Replica) -> str:
    await report(lab, replica=replica)
    uid: str = (await an_opportunistic_pod(lab, replica, "train"))["metadata"]["uid"]
    await eventually(lambda: (pod := replica.pods.store.by_uid(uid)) and pod.status.phase == "Running")
    return uid


async def delete_by_force(lab: Lab, replica: Replica, uid: str) -> None:
    await lab.client.delete(PODS, "train", "lab", how=BY_FORCE)
    await eventually(lambda: replica.pods.store.by_uid(uid) is None)


async def test_a_pod_that_was_deleted_by_force_holds_its_gpu_while_its_containers_run() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        uid = await a_running_pod(lab, replica)
        await delete_by_force(lab, replica, uid)

        assert await freed(replica) == []
        for _ in range(5):
            await report(lab, uid, replica=replica)
            assert await freed(replica) == []
        assert await lab.held() == {"gpu-n1-0": {uid: None}}
        (entry,) = replica.ledger.entries(N1)
        assert entry.gpu.unusable == "the pod lab/train is gone, but its containers still run on n1"

        await report(lab, replica=replica)
        assert await freed(replica) == [], "this report may have been under way"
        await report(lab, replica=replica)
        assert await freed(replica) == ["the pod is gone"]
        assert await lab.held() == {}


async def test_a_pod_that_its_kubelet_has_ended_gives_its_gpu_back_at_once() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        uid = await a_running_pod(lab, replica)
        await lab.client.delete(PODS, "train", "lab")
        await set_status(lab, "train", {"phase": "Failed"})
        await delete_by_force(lab, replica, uid)

        assert await freed(replica) == ["the pod is gone"]


async def test_a_pod_with_a_finalizer_gives_its_gpu_back_when_its_containers_have_ended() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        uid = await a_running_pod(lab, replica)
        await lab.client.patch(PODS, "train", MergePatch({"metadata": {"finalizers": ["lab.example/never"]}}), "lab")
        await lab.client.delete(PODS, "train", "lab")
        assert await freed(replica) == []
        await set_status(lab, "train", {"phase": "Failed"})
        await eventually(lambda: (pod := replica.pods.store.by_uid(uid)) and pod.status.phase == "Failed")

        assert await freed(replica) == ["the pod has finished"]


async def test_a_pod_that_was_never_bound_needs_no_confirmation() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await report(lab, replica=replica)
        pod = await replica.sees(await lab.pod("train", limits={"nvidia.com/gpu": "1"}))
        placement = place(replica.ledger, memory(8138), N1)  # as a bind does that crashes before the Binding
        assert isinstance(placement, Placement)
        assert await replica.lease_writer.take(placement, Holder(pod.metadata.uid, "lab", "train")) is None
        await delete_by_force(lab, replica, pod.metadata.uid)

        assert await freed(replica) == ["the pod is gone"]


async def test_a_new_leader_asks_the_node_again() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        async with lab.replica() as replica:
            uid = await a_running_pod(lab, replica)
            await delete_by_force(lab, replica, uid)
        async with lab.replica() as replica:
            assert await freed(replica) == [], "it has never seen the pod"
            await report(lab, uid, replica=replica)
            assert await freed(replica) == []
            await report(lab, replica=replica)
            assert await freed(replica) == []
            await report(lab, replica=replica)
            assert await freed(replica) == ["the pod is gone"]


async def test_a_silent_agent_confirms_nothing_and_the_gpu_is_set_aside_with_the_reason() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        uid = await a_running_pod(lab, replica)
        await delete_by_force(lab, replica, uid)
        lab.clock.now += timedelta(hours=48)
        replica.cluster_ledger.mark_silent_agents(lab.clock.now)

        assert await freed(replica) == []
        unusable = [entry.gpu.unusable for entry in replica.ledger.entries(N1)]
        since = "node n1 has not reported since 2026-11-16T12:00:15Z"
        assert unusable == [f"{since}; the pod lab/train may still run there", ""]

        for _ in range(2):
            await report(lab, replica=replica)
            replica.cluster_ledger.mark_silent_agents(lab.clock.now)
            last = await freed(replica)
        assert last == ["the pod is gone"]
        assert [entry.gpu.unusable for entry in replica.ledger.entries(N1)] == ["", ""]


async def test_the_reason_is_there_also_for_a_pod_that_goes_while_its_node_is_silent() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        uid = await a_running_pod(lab, replica)
        lab.clock.now += timedelta(hours=1)
        replica.cluster_ledger.mark_silent_agents(lab.clock.now)
        assert [entry.gpu.unusable for entry in replica.ledger.entries(N1)] == [""]
        await delete_by_force(lab, replica, uid)

        assert "lab/train may still run there" in replica.ledger.entries(N1)[0].gpu.unusable


@pytest.mark.parametrize("why", ["the node is gone", "no agent sees containers"])
async def test_where_nobody_can_confirm_the_api_servers_word_counts(why: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        uid = await a_running_pod(lab, replica)
        if why == "the node is gone":
            await lab.client.delete(NODES, "n1")
            await eventually(lambda: replica.nodes.store.get("n1") is None)
        else:
            blind = MergePatch({"status": {"orphans": None, "heartbeat": "2026-11-16T12:01:00Z"}})
            await lab.client.patch(GPU_NODE_STATUSES, "n1", blind, subresource="status")
            await is_known(replica, "2026-11-16T12:01:00Z")
        await delete_by_force(lab, replica, uid)

        assert await freed(replica) == ["the pod is gone"]


async def test_a_crash_or_a_lost_answer_frees_the_gpu_once() -> None:
    for plan in (FaultPlan(seed=0, crash_after_write=1), FaultPlan(seed=0, lose_answer=1.0)):
        async with a_lab([a_node("n1", gpus=1)]) as lab:
            async with lab.replica() as replica:
                uid = await a_running_pod(lab, replica)
                await delete_by_force(lab, replica, uid)
            try:
                async with lab.replica(Faulty(lab.api, plan)) as first:
                    for _ in range(4):
                        await first.collector.collect()
                        await report(lab, replica=first)
            except Crashed:
                pass
            async with lab.replica() as second:
                for _ in range(3):
                    await report(lab, replica=second)
                    await second.collector.collect()
                assert await lab.held() == {}
                assert [entry.free for entry in second.ledger.entries(N1)] == [16276]
