"""An admin frees the GPUs of a node that does not answer; nothing else does."""

from datetime import timedelta

from carrel.cluster.record.release import GpuRelease
from carrel.kubernetes.cluster import DeleteOptions, MergePatch, Selection
from carrel.kubernetes.objects.resources import EVENTS, NODES, PODS
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, N2, N9, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import an_opportunistic_pod, catch_up, pods_of
from tests.scenarios.test_confirmed_ends import delete_by_force, report


async def a_node_that_went_away(lab: Lab, replica: Replica) -> None:
    """Of its three pods one was deleted by force, one is ending, and nobody has told the third one yet."""
    await report(lab, replica=replica)
    gone = await an_opportunistic_pod(lab, replica, "train")
    await an_opportunistic_pod(lab, replica, "ending")
    await an_opportunistic_pod(lab, replica, "running")
    await lab.client.delete(PODS, "ending", "lab")
    await delete_by_force(lab, replica, gone["metadata"]["uid"])
    lab.clock.now += timedelta(minutes=10)
    replica.cluster_ledger.mark_silent_agents(lab.clock.now)
    await catch_up(lab, replica)


async def test_the_plan_says_what_would_be_freed_and_why_the_node_is_away() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        await a_node_that_went_away(lab, replica)
        release = GpuRelease(replica)

        assert release.why_away(N1) == "the agent's last heartbeat was at Mon 16 Nov 2026 12:00:15 UTC"
        states = [(each.index, str(each.holder), each.pod) for each in release.plan(N1)]
        assert states == [(0, "lab/train", "gone"), (1, "lab/ending", "ending"), (2, "lab/running", "running")]
        assert [each.index for each in release.plan(N1, 1)] == [1]
        assert release.plan(N2) == []


async def test_a_node_that_answers_is_not_away() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        assert GpuRelease(replica).why_away(N1) == ""

        unknown = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-16T11:00:00Z"}
        status = MergePatch({"status": {"conditions": [unknown]}})
        await lab.client.patch(NODES, "n1", status, subresource="status")
        await eventually(lambda: GpuRelease(replica).why_away(N1))
        assert GpuRelease(replica).why_away(N1) == "its kubelet is not ready since 2026-11-16T11:00:00Z"
        assert GpuRelease(replica).why_away(N9) == "the cluster has no such Node"


async def test_a_release_frees_the_gpus_deletes_the_pods_and_says_who_did_it() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        await a_node_that_went_away(lab, replica)
        release = GpuRelease(replica)
        await release.release(N1, release.plan(N1), lab.clock.now)

        assert await lab.held() == {}
        assert await pods_of(lab) == {}
        (event,) = (await lab.client.list(EVENTS, Selection("default"))).items
        assert (event.reason, event.involved_object.name) == ("GPUReleased", "n1")
        assert "GPU 0 from lab/train, GPU 1 from lab/ending, GPU 2 from lab/running" in event.message


async def test_one_gpu_is_released_and_the_others_are_left() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        await a_node_that_went_away(lab, replica)
        release = GpuRelease(replica)
        await release.release(N1, release.plan(N1, 0), lab.clock.now)

        assert sorted(await lab.held()) == ["gpu-n1-1", "gpu-n1-2"]
        assert sorted(await pods_of(lab)) == ["ending", "running"]


async def test_a_release_that_was_interrupted_is_continued() -> None:
    for k in range(1, 7):
        async with a_lab([a_node("n1", gpus=3)]) as lab:
            async with lab.replica() as replica:
                await a_node_that_went_away(lab, replica)
            try:
                async with lab.replica(Faulty(lab.api, FaultPlan(seed=0, crash_after_write=k))) as first:
                    release = GpuRelease(first)
                    await release.release(N1, release.plan(N1), lab.clock.now)
            except Crashed:
                pass
            async with lab.replica() as second:
                release = GpuRelease(second)
                await release.release(N1, release.plan(N1), lab.clock.now)

                assert await lab.held() == {}, f"after write {k}"
                assert await pods_of(lab) == {}


async def test_another_pod_of_the_same_name_is_left_alone() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        await a_node_that_went_away(lab, replica)
        release = GpuRelease(replica)
        held = release.plan(N1, 2)
        await lab.client.delete(PODS, "running", "lab", how=DeleteOptions(grace_seconds=0))
        newer = await lab.pod("running")
        await release.release(N1, held, lab.clock.now)

        assert (await pods_of(lab))["running"].metadata.uid == newer["metadata"]["uid"]
        assert "gpu-n1-2" not in await lab.held()
