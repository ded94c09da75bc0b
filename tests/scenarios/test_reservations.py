"""Cards of a node where the kubelet chooses: no card is lost or doubled, whatever happens to the reservation pods."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from carrel.kubernetes.cluster import Deletion, Json, MergePatch, NotFound
from carrel.kubernetes.objects.resources import CONFIG_MAPS, GPU_CLAIMS, LEASES, PODS
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.kai_copies import KaiCopies
from tests.kit.coexist import (
    RESERVATIONS,
    Kubelet,
    coexisting,
    first,
    last,
    open_for_reservations,
    reservation_pods,
)
from tests.kit.eventually import eventually
from tests.kit.lab import Lab, Replica, a_lab

HALF = {"gpu-fraction": "0.5"}
WHOLE = {"nvidia.com/gpu": "1"}


class ReservationContext:
    """One node of two cards where the kubelet chooses the last free one, and one replica of Carrel."""

    def __init__(self, lab: Lab, kubelet: Kubelet, carrel: Replica) -> None:
        self.lab = lab
        self.kubelet = kubelet
        self.carrel = carrel

    async def catch_up(self) -> None:
        """Until the caches have all that the API server has."""
        pods = (await self.lab.client.list(PODS)).items
        there = {(pod.metadata.uid, pod.metadata.resource_version) for pod in pods}
        await eventually(
            lambda: {(p.metadata.uid, p.metadata.resource_version) for p in self.carrel.pods.store} == there
        )
        leases = (await self.lab.client.list(LEASES)).items
        known = {(lease.metadata.uid, lease.metadata.resource_version) for lease in leases}
        await eventually(lambda: {(each.uid, each.version) for each in self.carrel.cluster_ledger.leases()} == known)

    async def rounds(self, count: int = 12) -> None:
        """So many rounds of the controller and of the kubelet: enough for any story to come to its end."""
        for _ in range(count):
            await self.catch_up()
            await self.carrel.collector.collect()
            for name in self.carrel.reservations.due():
                await self.carrel.reservations.look_at(name)
            await self.kubelet.work()
            await asyncio.sleep(0.001)  # binds want to go on too

    async def bind(self, pod: Json) -> Refusal | None:
        """As kube-scheduler does: filter, then bind, while the controller and the kubelet do their work."""
        seen = await self.carrel.sees(pod)
        found = self.carrel.filter(seen, ["n1"])
        if not found.fitting:
            return self.carrel.why(seen)
        binding = asyncio.ensure_future(self.carrel.scheduler.bind(seen, "n1"))
        while not binding.done():
            await self.rounds(1)
        return await binding

    async def runs(self, name: str, **spec: Any) -> Json:
        pod = await self.lab.pod(name, **spec)
        assert await self.bind(pod) is None
        return pod

    async def card_of(self, name: str) -> str:
        return (await self.lab.annotations(name))["carrel.dev/devices"]

    async def goes(self, name: str, namespace: str = "lab") -> None:
        await self.lab.client.delete(PODS, name, namespace, how=Deletion(grace_seconds=0))

    async def the_reservation(self) -> Json:
        (pod,) = await reservation_pods(self.lab)
        return await self.lab.client.get(PODS, pod.metadata.name, RESERVATIONS)

    async def reservation_on(self, lease: str) -> str:
        notes = (await self.lab.client.get(LEASES, lease, "carrel"))["metadata"]["annotations"]
        return str(notes.get("carrel.dev/reservation", ""))


@contextlib.asynccontextmanager
async def a_scene(cards: int = 2, **more: Any) -> AsyncIterator[ReservationContext]:
    node = coexisting("n1", cards)
    async with a_lab([node]) as lab:
        await open_for_reservations(lab)
        async with lab.replica(**more) as carrel:
            scene = ReservationContext(lab, Kubelet(lab, node, last), carrel)
            yield scene
            carrel.ledger.audit()


async def test_two_halves_share_the_card_that_the_reservation_pod_reported_and_a_third_gets_another() -> None:
    async with a_scene() as scene:
        uids = {name: (await scene.runs(name, annotations=HALF))["metadata"]["uid"] for name in ("a", "b", "c")}

        assert [await scene.card_of(name) for name in "abc"] == ["GPU-n1-1", "GPU-n1-1", "GPU-n1-0"]
        pods = await reservation_pods(scene.lab)
        assert sorted(pod.metadata.labels["runai-gpu-group"] for pod in pods) == ["gpu-n1-0", "gpu-n1-1"]
        assert await scene.lab.annotations("a") == {
            **HALF,
            "carrel.dev/devices": "GPU-n1-1",
            "carrel.dev/slots": "n1/0",
            "received-resource-type": "Fraction",
            "runai/shared-gpu-configmap": f"a-{uids['a'][:7]}-shared-gpu",
        }


async def test_the_last_to_leave_takes_the_reservation_away_and_the_card_is_free() -> None:
    async with a_scene(cards=1) as scene:
        for name in ("a", "b"):
            await scene.runs(name, annotations=HALF)
        await scene.goes("a")
        await scene.rounds()
        assert len(await reservation_pods(scene.lab)) == 1, "the other one still runs there"

        scene.lab.clock.now += timedelta(minutes=1)
        await scene.goes("b")
        await scene.rounds()

        assert await reservation_pods(scene.lab) == []
        assert await scene.lab.held() == {}
        assert scene.kubelet.free == ["GPU-n1-0"]
        await scene.runs("whole", limits=WHOLE)


async def test_a_pod_that_asks_the_kubelet_itself_takes_a_slot_and_needs_no_reservation() -> None:
    async with a_scene() as scene:
        pod = await scene.runs("whole", limits=WHOLE)
        await scene.rounds()

        assert await scene.lab.annotations("whole") == {"carrel.dev/slots": "n1/0"}
        assert await scene.lab.held() == {"gpu-n1-0": {pod["metadata"]["uid"]: None}}
        assert await reservation_pods(scene.lab) == []
        await scene.runs("half", annotations=HALF)
        refusal = await scene.bind(await scene.lab.pod("no-room", limits=WHOLE))
        assert refusal is not None
        assert "none of its 2 GPUs would do" in refusal.reason
        assert set(scene.kubelet.given) >= {pod["metadata"]["uid"]}
        assert scene.kubelet.free == []


async def test_a_claim_of_two_cards_gets_two_reservations() -> None:
    async with a_scene(cards=3) as scene:
        await scene.runs("pair", annotations={"carrel.dev/gpu-cards": "2"})

        assert sorted((await scene.card_of("pair")).split(",")) == ["GPU-n1-1", "GPU-n1-2"]
        assert len(await reservation_pods(scene.lab)) == 2


async def test_a_lost_reservation_closes_the_node_until_a_pod_has_the_same_card_again() -> None:
    async with a_scene(cards=3) as scene:
        await scene.runs("a", annotations=HALF)
        assert await scene.card_of("a") == "GPU-n1-2"
        scene.kubelet.choose = first  # it will give another card at first
        await scene.goes((await scene.the_reservation())["metadata"]["name"], RESERVATIONS)
        await scene.kubelet.work()
        await scene.rounds(4)

        assert '"lost"' in await scene.reservation_on("gpu-n1-0")
        refusal = await scene.bind(await scene.lab.pod("late", annotations=HALF))
        assert refusal is not None
        assert "GPU-n1-2 has lost its reservation pod" in refusal.reason

        scene.kubelet.choose = last
        await scene.rounds()

        reservation = await scene.the_reservation()
        assert reservation["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == "GPU-n1-2"
        assert '"held"' in await scene.reservation_on("gpu-n1-0")
        await scene.runs("later", annotations=HALF)
        assert await scene.card_of("later") == "GPU-n1-2"


async def test_an_evicted_reservation_pod_is_made_again() -> None:
    async with a_scene() as scene:
        await scene.runs("a", annotations=HALF)
        before = await scene.the_reservation()
        evicted = MergePatch({"status": {"phase": "Failed", "reason": "Evicted"}})
        await scene.lab.client.patch(PODS, before["metadata"]["name"], evicted, RESERVATIONS, subresource="status")
        await scene.kubelet.work()
        await scene.rounds()

        after = await scene.the_reservation()
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == await scene.card_of("a")


async def test_a_card_that_another_pod_was_given_is_set_aside_until_one_of_them_goes() -> None:
    async with a_scene(reserve_s=0.5) as scene:
        await scene.runs("a", annotations=HALF)
        card = await scene.card_of("a")
        await scene.goes((await scene.the_reservation())["metadata"]["name"], RESERVATIONS)
        await scene.kubelet.work()
        # Somebody whom Carrel does not know starts a pod at this moment.
        stranger = {"name": "main", "image": "work", "resources": {"limits": WHOLE}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger", "namespace": "lab"}}
        await scene.lab.client.create(PODS, {**body, "spec": {"nodeName": "n1", "containers": [stranger]}}, "lab")
        await scene.kubelet.work()
        await scene.kubelet.report_users()
        status = scene.carrel.cluster_ledger
        await eventually(lambda: any(status.users_of(gpu) for gpu in scene.kubelet.node.gpus))
        await scene.rounds()

        assert '"doubled"' in await scene.reservation_on("gpu-n1-0")
        assert len(await reservation_pods(scene.lab)) == 1, "our pod keeps the card that it got instead"
        refusal = await scene.bind(await scene.lab.pod("b", annotations=HALF))
        assert refusal is not None

        await scene.goes("stranger")
        await scene.kubelet.work()
        await scene.kubelet.report_users()
        await scene.rounds()

        assert '"held"' in await scene.reservation_on("gpu-n1-0")
        assert (await scene.the_reservation())["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == card


async def test_a_reservation_pod_that_never_says_which_card_is_made_again() -> None:
    async with a_scene(reserve_s=0.2) as scene:
        scene.kubelet.is_silent = True
        refusal = await scene.bind(pod := await scene.lab.pod("a", annotations=HALF))
        assert refusal == Refusal("the kubelet of n1 has not handed over a card for GPU 0 of n1 yet")
        stuck = await scene.the_reservation()
        assert await scene.lab.held() == {"gpu-n1-0": {}}, "the next try finds the reservation ready"

        scene.kubelet.is_silent = False
        scene.lab.clock.now += timedelta(minutes=4)
        await scene.rounds()
        assert await reservation_pods(scene.lab) == []

        while await scene.bind(pod) is not None:
            pass
        assert (await scene.the_reservation())["metadata"]["uid"] != stuck["metadata"]["uid"]


async def test_a_bind_that_gave_up_waiting_finds_its_card_at_the_next_try() -> None:
    async with a_scene(reserve_s=0.2) as scene:
        pod = await scene.lab.pod("a", annotations=HALF)
        scene.kubelet.is_away = True
        assert await scene.bind(pod) is not None
        scene.kubelet.is_away = False
        await scene.rounds(3)
        made = await scene.the_reservation()

        assert await scene.carrel.bind(pod, "n1") is None

        assert (await scene.the_reservation())["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_second_pod_for_a_slot_and_one_that_no_lease_wants_are_deleted() -> None:
    async with a_scene(cards=4) as scene:
        await scene.runs("a", annotations=HALF)
        believed = await scene.the_reservation()
        for name, lease in (("double", "gpu-n1-0"), ("unwanted", "gpu-n1-3")):
            metadata = {
                "name": name,
                "annotations": {"carrel.dev/lease": lease},
                "labels": believed["metadata"]["labels"],
            }
            await scene.lab.client.create(PODS, {**believed, "metadata": metadata, "status": {}}, RESERVATIONS)
        await scene.kubelet.work()
        await scene.rounds()

        assert [pod.metadata.name for pod in await reservation_pods(scene.lab)] == [believed["metadata"]["name"]]


async def test_a_cache_that_has_not_heard_of_a_lease_does_not_remove_its_reservation_pod() -> None:
    async with a_scene() as scene:
        await scene.runs("a", annotations=HALF)
        await scene.catch_up()
        lease = scene.carrel.cluster_ledger.lease("gpu-n1-0")
        assert lease is not None
        scene.carrel.cluster_ledger.erased(lease.name, lease.uid)

        await scene.carrel.reservations.look_at("gpu-n1-0")

        assert "deletionTimestamp" not in (await scene.the_reservation())["metadata"]


async def test_a_cache_that_lags_makes_no_reservation_pod_for_a_slot_that_is_free_again() -> None:
    async with a_scene(reserve_s=0.0) as scene:
        assert await scene.carrel.bind(await scene.lab.pod("a", annotations=HALF), "n1") is not None
        await scene.catch_up()
        old = scene.carrel.cluster_ledger.lease("gpu-n1-0")
        assert old is not None
        await scene.lab.client.delete(LEASES, "gpu-n1-0", "carrel")
        await eventually(lambda: scene.carrel.cluster_ledger.lease("gpu-n1-0") is None)
        scene.carrel.cluster_ledger.wrote(old)

        await scene.carrel.reservations.look_at("gpu-n1-0")

        assert await reservation_pods(scene.lab) == []


async def test_a_reservation_pod_asks_for_no_card_of_its_own() -> None:
    async with a_scene() as scene:
        await scene.runs("a", annotations=HALF)
        reservation = await scene.carrel.sees(await scene.the_reservation())

        assert scene.carrel.read_request(reservation) is None


async def test_members_of_a_gang_get_their_reservations_together() -> None:
    async with a_scene() as scene:
        gang = {**HALF, "pod-group-name": "team", "carrel.dev/gang-size": "3"}
        pods = [await scene.lab.pod(name, annotations=gang) for name in "abc"]
        seen = [await scene.carrel.sees(pod) for pod in pods]
        for pod in seen:
            assert list(scene.carrel.filter(pod, ["n1"]).fitting) == ["n1"]
        binding = asyncio.gather(*(scene.carrel.scheduler.bind(pod, "n1") for pod in seen))
        while not binding.done():
            await scene.rounds(1)

        assert await binding == [None, None, None]
        cards = Counter([await scene.card_of(name) for name in "abc"])
        assert sorted(cards.values()) == [1, 2]


async def test_a_forged_word_on_a_users_pod_is_no_reservation() -> None:
    async with a_scene() as scene:
        await scene.lab.pod("forged", annotations={"carrel.dev/lease": "gpu-n1-0"}, limits=WHOLE)
        await scene.rounds(2)

        assert await scene.lab.client.get(PODS, "forged", "lab")
        with pytest.raises(NotFound):
            await scene.lab.client.get(LEASES, "gpu-n1-0", "carrel")


async def test_kais_tools_find_the_group_and_the_card_of_a_fraction_pod() -> None:
    async with a_scene() as scene:
        pod = await scene.runs("a", annotations={**HALF, "gpu-fraction-num-devices": "2"})
        await scene.catch_up()
        copies = KaiCopies(scene.carrel.cluster, scene.carrel.cluster_ledger, scene.carrel.read_request)

        seen = await scene.carrel.sees(pod)
        for _ in range(2):  # also after a crash in between
            assert await copies.write(seen)

        labels = (await scene.lab.client.get(PODS, "a", "lab"))["metadata"]["labels"]
        assert labels == {"runai-gpu-group/gpu-n1-0": "gpu-n1-0", "runai-gpu-group/gpu-n1-1": "gpu-n1-1"}
        prefix = (await scene.lab.annotations("a"))["runai/shared-gpu-configmap"]
        for name in (f"{prefix}-0", f"{prefix}-0-evar"):
            written = await scene.lab.client.get(CONFIG_MAPS, name, "lab")
            assert written["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
            assert written["data"] == {
                "NVIDIA_VISIBLE_DEVICES": await scene.card_of("a"),
                "RUNAI-VISIBLE-DEVICES": await scene.card_of("a"),
                "RUNAI_NUM_OF_GPUS": "0.50",
                "GPU_PORTION": "0.50",
            }


async def test_what_a_user_writes_on_a_pod_makes_no_config_map() -> None:
    async with a_scene() as scene:
        forged = {**HALF, "carrel.dev/slots": "n1/0", "runai/shared-gpu-configmap": "kube-root-ca.crt"}
        seen = await scene.carrel.sees(await scene.lab.pod("forged", annotations=forged))

        assert not await KaiCopies(scene.carrel.cluster, scene.carrel.cluster_ledger, scene.carrel.read_request).write(
            seen
        )


async def test_a_claim_names_the_card_and_not_the_slot() -> None:
    async with a_scene() as scene:
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
        await scene.lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        await eventually(lambda: scene.carrel.claims.store.get("one", "lab"))
        pod = await scene.runs("a", annotations={"gpu.scheduling/claim": "one"})
        await scene.catch_up()

        assert (await scene.lab.annotations("a"))["gpu.scheduling/allocated"] == "1"
        assert list(await scene.lab.held()) == ["gpu-n1-0"], "the slot has another number"
        assert scene.carrel.cluster_ledger.indices_of(
            scene.carrel.cluster_ledger.leases_of(pod["metadata"]["uid"])
        ) == (1,)
