"""What was there before Carrel: pods of every dialect that no Lease names hold their GPUs from the first answer on."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from carrel.cluster.record.adoption import Adoption, Outcome
from carrel.dialects.gpuclaim import node_status
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.ids import GpuUuid, NodeName, PodUid
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS
from carrel.ledger.gpus import Node
from carrel.ledger.shares import Holder, Share, ShareState
from carrel.ledger.tiers import TierPolicy
from carrel.lifecycle.freeing.adoption_loop import AdoptionLoop
from tests.kit.coexist import coexisting, create_reservation_namespace
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_gpu, a_node
from tests.kit.lab import Lab, Replica, a_lab

GPUSHARE = {
    "ALIYUN_COM_GPU_MEM_IDX": "0",
    "ALIYUN_COM_GPU_MEM_DEV": "16276",
    "ALIYUN_COM_GPU_MEM_POD": "2048",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1800000000000000000",
}
GPU = GpuUuid("GPU-n1-0")
TWO_GIB = {"aliyun.com/gpu-mem": "2048"}
WHOLE = {"nvidia.com/gpu": "1"}


async def placed(lab: Lab, name: str, phase: str = "Running", **spec: Any) -> Json:
    """A pod that another scheduler has bound, to n1 if nothing else is said."""
    container = {"name": "main", "image": "work", "resources": {"limits": spec.get("limits", {})}}
    metadata = {"name": name, "annotations": spec.get("annotations", {}), "labels": spec.get("labels", {})}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": spec.get("node", "n1"), "schedulerName": "another-scheduler", "containers": [container]},
    }
    namespace = spec.get("namespace", "lab")
    pod = await lab.client.create(PODS, body, namespace)
    return await lab.client.patch(
        PODS, pod["metadata"]["name"], MergePatch({"status": {"phase": phase}}), namespace, subresource="status"
    )


async def used_by(lab: Lab, users: dict[int, list[str]]) -> None:
    """The agent reports which pods the kubelet has given which GPUs, by index."""
    status = await lab.client.get(GPU_NODE_STATUSES, "n1")
    for device in status["status"]["devices"]:
        device["inUseBy"] = users.get(device["id"], [])
    patch = MergePatch({"status": {"devices": status["status"]["devices"]}})
    await lab.client.patch(GPU_NODE_STATUSES, "n1", patch, subresource="status")


def free(replica: Replica) -> list[int]:
    """MiB of each GPU of n1."""
    return [entry.free for entry in replica.ledger.entries(N1)]


async def test_a_pod_of_gpushares_extender_holds_its_gpu_before_the_first_answer() -> None:
    async with a_lab([a_node("n1")]) as lab:
        await placed(lab, "old", limits=TWO_GIB, annotations=GPUSHARE)
        async with lab.replica() as replica:
            assert free(replica) == [14228, 16276]
            pod = await replica.sees(await lab.pod("new", limits={"aliyun.com/gpu-mem": "15000"}))
            assert replica.filter(pod, [N1]).fitting
            assert await replica.bind(await lab.pod("other", limits={"aliyun.com/gpu-mem": "15000"}), "n1") is None
            assert (await lab.annotations("other"))["carrel.dev/devices"] == "GPU-n1-1"
            assert await replica.bind(await lab.pod("third", limits={"aliyun.com/gpu-mem": "15000"}), "n1") is not None


async def report(lab: Lab, node: Node) -> None:
    """What the agent of the node says for the first time."""
    status = node_status(node, {}, lab.clock.now)
    await lab.client.create(GPU_NODE_STATUSES, status)
    told = MergePatch({"status": status["status"]})
    await lab.client.patch(GPU_NODE_STATUSES, node.name, told, subresource="status")


async def test_a_gpu_that_another_node_reported_too_is_held_by_the_pod_of_its_own_node() -> None:
    """The other node is read first, and has the GPU until its owner's report is seen."""
    liar = replace(a_node("a0", gpus=1), gpus=(replace(a_gpu("n1", 0), node=NodeName("a0")),))
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        await placed(lab, "old", limits=TWO_GIB, annotations=GPUSHARE)
        await placed(lab, "beside", limits=TWO_GIB, annotations=GPUSHARE, node="a0")
        await lab.client.delete(GPU_NODE_STATUSES, "n1")
        async with lab.replica() as replica:
            await report(lab, liar)
            await eventually(lambda: replica.ledger.entry(GPU), "the GPU of the node that reports it first")
            await report(lab, a_node("n1", gpus=1))
            await eventually(lambda: replica.ledger.node(N1), "the GPU's own node")

            await eventually(lambda: list(held_on_gpu(replica)) == ["lab/old"], "the pod of its own node holds it")
            await lab.client.delete(GPU_NODE_STATUSES, "a0")
            await eventually(lambda: replica.ledger.node(NodeName("a0")) is None, "the other node is gone")
            assert list(held_on_gpu(replica)) == ["lab/old"]


def held_on_gpu(replica: Replica) -> list[str]:
    entry = replica.ledger.entry(GPU)
    return [share.holder.full_name for share in entry.shares.values()] if entry else []


async def test_its_gpu_is_free_when_it_is_gone() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        await placed(lab, "old", limits=TWO_GIB, annotations=GPUSHARE)
        await eventually(lambda: free(replica) == [14228, 16276])
        await lab.client.delete(PODS, "old", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: free(replica) == [16276, 16276])
        replica.ledger.audit()


@pytest.mark.parametrize(
    ("annotations", "limits", "expected"),
    [
        pytest.param({**GPUSHARE, "ALIYUN_COM_GPU_MEM_POD": "16276"}, TWO_GIB, [14228, 16276], id="more than asked"),
        pytest.param(GPUSHARE, {}, [16276, 16276], id="a pod that asks for nothing"),
        pytest.param({"ALIYUN_COM_GPU_MEM_IDX": "7"}, TWO_GIB, [14228, 14228], id="a GPU that the node does not have"),
        pytest.param({"ALIYUN_COM_GPU_MEM_IDX": "all"}, TWO_GIB, [14228, 14228], id="no number"),
        pytest.param({}, TWO_GIB, [14228, 14228], id="nobody says which: it may be any of them"),
        pytest.param({"gpu.scheduling/allocated": "0,1"}, {}, [16276, 16276], id="a claim that it does not name"),
    ],
)
async def test_annotations_are_believed_only_up_to_what_the_pod_asks_for(
    annotations: dict[str, str], limits: dict[str, str], expected: list[int]
) -> None:
    async with a_lab([a_node("n1")]) as lab:
        await placed(lab, "old", limits=limits, annotations=annotations)
        async with lab.replica() as replica:
            assert free(replica) == expected


ALLOCATION = "scheduler.framework.gpushare.allocation"
HAMI = "hami.io/vgpu-devices-allocated"
HAMI_LIMITS = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}


@pytest.mark.parametrize(
    ("annotations", "limits", "expected"),
    [
        pytest.param(
            {ALLOCATION: '{"0": {"0": 512, "2": 1024}, "1": {"2": 512}}', "ALIYUN_COM_GPU_MEM_IDX": "1"},
            TWO_GIB,
            [15764, 16276, 14740],
            id="gpushare: memory of several GPUs, which wins over the index",
        ),
        pytest.param(
            {ALLOCATION: '{"0": {"1": 1, "2": 1}}'},
            TWO_GIB,
            [16276, 15252, 15252],
            id="gpushare: too little",
        ),
        pytest.param(
            {ALLOCATION: '{"0": {"1": 1024, "2": 1024}}'},
            {**TWO_GIB, "aliyun.com/gpu-count": "2"},
            [16276, 0, 0],
            id="gpushare: a number of GPUs, which Carrel would refuse",
        ),
        pytest.param({ALLOCATION: "{0: 1}"}, TWO_GIB, [14228] * 3, id="gpushare: no JSON"),
        pytest.param({ALLOCATION: '{"0": {"first": 2048}}'}, TWO_GIB, [14228] * 3, id="gpushare: no index"),
        pytest.param({ALLOCATION: '{"0": {"1": -2048}}'}, TWO_GIB, [14228] * 3, id="gpushare: less than nothing"),
        pytest.param({ALLOCATION: '{"0": {"7": 2048}}'}, TWO_GIB, [14228] * 3, id="gpushare: no such GPU"),
        pytest.param({ALLOCATION: "{}"}, TWO_GIB, [14228] * 3, id="gpushare: nothing"),
        pytest.param(
            {HAMI: "GPU-n1-0,NVIDIA,3000,30:GPU-n1-2,NVIDIA,3000,30:;"},
            HAMI_LIMITS,
            [13276, 16276, 13276],
            id="HAMi: memory of two GPUs",
        ),
        pytest.param(
            {HAMI: ";GPU-n1-1,NVIDIA,8138,0:;"},
            {"nvidia.com/gpumem-percentage": "50"},
            [16276, 8138, 16276],
            id="HAMi: a part of a GPU",
        ),
        pytest.param(
            {HAMI: "GPU-n1-1,NVIDIA,16276,100:;"}, WHOLE, [16276, 0, 16276], id="HAMi: a whole GPU, in NVIDIA's words"
        ),
        pytest.param({HAMI: "GPU-n1-1"}, HAMI_LIMITS, [13276] * 3, id="HAMi: not in its form"),
        pytest.param({HAMI: "GPU-9,NVIDIA,6000,0:;"}, HAMI_LIMITS, [13276] * 3, id="HAMi: no such GPU"),
    ],
)
async def test_gpus_that_another_scheduler_names_are_held_as_it_divided_them_and_else_all_of_them(
    annotations: dict[str, str], limits: dict[str, str], expected: list[int]
) -> None:
    async with a_lab([a_node("n1", 3)]) as lab:
        await placed(lab, "old", limits=limits, annotations=annotations)
        async with lab.replica() as replica:
            assert free(replica) == expected
            replica.ledger.audit()


async def test_a_number_of_gpus_that_nobody_names_closes_the_node_with_the_reason() -> None:
    async with a_lab([a_node("n1")]) as lab:
        await placed(lab, "old", limits={**TWO_GIB, "aliyun.com/gpu-count": "2"}, annotations={ALLOCATION: "?"})
        async with lab.replica() as replica:
            refusal = replica.waiting_reason.why(await replica.sees(await lab.pod("new", limits=TWO_GIB)))
            assert refusal is not None
            assert "lab/old was placed there without Carrel and has 2 GPUs of n1; which, the agent has not" in str(
                refusal
            )


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_pod_that_has_finished_holds_nothing(phase: str) -> None:
    async with a_lab([a_node("n1")]) as lab:
        await placed(lab, "old", phase, limits=TWO_GIB, annotations=GPUSHARE)
        async with lab.replica() as replica:
            assert free(replica) == [16276, 16276]


async def test_annotations_of_a_pod_that_is_not_bound_hold_nothing() -> None:
    async with a_lab([a_node("n1")]) as lab:
        await lab.pod("forged", limits=TWO_GIB, annotations=GPUSHARE)
        async with lab.replica() as replica:
            assert free(replica) == [16276, 16276]


async def test_a_pod_of_the_gpuclaim_scheduler_holds_the_gpus_that_it_was_told() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab:
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "two"}}
        await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 2}}}, "lab")
        told = {"gpu.scheduling/claim": "two", "gpu.scheduling/allocated": "n1:0,2"}
        await placed(lab, "old", annotations=told)
        async with lab.replica() as replica:
            assert free(replica) == [0, 16276, 0]


async def test_a_whole_gpu_of_another_plugin_closes_the_node_until_the_agent_says_which_it_is() -> None:
    async with a_lab([a_node("n1")]) as lab:
        old = await placed(lab, "old", limits=WHOLE)
        async with lab.replica() as replica:
            pod = await replica.sees(await lab.pod("new", limits=TWO_GIB))
            refusal = replica.waiting_reason.why(pod)
            assert refusal is not None
            assert "lab/old was placed there without Carrel and has a GPU of n1" in refusal.reason

            await used_by(lab, {1: [old["metadata"]["uid"]]})
            await eventually(lambda: free(replica) == [16276, 0])
            assert replica.waiting_reason.why(pod) is None


async def test_a_pod_that_asks_in_an_unknown_way_holds_the_gpu_that_the_kubelet_gave_it() -> None:
    async with a_lab([a_node("n1")]) as lab:
        old = await placed(lab, "old", limits={"other.example/gpu": "1"})
        await used_by(lab, {0: [old["metadata"]["uid"]]})
        async with lab.replica() as replica:
            assert free(replica) == [0, 16276]


async def test_the_gpu_of_a_pod_whose_lease_was_deleted_is_still_held() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("a", limits=TWO_GIB), "n1") is None
        await lab.client.delete(LEASES, "gpu-n1-0", "carrel")
        await eventually(lambda: not list(replica.cluster_ledger.leases()))
        await eventually(lambda: free(replica) == [14228, 16276])
        replica.ledger.audit()


async def test_a_pod_that_lost_one_of_its_leases_still_holds_all_its_gpus() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("a", limits={"nvidia.com/gpu": "2"}), "n1") is None
        await eventually(lambda: replica.pods.store.get("a", "lab").spec.node_name)  # type: ignore[union-attr] # it is there
        await lab.client.delete(LEASES, "gpu-n1-1", "carrel")
        await eventually(lambda: len(list(replica.cluster_ledger.leases())) == 1)

        await eventually(lambda: free(replica) == [0, 0])
        replica.ledger.audit()


async def test_a_slot_that_another_pod_has_just_got_is_not_recorded_twice() -> None:
    async with a_lab([coexisting("n1", gpus=1)]) as lab, lab.replica() as replica:
        await advertises(lab, 1, 1)
        await eventually(lambda: replica.ledger.rooms[N1].whole == 1)
        assert await replica.bind(await lab.pod("a", limits=WHOLE), "n1") is None
        (entry,) = replica.ledger.entries(N1)
        other = Share(Holder(PodUid("u2"), "lab", "b"), entry.gpu.uuid, None, ShareState.ASSIGNED)

        assert not await replica.lease_writer.record_share(entry.gpu, other)


async def test_a_foreign_pod_whose_request_cannot_be_read_counts_with_the_gpus_that_it_asks_the_kubelet_for() -> None:
    async with a_lab([a_node("n1")]) as lab:
        await placed(lab, "old", limits=WHOLE, annotations={"carrel.dev/gpu-count": "many"})
        async with lab.replica() as replica:
            (found,) = replica.cluster_ledger.unrecorded(N1)
            assert (found.count, found.is_known) == (1, False)


async def test_a_pod_without_a_lease_is_no_victim_unless_the_setting_for_older_pods_says_so() -> None:
    async with a_lab([a_node("n1")]) as lab:
        old = await placed(lab, "old", limits=TWO_GIB, annotations=GPUSHARE)
        async with lab.replica() as replica:
            assert not replica.pod_facts.may_lose_gpus(await replica.sees(old))
        async with lab.replica(tier_policy=TierPolicy(older_pods_are_revocable=True)) as replica:
            assert replica.pod_facts.may_lose_gpus(await replica.sees(old))


async def test_where_pods_of_nobody_keep_their_gpus_they_are_no_victims_whatever_is_written_on_them() -> None:
    keep = TierPolicy(older_pods_are_revocable=True, nobodys_pods_keep=True)
    async with a_lab([a_node("n1", 2)]) as lab:
        told = {"carrel.dev/tier": "opportunistic"}
        nobodys = await placed(lab, "nobodys", limits=TWO_GIB, annotations={**GPUSHARE, **told})
        adas = await placed(lab, "adas", limits=TWO_GIB, annotations={**GPUSHARE, **told, "carrel.dev/user": "ada"})
        async with lab.replica(tier_policy=keep) as replica:
            pods = [await replica.sees(each) for each in (nobodys, adas)]
            assert [replica.pod_facts.may_lose_gpus(pod) for pod in pods] == [False, True]


# --- recording them --------------------------------------------------------------------------------------------------


async def test_adoption_records_what_pods_hold_once() -> None:
    async with a_lab([a_node("n1")]) as lab:
        old = (await placed(lab, "old", limits=TWO_GIB, annotations=GPUSHARE))["metadata"]["uid"]
        lost = await placed(lab, "lost", limits=TWO_GIB)
        async with lab.replica() as replica:
            adoption = Adoption(replica)
            before = free(replica)
            assert {str(each.holder): each.outcome for each in adoption.plan()} == {
                "lab/old": Outcome.TO_RECORD,
                "lab/lost": Outcome.UNKNOWN,
            }
            assert await lab.held() == {}, "a plan writes nothing"
            await adoption.record()

            assert await lab.held() == {"gpu-n1-0": {old: 2048}}
            assert free(replica) == before
            writes = len(replica.transport.writes)
            assert [str(each.holder) for each in await adoption.record()] == ["lab/lost"]
            assert len(replica.transport.writes) == writes
            await lab.client.delete(PODS, "old", "lab", how=DeleteOptions(grace_seconds=0))
            await lab.client.delete(
                PODS, "lost", "lab", how=DeleteOptions(uid=lost["metadata"]["uid"], grace_seconds=0)
            )
            await eventually(lambda: not list(replica.pods.store))
            await replica.collector.collect()
            assert (await lab.held(), free(replica)) == ({}, [16276, 16276])
            replica.ledger.audit()


async def test_a_pod_that_is_half_recorded_holds_all_its_gpus_and_the_next_adoption_completes_it() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab:
        old = (await placed(lab, "old", limits={"nvidia.com/gpu": "2"}))["metadata"]["uid"]
        await used_by(lab, {0: [old], 2: [old]})
        async with lab.replica() as replica:
            gpu, share = replica.ledger.entry(GpuUuid("GPU-n1-0")), replica.ledger.shares_of(old)[GpuUuid("GPU-n1-0")]
            assert gpu is not None
            assert await replica.lease_writer.record_share(gpu.gpu, share)
        async with lab.replica() as replica:
            assert free(replica) == [0, 16276, 0]
            await Adoption(replica).record()

        assert await lab.held() == {"gpu-n1-0": {old: None}, "gpu-n1-2": {old: None}}


async def test_where_the_kubelet_chooses_a_slot_is_recorded_for_each_gpu_of_the_pod() -> None:
    async with a_lab([coexisting("n1", gpus=3)]) as lab:
        await advertises(lab, 3, 3)
        old = (await placed(lab, "old", limits={"nvidia.com/gpu": "2"}))["metadata"]["uid"]
        async with lab.replica() as replica:
            await Adoption(replica).record()
            assert replica.ledger.rooms[N1].whole == 1

        assert await lab.held() == {"gpu-n1-1": {old: None}, "gpu-n1-2": {old: None}}


async def test_what_is_true_is_recorded_even_if_it_is_more_than_the_gpu_has() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("ours", limits={"aliyun.com/gpu-mem": "15000"}), "n1") is None
        await placed(lab, "old", limits=TWO_GIB, annotations=GPUSHARE)
        await eventually(lambda: free(replica) == [16276 - 15000 - 2048, 16276])
        await Adoption(replica).record()

        assert len((await lab.held())["gpu-n1-0"]) == 2
        assert free(replica) == [16276 - 15000 - 2048, 16276]


async def test_the_controller_adopts_pods_where_the_setting_says_so() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        old = (await placed(lab, "old", limits=TWO_GIB, annotations=GPUSHARE))["metadata"]["uid"]
        loop = AdoptionLoop(Adoption(replica), every_s=0.01)
        running = asyncio.ensure_future(loop.run())
        try:
            await eventually(lambda: len(list(replica.cluster_ledger.leases())) == 1)
        finally:
            running.cancel()
            await asyncio.wait([running])
        assert await lab.held() == {"gpu-n1-0": {old: 2048}}


# --- where the kubelet chooses the GPUs ------------------------------------------------------------------------------


async def advertises(lab: Lab, allocatable: int, capacity: int = 2) -> None:
    """What the kubelet of n1 has to give."""
    amounts = {"capacity": {"nvidia.com/gpu": str(capacity)}, "allocatable": {"nvidia.com/gpu": str(allocatable)}}
    await lab.client.patch(NODES, "n1", MergePatch({"status": amounts}), subresource="status")


HALF = {"gpu-fraction": "0.5"}


async def test_where_the_kubelet_chooses_a_pod_from_before_leaves_one_slot_less() -> None:
    async with a_lab([coexisting("n1")]) as lab:
        await advertises(lab, 2)
        await placed(lab, "old", limits=WHOLE)
        async with lab.replica() as replica:
            assert replica.ledger.rooms[N1].whole == 1
            two = await replica.sees(await lab.pod("two", annotations={"carrel.dev/gpu-count": "2"}))
            refusal = replica.waiting_reason.why(two)
            assert refusal is not None
            assert "lab/old has GPUs of n1, and Carrel has not placed them there" in refusal.reason


async def test_kais_own_reservation_pod_and_its_fractions_have_one_gpu_together() -> None:
    async with a_lab([coexisting("n1")]) as lab:
        await create_reservation_namespace(lab)
        await advertises(lab, 2)
        group = {"runai-gpu-group": "g1"}
        uuid = {"run.ai/reserve_for_gpu_index": "GPU-n1-1"}
        await placed(lab, "r", limits=WHOLE, labels=group, annotations=uuid, namespace="kai-resource-reservation")
        for name in ("a", "b"):
            await placed(lab, name, annotations=HALF, labels=group)
        async with lab.replica() as replica:
            assert replica.ledger.rooms[N1].whole == 1


@pytest.mark.parametrize(
    ("allocatable", "words"),
    [
        pytest.param(0, "has no GPUs to give: its device plugin is away", id="the plugin is away"),
        pytest.param(1, "has 1 of 2 GPUs to give", id="the plugin calls one unhealthy that Carrel does not"),
    ],
)
async def test_there_are_never_more_slots_than_the_kubelet_has_gpus_to_give(allocatable: int, words: str) -> None:
    async with a_lab([coexisting("n1")]) as lab:
        await advertises(lab, allocatable)
        async with lab.replica() as replica:
            assert replica.ledger.rooms[N1].whole == allocatable
            pod = await replica.sees(await lab.pod("two", annotations={"carrel.dev/gpu-count": "2"}))
            refusal = replica.waiting_reason.why(pod)
            assert refusal is not None
            assert words in refusal.reason

            await advertises(lab, 2)
            await eventually(lambda: replica.ledger.rooms[N1].whole == 2)
