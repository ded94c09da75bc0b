"""A GPU is free soon after its pod has ended, and never before."""

import pytest

from carrel.dialects.gpu_lease import LeaseRecord, write_lease
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.cluster import Conflict, DeleteOptions, Json, ListPage, MergePatch, Selection, Unavailable
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS, Resource
from carrel.ledger.placement import Placement, place
from carrel.ledger.shares import Holder
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.eventually import eventually
from tests.kit.faults import Faulty
from tests.kit.gpus import N1, a_node, memory
from tests.kit.lab import Lab, Replica, a_lab

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}


async def a_bound_pod(lab: Lab, replica: Replica, name: str = "train", mib: int = 8138) -> str:
    pod = await lab.pod(name, limits={"aliyun.com/gpu-mem": str(mib)})
    assert await replica.bind(pod, "n1") is None
    await eventually(lambda: (found := replica.pods.store.get(name, "lab")) and found.spec.node_name)
    uid: str = pod["metadata"]["uid"]
    return uid


async def freed(replica: Replica) -> list[str]:
    return [each.why for each in await replica.collector.collect()]


def later(replica: Replica, seconds: float) -> None:
    clock = replica.collector._clock
    replica.collector._clock = lambda: clock() + seconds


async def test_a_running_pod_keeps_its_gpu() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await a_bound_pod(lab, replica)

        assert await freed(replica) == []


async def test_a_terminating_pod_keeps_its_gpu_until_it_is_gone() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await a_bound_pod(lab, replica)
        await lab.client.delete(PODS, "train", "lab")
        await eventually(lambda: (pod := replica.pods.store.get("train", "lab")) and pod.metadata.deletion_timestamp)

        assert await freed(replica) == []
        assert [entry.free for entry in replica.ledger.entries(N1)] == [8138, 16276]

        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: replica.pods.store.get("train", "lab") is None)
        assert await freed(replica) == ["the pod is gone"]
        assert await lab.held() == {}
        assert [entry.free for entry in replica.ledger.entries(N1)] == [16276, 16276]


async def test_a_finished_pod_gives_its_gpu_back_although_it_still_exists() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await a_bound_pod(lab, replica)
        done = MergePatch({"status": {"phase": "Succeeded"}})
        await lab.client.patch(PODS, "train", done, "lab", subresource="status")
        await eventually(lambda: (pod := replica.pods.store.get("train", "lab")) and pod.status.phase == "Succeeded")

        assert await freed(replica) == ["the pod has finished"]


async def test_another_pod_of_the_same_name_does_not_get_the_gpu() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        uid = await a_bound_pod(lab, replica)
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await lab.pod("train", limits=GPU_MEM)
        await eventually(lambda: replica.pods.store.by_uid(uid) is None)

        assert await freed(replica) == ["another pod has its name now"]


async def test_the_gpu_of_a_pod_that_was_never_bound_is_freed_after_a_while() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        await _take_without_binding(replica, pod.metadata.uid)

        assert await freed(replica) == [], "a bind may be under way in another replica"

        later(replica, 61)
        assert await freed(replica) == ["the pod was not bound to n1"]


async def test_an_outdated_cache_does_not_free_the_gpu_of_a_running_pod() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        uid = await a_bound_pod(lab, replica)
        replica.collector._pod_by_uid = lambda uid: None  # as if the watch had lost the pod

        assert await freed(replica) == []
        assert await lab.held() == {"gpu-n1-0": {uid: 8138}}


async def test_other_pods_on_the_gpu_keep_their_shares() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_bound_pod(lab, replica, "goes")
        stays = await a_bound_pod(lab, replica, "stays")
        await lab.client.delete(PODS, "goes", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: replica.pods.store.get("goes", "lab") is None)

        assert await freed(replica) == ["the pod is gone"]
        assert await lab.held() == {"gpu-n1-0": {stays: 8138}}


async def test_a_bind_just_before_the_gpu_would_be_freed_keeps_the_gpu() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as collecting, lab.replica() as binding:
        body = await lab.pod("train", limits=GPU_MEM)
        pod = await binding.sees(body)
        await _take_without_binding(binding, pod.metadata.uid)
        await eventually(lambda: collecting.cluster_ledger.lease("gpu-n1-0"))
        assert await freed(collecting) == []
        later(collecting, 61)
        ask_the_server = collecting.cluster.get

        async def bound_meanwhile(resource: Resource[Pod], name: str, namespace: str) -> Json:
            seen = await ask_the_server(resource, name, namespace)
            assert await binding.bind(body, "n1") is None
            return seen

        collecting.cluster.get = bound_meanwhile  # type: ignore[method-assign,assignment] # a race

        assert await freed(collecting) == []
        assert await lab.held() == {"gpu-n1-0": {pod.metadata.uid: 8138}}


async def test_other_pods_on_the_gpu_do_not_delay_the_collection_of_a_failed_bind() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        await _take_without_binding(replica, pod.metadata.uid)
        assert await freed(replica) == []
        later(replica, 61)
        await a_bound_pod(lab, replica, "neighbour", mib=1000)

        assert await freed(replica) == ["the pod was not bound to n1"]


async def test_a_new_bind_of_a_pod_has_its_own_time_to_finish() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        await _take_without_binding(replica, pod.metadata.uid)
        assert await freed(replica) == []
        later(replica, 61)
        await replica.lease_writer.give_back(pod.metadata.uid)
        await _take_without_binding(replica, pod.metadata.uid)

        assert await freed(replica) == []


async def test_a_gpu_that_is_kept_for_a_pod_that_is_gone_becomes_free() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        record = LeaseRecord(N1, 0, GpuUuid("GPU-n1-0"), (), Holder(PodUid("uid-gone"), "lab", "gone"))
        await lab.client.create(LEASES, write_lease(record, "carrel", lab.clock()), "carrel")
        await eventually(lambda: replica.cluster_ledger.lease("gpu-n1-0"))

        assert await freed(replica) == ["the pod is gone"]
        assert await _leases(lab) == []


async def test_a_gpu_that_is_kept_for_a_pod_that_waits_stays_kept() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("urgent", limits=GPU_MEM))
        record = LeaseRecord(N1, 0, GpuUuid("GPU-n1-0"), (), Holder(pod.metadata.uid, "lab", "urgent"))
        await lab.client.create(LEASES, write_lease(record, "carrel", lab.clock()), "carrel")
        await eventually(lambda: replica.cluster_ledger.lease("gpu-n1-0"))

        for _ in range(2):
            assert await freed(replica) == []
            later(replica, 1000)


async def test_an_empty_lease_does_not_make_a_gpu_with_a_new_index_unusable() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        record = LeaseRecord(N1, 0, GpuUuid("GPU-n1-1"))
        await lab.client.create(LEASES, write_lease(record, "carrel", lab.clock()), "carrel")
        await eventually(lambda: any(entry.gpu.unusable for entry in replica.ledger.entries(N1)))

        await replica.collector.collect()

        assert await _leases(lab) == []
        assert not any(entry.gpu.unusable for entry in replica.ledger.entries(N1))


async def test_a_lost_node_frees_gpus_only_when_its_pods_are_gone() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await a_bound_pod(lab, replica)
        await lab.client.delete(NODES, "n1")
        await lab.client.delete(GPU_NODE_STATUSES, "n1")
        await eventually(lambda: not replica.ledger.nodes)
        assert await freed(replica) == []

        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: replica.pods.store.get("train", "lab") is None)
        assert await freed(replica) == ["the pod is gone"]
        assert await _leases(lab) == []


async def test_a_lease_that_cannot_be_written_does_not_delay_the_others() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        for name in ("a", "b"):
            await a_bound_pod(lab, replica, name, mib=16276)
            await lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: not len(replica.pods.store))
        ask_the_server = replica.cluster.get

        async def not_now(resource: Resource[Pod], name: str, namespace: str) -> Json:
            if name == "a":
                raise Unavailable(503, "ServiceUnavailable", "later")
            return await ask_the_server(resource, name, namespace)

        replica.cluster.get = not_now  # type: ignore[method-assign,assignment] # one call fails
        assert [each.holder.full_name for each in await replica.collector.collect()] == ["lab/b"]


@pytest.mark.parametrize("write", [1, 2, 3])
async def test_after_a_crash_at_any_write_the_next_collector_frees_the_rest(write: int) -> None:
    async with a_lab([a_node("n1")]) as lab:
        async with lab.replica() as extender:
            stays = await a_bound_pod(lab, extender, "stays", mib=1000)
            for name, mib in (("a", 15000), ("b", 8138), ("c", 8138)):
                await a_bound_pod(lab, extender, name, mib)
                await lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))
        async with lab.replica(Faulty(lab.api, FaultPlan(seed=1, crash_after_write=write))) as dies:
            with pytest.raises(Crashed):
                await dies.collector.collect()

        async with lab.replica() as replica:
            assert len(await replica.collector.collect()) == 3 - write
            assert await lab.held() == {"gpu-n1-0": {stays: 1000}}
            assert await replica.collector.collect() == []


async def test_an_outdated_list_does_not_remove_a_lease_from_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await a_bound_pod(lab, replica)
        await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: replica.pods.store.get("train", "lab") is None)

        async def refused(*_: object, **__: object) -> Json:
            raise Conflict(409, "Conflict", "the Lease has changed")

        async def behind(*_: object, **__: object) -> ListPage[Lease]:
            return ListPage([], "1")

        with monkeypatch.context() as bad_day:
            bad_day.setattr(replica.cluster, "delete", refused)
            bad_day.setattr(replica.cluster, "list", behind)
            assert await freed(replica) == []

        assert await freed(replica) == ["the pod is gone"]
        assert await _leases(lab) == []


async def _leases(lab: Lab) -> list[str]:
    return [lease.metadata.name for lease in (await lab.client.list(LEASES, Selection("carrel"))).items]


async def _take_without_binding(replica: Replica, uid: str) -> None:
    placement = place(replica.ledger, memory(8138), N1)
    assert isinstance(placement, Placement)
    assert await replica.lease_writer.take(placement, Holder(PodUid(uid), "lab", "train")) is None


async def test_a_gpu_is_kept_for_a_booked_pod_through_a_failed_bind_until_it_is_bound() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        booked = Holder(pod.metadata.uid, "lab", "train")
        lease = write_lease(LeaseRecord(N1, 0, GpuUuid("GPU-n1-0"), kept_for=booked), "carrel", lab.clock())
        await lab.client.create(LEASES, lease, "carrel")
        await eventually(lambda: replica.ledger.kept_for(booked.uid))
        placement = place(replica.ledger, memory(8138), N1, booked.uid)
        assert isinstance(placement, Placement)

        assert await replica.lease_writer.take(placement, booked) is None
        await replica.lease_writer.give_back(booked.uid)
        assert replica.ledger.kept_for(booked.uid) == {"GPU-n1-0"}

        assert await replica.scheduler.bind(pod, N1) is None
        await eventually(lambda: (seen := replica.pods.store.get("train", "lab")) and seen.spec.node_name)
        await replica.collector.collect()
        assert replica.ledger.kept_for(booked.uid) == frozenset()
        assert [entry.free for entry in replica.ledger.entries(N1)] == [8138]
