"""A card is free again soon after its pod has ended, and never before."""

from datetime import timedelta

from carrel.core.placement import Placement, place
from carrel.core.shares import Holder
from carrel.ports.cluster import Deletion, MergePatch
from carrel.protocols.kubernetes.resources import PODS
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node, memory
from tests.kit.lab import Lab, Replica, a_lab

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}


async def a_bound_pod(lab: Lab, carrel: Replica, name: str = "train") -> str:
    pod = await lab.pod(name, limits=GPU_MEM)
    assert await carrel.bind(pod, "n1") is None
    await eventually(lambda: (found := carrel.pods.store.get(name, "lab")) and found.spec.node_name)
    uid: str = pod["metadata"]["uid"]
    return uid


async def freed(carrel: Replica) -> list[str]:
    return [each.why for each in await carrel.collector.collect()]


async def test_a_running_pod_keeps_its_card() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        await a_bound_pod(lab, carrel)

        assert await freed(carrel) == []


async def test_a_terminating_pod_keeps_its_card_until_it_is_really_gone() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        await a_bound_pod(lab, carrel)
        await lab.client.delete(PODS, "train", "lab")
        await eventually(lambda: (pod := carrel.pods.store.get("train", "lab")) and pod.metadata.deletion_timestamp)

        assert await freed(carrel) == []
        assert [card.free for card in carrel.books.ledger.cards("n1")] == [8138, 16276]

        await lab.client.delete(PODS, "train", "lab", how=Deletion(grace_seconds=0))
        await eventually(lambda: carrel.pods.store.get("train", "lab") is None)
        assert await freed(carrel) == ["the pod is gone"]
        assert await lab.held() == {}
        assert [card.free for card in carrel.books.ledger.cards("n1")] == [16276, 16276]


async def test_a_finished_pod_gives_its_card_back_though_it_still_exists() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        await a_bound_pod(lab, carrel)
        done = MergePatch({"status": {"phase": "Succeeded"}})
        await lab.client.patch(PODS, "train", done, "lab", subresource="status")
        await eventually(lambda: (pod := carrel.pods.store.get("train", "lab")) and pod.status.phase == "Succeeded")

        assert await freed(carrel) == ["the pod has finished"]


async def test_a_successor_of_the_same_name_does_not_inherit_the_card() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        uid = await a_bound_pod(lab, carrel)
        await lab.client.delete(PODS, "train", "lab", how=Deletion(grace_seconds=0))
        await lab.pod("train", limits=GPU_MEM)
        await eventually(lambda: carrel.pods.store.by_uid(uid) is None)

        assert await freed(carrel) == ["another pod has its name now"]


async def test_a_card_that_was_taken_for_a_pod_but_never_bound_is_freed_after_a_while() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        pod = await carrel.sees(await lab.pod("train", limits=GPU_MEM))
        await _take_without_binding(carrel, pod.metadata.uid)

        assert await freed(carrel) == [], "a bind may be under way in another replica"

        lab.clock.now += timedelta(seconds=61)
        assert await freed(carrel) == ["the pod was not bound to n1"]


async def test_a_cache_that_lags_does_not_free_a_living_pods_card() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as carrel:
        uid = await a_bound_pod(lab, carrel)
        carrel.collector._pod_by_uid = lambda _: None  # as if the watch had lost the pod

        assert await freed(carrel) == []
        assert await lab.held() == {"gpu-n1-0": {uid: 8138}}


async def test_the_neighbours_on_a_card_are_left_alone() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        await a_bound_pod(lab, carrel, "goes")
        stays = await a_bound_pod(lab, carrel, "stays")
        await lab.client.delete(PODS, "goes", "lab", how=Deletion(grace_seconds=0))
        await eventually(lambda: carrel.pods.store.get("goes", "lab") is None)

        assert await freed(carrel) == ["the pod is gone"]
        assert await lab.held() == {"gpu-n1-0": {stays: 8138}}


async def _take_without_binding(carrel: Replica, uid: str) -> None:
    placement = place(carrel.books.ledger, memory(8138), "n1")
    assert isinstance(placement, Placement)
    assert await carrel.cards.take(placement, Holder(uid, "lab/train")) is None
