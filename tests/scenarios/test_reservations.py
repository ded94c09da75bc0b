"""GPUs of a node where the kubelet chooses: none is lost or given twice, whatever happens to the reservation pods."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch, NotFound, Selection
from carrel.kubernetes.informers import Informers
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, PODS, RUNTIME_CLASSES
from carrel.leases.runtime_class import RuntimeClassChoice
from carrel.leases.shown_cards import shown_cards
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.assembly import reservation_pods_on
from carrel.lifecycle.kai_metadata import KaiMetadataWriter
from carrel.lifecycle.reservation_pods import ReservationOptions
from tests.kit.coexist import (
    RESERVATIONS,
    Kubelet,
    coexisting,
    create_reservation_namespace,
    first,
    last,
    reservation_pods,
)
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

HALF = {"gpu-fraction": "0.5"}
WHOLE = {"nvidia.com/gpu": "1"}


class CoexistNode:
    """A node of two GPUs whose kubelet chooses the last free one, and one replica of Carrel."""

    def __init__(self, lab: Lab, kubelet: Kubelet, replica: Replica) -> None:
        self.lab = lab
        self.kubelet = kubelet
        self.replica = replica

    async def catch_up(self) -> None:
        """Waits until the caches have all that the API server has."""
        pods = (await self.lab.client.list(PODS)).items
        there = {(pod.metadata.uid, pod.metadata.resource_version) for pod in pods}
        await eventually(
            lambda: {(p.metadata.uid, p.metadata.resource_version) for p in self.replica.pods.store} == there
        )
        leases = (await self.lab.client.list(LEASES, Selection("carrel"))).items
        known = {(lease.metadata.uid, lease.metadata.resource_version) for lease in leases}
        await eventually(lambda: {(each.uid, each.version) for each in self.replica.cluster_ledger.leases()} == known)

    async def reconcile(self, count: int = 12) -> None:
        """Rounds of the controller and of the kubelet; twelve are enough for every test."""
        for _ in range(count):
            await self.catch_up()
            await self.replica.collector.collect()
            for name in self.replica.reservations.due():
                await self.replica.reservations.reconcile_slot(name)
            await self.kubelet.work()
            await asyncio.sleep(0.001)  # let binds run

    async def bind(self, pod: Json) -> Refusal | None:
        """As kube-scheduler does: filter, then bind, while the controller and the kubelet do their work."""
        seen = await self.replica.sees(pod)
        found = self.replica.filter(seen, ["n1"])
        if not found.fitting:
            return self.replica.why(seen)
        binding = asyncio.ensure_future(self.replica.scheduler.bind(seen, "n1"))
        while not binding.done():
            await self.reconcile(1)
        return await binding

    async def run_pod(self, name: str, **spec: Any) -> Json:
        pod = await self.lab.pod(name, **spec)
        assert await self.bind(pod) is None
        return pod

    async def gpu_of(self, name: str) -> str:
        return (await self.lab.annotations(name))["carrel.dev/devices"]

    async def delete_pod(self, name: str, namespace: str = "lab") -> None:
        await self.lab.client.delete(PODS, name, namespace, how=DeleteOptions(grace_seconds=0))

    async def the_reservation_pod(self) -> Json:
        (pod,) = await reservation_pods(self.lab)
        return await self.lab.client.get(PODS, pod.metadata.name, RESERVATIONS)

    async def reservation_on(self, lease: str) -> str:
        notes = (await self.lab.client.get(LEASES, lease, "carrel"))["metadata"]["annotations"]
        return str(notes.get("carrel.dev/reservation", ""))


@contextlib.asynccontextmanager
async def a_coexist_node(cards: int = 2, **more: Any) -> AsyncIterator[CoexistNode]:
    node = coexisting("n1", cards)
    async with a_lab([node]) as lab:
        await create_reservation_namespace(lab)
        async with lab.replica(**more) as replica:
            node_lab = CoexistNode(lab, Kubelet(lab, node, last), replica)
            yield node_lab
            replica.ledger.audit()


async def test_two_halves_share_the_gpu_that_the_reservation_pod_reported_and_a_third_gets_another() -> None:
    async with a_coexist_node() as node_lab:
        uids = {name: (await node_lab.run_pod(name, annotations=HALF))["metadata"]["uid"] for name in ("a", "b", "c")}

        assert [await node_lab.gpu_of(name) for name in "abc"] == ["GPU-n1-1", "GPU-n1-1", "GPU-n1-0"]
        pods = await reservation_pods(node_lab.lab)
        assert sorted(pod.metadata.labels["runai-gpu-group"] for pod in pods) == ["gpu-n1-0", "gpu-n1-1"]
        assert await node_lab.lab.annotations("a") == {
            **HALF,
            "carrel.dev/devices": "GPU-n1-1",
            "carrel.dev/slots": "n1/0",
            "received-resource-type": "Fraction",
            "runai/shared-gpu-configmap": f"a-{uids['a'][:7]}-shared-gpu",
        }


async def test_the_reservation_ends_with_the_last_pod_and_the_gpu_is_free() -> None:
    async with a_coexist_node(cards=1) as node_lab:
        for name in ("a", "b"):
            await node_lab.run_pod(name, annotations=HALF)
        await node_lab.delete_pod("a")
        await node_lab.reconcile()
        assert len(await reservation_pods(node_lab.lab)) == 1, "the other one still run_pod there"

        node_lab.lab.clock.now += timedelta(minutes=1)
        await node_lab.delete_pod("b")
        await node_lab.reconcile()

        assert await reservation_pods(node_lab.lab) == []
        assert await node_lab.lab.held() == {}
        assert node_lab.kubelet.free == ["GPU-n1-0"]
        await node_lab.run_pod("whole", limits=WHOLE)


async def test_a_pod_that_asks_the_kubelet_itself_takes_a_slot_and_needs_no_reservation() -> None:
    async with a_coexist_node() as node_lab:
        pod = await node_lab.run_pod("whole", limits=WHOLE)
        await node_lab.reconcile()

        assert await node_lab.lab.annotations("whole") == {"carrel.dev/slots": "n1/0"}
        assert await node_lab.lab.held() == {"gpu-n1-0": {pod["metadata"]["uid"]: None}}
        assert await reservation_pods(node_lab.lab) == []
        await node_lab.run_pod("half", annotations=HALF)
        refusal = await node_lab.bind(await node_lab.lab.pod("no-room", limits=WHOLE))
        assert refusal is not None
        assert "none of its 2 GPUs would do" in refusal.reason
        assert set(node_lab.kubelet.given) >= {pod["metadata"]["uid"]}
        assert node_lab.kubelet.free == []


async def test_a_claim_of_two_gpus_gets_two_reservations() -> None:
    async with a_coexist_node(cards=3) as node_lab:
        await node_lab.run_pod("pair", annotations={"carrel.dev/gpu-cards": "2"})

        assert sorted((await node_lab.gpu_of("pair")).split(",")) == ["GPU-n1-1", "GPU-n1-2"]
        assert len(await reservation_pods(node_lab.lab)) == 2


async def test_a_lost_reservation_closes_the_node_until_a_reservation_pod_has_the_same_gpu_again() -> None:
    async with a_coexist_node(cards=3) as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        assert await node_lab.gpu_of("a") == "GPU-n1-2"
        node_lab.kubelet.choose = first  # another GPU at first
        await node_lab.delete_pod((await node_lab.the_reservation_pod())["metadata"]["name"], RESERVATIONS)
        await node_lab.kubelet.work()
        await node_lab.reconcile(4)

        assert '"lost"' in await node_lab.reservation_on("gpu-n1-0")
        refusal = await node_lab.bind(await node_lab.lab.pod("late", annotations=HALF))
        assert refusal is not None
        assert "GPU-n1-2 has lost its reservation pod" in refusal.reason

        node_lab.kubelet.choose = last
        await node_lab.reconcile()

        reservation = await node_lab.the_reservation_pod()
        assert reservation["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == "GPU-n1-2"
        assert '"held"' in await node_lab.reservation_on("gpu-n1-0")
        await node_lab.run_pod("later", annotations=HALF)
        assert await node_lab.gpu_of("later") == "GPU-n1-2"


async def test_an_evicted_reservation_pod_is_created_again() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        before = await node_lab.the_reservation_pod()
        evicted = MergePatch({"status": {"phase": "Failed", "reason": "Evicted"}})
        await node_lab.lab.client.patch(PODS, before["metadata"]["name"], evicted, RESERVATIONS, subresource="status")
        await node_lab.kubelet.work()
        await node_lab.reconcile()

        after = await node_lab.the_reservation_pod()
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == await node_lab.gpu_of("a")


async def test_a_slot_whose_gpu_another_pod_got_is_unusable_until_one_of_them_is_gone() -> None:
    async with a_coexist_node(reserve_s=0.5) as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        card = await node_lab.gpu_of("a")
        await node_lab.delete_pod((await node_lab.the_reservation_pod())["metadata"]["name"], RESERVATIONS)
        await node_lab.kubelet.work()
        # A pod that Carrel does not know starts at this moment.
        stranger = {"name": "main", "image": "work", "resources": {"limits": WHOLE}}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger", "namespace": "lab"}}
        await node_lab.lab.client.create(PODS, {**body, "spec": {"nodeName": "n1", "containers": [stranger]}}, "lab")
        await node_lab.kubelet.work()
        await node_lab.kubelet.report_users()
        status = node_lab.replica.cluster_ledger
        await eventually(lambda: any(status.users_of(gpu) for gpu in node_lab.kubelet.node.gpus))
        await node_lab.reconcile()

        assert '"doubled"' in await node_lab.reservation_on("gpu-n1-0")
        assert len(await reservation_pods(node_lab.lab)) == 1, "the reservation pod keeps the GPU that it got instead"
        refusal = await node_lab.bind(await node_lab.lab.pod("b", annotations=HALF))
        assert refusal is not None

        await node_lab.delete_pod("stranger")
        await node_lab.kubelet.work()
        await node_lab.kubelet.report_users()
        await node_lab.reconcile()

        assert '"held"' in await node_lab.reservation_on("gpu-n1-0")
        assert (await node_lab.the_reservation_pod())["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == card


async def test_a_reservation_pod_that_never_reports_its_gpu_is_created_again() -> None:
    async with a_coexist_node(reserve_s=0.2) as node_lab:
        node_lab.kubelet.is_silent = True
        refusal = await node_lab.bind(pod := await node_lab.lab.pod("a", annotations=HALF))
        assert refusal == Refusal("the kubelet of n1 has not handed over a GPU for a reservation pod yet")
        stuck = await node_lab.the_reservation_pod()
        assert await node_lab.lab.held() == {"gpu-n1-0": {}}, "the next try finds the reservation ready"

        node_lab.kubelet.is_silent = False
        node_lab.lab.clock.now += timedelta(minutes=4)
        await node_lab.reconcile()
        assert await reservation_pods(node_lab.lab) == []

        while await node_lab.bind(pod) is not None:
            pass
        assert (await node_lab.the_reservation_pod())["metadata"]["uid"] != stuck["metadata"]["uid"]


async def test_after_a_bind_stopped_waiting_its_next_try_finds_the_gpu() -> None:
    async with a_coexist_node(reserve_s=0.2) as node_lab:
        pod = await node_lab.lab.pod("a", annotations=HALF)
        node_lab.kubelet.is_away = True
        assert await node_lab.bind(pod) is not None
        node_lab.kubelet.is_away = False
        await node_lab.reconcile(3)
        made = await node_lab.the_reservation_pod()

        assert await node_lab.replica.bind(pod, "n1") is None

        assert (await node_lab.the_reservation_pod())["metadata"]["uid"] == made["metadata"]["uid"]


async def test_superfluous_reservation_pods_are_deleted() -> None:
    async with a_coexist_node(cards=4) as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        believed = await node_lab.the_reservation_pod()
        for name, lease in (("double", "gpu-n1-0"), ("unwanted", "gpu-n1-3")):
            metadata = {
                "name": name,
                "annotations": {"carrel.dev/lease": lease},
                "labels": believed["metadata"]["labels"],
            }
            await node_lab.lab.client.create(PODS, {**believed, "metadata": metadata, "status": {}}, RESERVATIONS)
        await node_lab.kubelet.work()
        await node_lab.reconcile()

        assert [pod.metadata.name for pod in await reservation_pods(node_lab.lab)] == [believed["metadata"]["name"]]


async def test_an_outdated_cache_does_not_delete_a_reservation_pod() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        await node_lab.catch_up()
        lease = node_lab.replica.cluster_ledger.lease("gpu-n1-0")
        assert lease is not None
        node_lab.replica.cluster_ledger.lease_deleted(lease.name, lease.uid)

        await node_lab.replica.reservations.reconcile_slot("gpu-n1-0")

        assert "deletionTimestamp" not in (await node_lab.the_reservation_pod())["metadata"]


async def test_an_outdated_cache_creates_no_reservation_pod_for_a_free_slot() -> None:
    async with a_coexist_node(reserve_s=0.0) as node_lab:
        assert await node_lab.replica.bind(await node_lab.lab.pod("a", annotations=HALF), "n1") is not None
        await node_lab.catch_up()
        old = node_lab.replica.cluster_ledger.lease("gpu-n1-0")
        assert old is not None
        await node_lab.lab.client.delete(LEASES, "gpu-n1-0", "carrel")
        await eventually(lambda: node_lab.replica.cluster_ledger.lease("gpu-n1-0") is None)
        node_lab.replica.cluster_ledger.lease_written(old)

        await node_lab.replica.reservations.reconcile_slot("gpu-n1-0")

        assert await reservation_pods(node_lab.lab) == []


async def test_a_reservation_pod_holds_no_share() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        reservation = await node_lab.replica.sees(await node_lab.the_reservation_pod())

        assert node_lab.replica.read_request(reservation) is None


async def test_members_of_a_gang_get_their_reservations_together() -> None:
    async with a_coexist_node() as node_lab:
        gang = {**HALF, "pod-group-name": "team", "carrel.dev/gang-size": "3"}
        pods = [await node_lab.lab.pod(name, annotations=gang) for name in "abc"]
        seen = [await node_lab.replica.sees(pod) for pod in pods]
        for pod in seen:
            assert list(node_lab.replica.filter(pod, ["n1"]).fitting) == ["n1"]
        binding = asyncio.gather(*(node_lab.replica.scheduler.bind(pod, "n1") for pod in seen))
        while not binding.done():
            await node_lab.reconcile(1)

        assert await binding == [None, None, None]
        cards = Counter([await node_lab.gpu_of(name) for name in "abc"])
        assert sorted(cards.values()) == [1, 2]


async def test_a_forged_annotation_on_a_users_pod_is_no_reservation() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.lab.pod("forged", annotations={"carrel.dev/lease": "gpu-n1-0"}, limits=WHOLE)
        await node_lab.reconcile(2)

        assert await node_lab.lab.client.get(PODS, "forged", "lab")
        with pytest.raises(NotFound):
            await node_lab.lab.client.get(LEASES, "gpu-n1-0", "carrel")


async def test_kais_tools_find_the_group_and_the_gpu_of_a_fraction_pod() -> None:
    async with a_coexist_node() as node_lab:
        pod = await node_lab.run_pod("a", annotations={**HALF, "gpu-fraction-num-devices": "2"})
        await node_lab.catch_up()
        copies = KaiMetadataWriter(
            node_lab.replica.cluster, node_lab.replica.cluster_ledger, node_lab.replica.read_request
        )

        seen = await node_lab.replica.sees(pod)
        for _ in range(2):  # also after a crash in between
            assert await copies.write(seen)

        labels = (await node_lab.lab.client.get(PODS, "a", "lab"))["metadata"]["labels"]
        assert labels == {"runai-gpu-group/gpu-n1-0": "gpu-n1-0", "runai-gpu-group/gpu-n1-1": "gpu-n1-1"}
        prefix = (await node_lab.lab.annotations("a"))["runai/shared-gpu-configmap"]
        for name in (f"{prefix}-0", f"{prefix}-0-evar"):
            written = await node_lab.lab.client.get(CONFIG_MAPS, name, "lab")
            assert written["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
            assert written["data"] == {
                "NVIDIA_VISIBLE_DEVICES": await node_lab.gpu_of("a"),
                "RUNAI-VISIBLE-DEVICES": await node_lab.gpu_of("a"),
                "RUNAI_NUM_OF_GPUS": "0.50",
                "GPU_PORTION": "0.50",
            }


async def test_kais_tools_find_the_gpu_of_a_fraction_pod_on_a_native_node_too() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await lab.pod("a", annotations=HALF)
        assert await replica.bind(pod, "n1") is None
        seen = await replica.sees(await lab.client.get(PODS, "a", "lab"))
        await eventually(lambda: replica.cluster_ledger.leases_of(seen.metadata.uid))

        assert await KaiMetadataWriter(replica.cluster, replica.cluster_ledger, replica.read_request).write(seen)

        prefix = (await lab.annotations("a"))["runai/shared-gpu-configmap"]
        written = await lab.client.get(CONFIG_MAPS, f"{prefix}-0", "lab")
        assert written["data"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-n1-0"
        assert written["data"]["GPU_PORTION"] == "0.50"


async def test_annotations_that_a_user_writes_create_no_config_map() -> None:
    async with a_coexist_node() as node_lab:
        forged = {**HALF, "carrel.dev/slots": "n1/0", "runai/shared-gpu-configmap": "kube-root-ca.crt"}
        seen = await node_lab.replica.sees(await node_lab.lab.pod("forged", annotations=forged))

        assert not await KaiMetadataWriter(
            node_lab.replica.cluster, node_lab.replica.cluster_ledger, node_lab.replica.read_request
        ).write(seen)


async def test_a_claim_shows_the_gpu_and_not_the_slot() -> None:
    async with a_coexist_node() as node_lab:
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "one"}}
        await node_lab.lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": {"count": 1}}}, "lab")
        await eventually(lambda: node_lab.replica.claims.store.get("one", "lab"))
        pod = await node_lab.run_pod("a", annotations={"gpu.scheduling/claim": "one"})
        await node_lab.catch_up()

        assert (await node_lab.lab.annotations("a"))["gpu.scheduling/allocated"] == "n1:1"
        assert list(await node_lab.lab.held()) == ["gpu-n1-0"], "the slot has another number"
        assert node_lab.replica.cluster_ledger.indices_of(
            node_lab.replica.cluster_ledger.leases_of(pod["metadata"]["uid"])
        ) == (1,)


# --- where the kubelet has fewer GPUs to give than Carrel believes ---------------------------------------------------


async def test_a_refused_reservation_pod_is_not_made_again_at_once_and_the_kubelets_words_reach_the_pod() -> None:
    async with a_coexist_node() as node_lab:
        node_lab.kubelet.unhealthy = {"GPU-n1-0", "GPU-n1-1"}  # and its Node does not say so yet
        pod = await node_lab.lab.pod("a", annotations=HALF)
        refusal = await node_lab.bind(pod)
        assert refusal is not None
        words = "the kubelet of n1 gave no GPU: UnexpectedAdmissionError: Allocate failed due to requested number"
        assert words in refusal.reason

        await node_lab.reconcile()
        assert node_lab.kubelet.refused == 1
        assert await reservation_pods(node_lab.lab) == []
        why = node_lab.replica.why(await node_lab.replica.sees(pod))
        assert why is not None
        assert words in why.reason, "also for the command line and the Event"
        async with node_lab.lab.replica() as other:
            assert not other.filter(await other.sees(pod), ["n1"]).fitting, "also for the next process"


async def test_refused_reservation_pods_are_made_less_and_less_often_and_the_pod_runs_when_a_gpu_is_there() -> None:
    async with a_coexist_node() as node_lab:
        node_lab.kubelet.unhealthy = {"GPU-n1-0", "GPU-n1-1"}
        pod = await node_lab.lab.pod("a", annotations=HALF)
        for _ in range(60 * 6):  # an hour in steps of ten seconds
            if node_lab.replica.filter(await node_lab.replica.sees(pod), ["n1"]).fitting:
                await node_lab.bind(pod)
            await node_lab.reconcile(1)
            node_lab.lab.clock.now += timedelta(seconds=10)
            await node_lab.kubelet.report_users()  # a heartbeat of the agent does not matter
        assert 10 <= node_lab.kubelet.refused <= 25

        node_lab.kubelet.unhealthy = set()
        node_lab.lab.clock.now += timedelta(minutes=6)
        await node_lab.reconcile()
        assert await node_lab.bind(pod) is None


async def test_pods_join_a_gpu_that_is_held_while_the_kubelet_has_no_other() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.run_pod("a", annotations=HALF)
        node_lab.kubelet.unhealthy = {"GPU-n1-0"}
        refusal = await node_lab.bind(await node_lab.lab.pod("two", annotations={"gpu-fraction": "0.9"}))
        assert refusal is not None
        await node_lab.reconcile()

        await node_lab.run_pod("b", annotations=HALF)
        assert await node_lab.gpu_of("b") == await node_lab.gpu_of("a")


async def test_an_unhealthy_gpu_that_the_kubelet_gives_out_does_not_keep_a_pod_from_a_healthy_one() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.kubelet.offer()
        await node_lab.kubelet.report_health("GPU-n1-1")  # the kubelet of these tests always chooses the last GPU
        await eventually(lambda: node_lab.replica.ledger.rooms["n1"].whole == 1)
        pod = await node_lab.lab.pod("a", annotations=HALF)
        refusal = await node_lab.bind(pod)
        assert refusal == Refusal("the kubelet gave GPU 1 of n1, which is not in use: XID 79; another one is tried")

        assert await node_lab.bind(pod) is None
        assert await node_lab.gpu_of("a") == "GPU-n1-0"
        node_lab.lab.clock.now += timedelta(minutes=1)
        await node_lab.reconcile()
        assert len(await reservation_pods(node_lab.lab)) == 2, "one of them keeps the unhealthy GPU from other pods"

        await node_lab.kubelet.report_health("")
        await eventually(lambda: not any(gpu.unusable for gpu in node_lab.replica.cluster_ledger.reported("n1").gpus))  # type: ignore[union-attr] # reported
        await node_lab.reconcile()
        assert len(await reservation_pods(node_lab.lab)) == 1
        assert node_lab.replica.ledger.rooms["n1"].whole == 1


async def test_the_kubelets_list_says_which_gpu_a_reservation_pod_has_where_its_program_sees_none() -> None:
    async with a_coexist_node() as node_lab:
        node_lab.kubelet.is_silent = True
        binding = asyncio.ensure_future(node_lab.bind(await node_lab.lab.pod("a", annotations=HALF)))
        while not binding.done():
            await asyncio.sleep(0.001)
            if node_lab.kubelet.given:
                await node_lab.kubelet.report_users()

        assert await binding is None
        assert await node_lab.gpu_of("a") == "GPU-n1-1"


async def test_people_see_the_numbers_of_gpus_and_never_of_slots() -> None:
    async with a_coexist_node(cards=3) as node_lab:
        await node_lab.run_pod("half", annotations=HALF)  # GPU 2, on slot 0
        await node_lab.run_pod("whole", limits=WHOLE)  # GPU 1, on slot 1
        await node_lab.reconcile(2)
        await node_lab.kubelet.report_users()
        ledger = node_lab.replica.cluster_ledger
        await eventually(lambda: ledger.users_of(node_lab.kubelet.node.gpus[1]))

        seen = {
            card.gpu.index: [share.holder.name for share in card.shares.values()] for card in shown_cards(ledger, "n1")
        }
        assert seen == {0: [], 1: ["whole"], 2: ["half"]}
        assert [str(card.gpu) for card in node_lab.replica.ledger.cards("n1")] == [
            "GPU 2 of n1",
            "a GPU of n1",
            "a GPU of n1",
        ]


async def test_reservation_pods_get_the_runtime_class_and_the_command_that_the_settings_say() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.lab.client.create(
            RUNTIME_CLASSES,
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nvidia"},
                "handler": "nvidia",
            },
        )
        informers = Informers(node_lab.lab.client)
        choice = RuntimeClassChoice(informers)
        assert choice.name() == ""
        await informers.read_once()
        options = ReservationOptions("kai", own_command=True, runtime_class=choice.name)
        node_lab.replica.reservations = reservation_pods_on(node_lab.replica, options)
        await node_lab.run_pod("a", annotations=HALF)

        spec = (await node_lab.the_reservation_pod())["spec"]
        assert spec["runtimeClassName"] == "nvidia"
        assert "command" not in spec["containers"][0]
