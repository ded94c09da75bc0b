"""GPUs of a node where the kubelet chooses: none is lost or given twice, whatever happens to the reservation pods."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from carrel.cluster.runtime_class import RuntimeClasses
from carrel.kubernetes.cluster import MergePatch, NotFound
from carrel.kubernetes.objects.resources import LEASES, PODS, RUNTIME_CLASSES
from carrel.kubernetes.reflector import Informers
from carrel.ledger.refusals import Refusal
from carrel.lifecycle.reservations.reservation_pods import ReservationOptions, ReservationPods
from tests.kit.coexist import (
    RESERVATIONS,
    first,
    last,
    reservation_pods,
)
from tests.kit.coexist_node import HALF, WHOLE, a_coexist_node
from tests.kit.eventually import eventually
from tests.kit.gpus import N1


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
    async with a_coexist_node(gpus=1) as node_lab:
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
    async with a_coexist_node(gpus=3) as node_lab:
        await node_lab.run_pod("pair", annotations={"carrel.dev/gpu-count": "2"})

        assert sorted((await node_lab.gpu_of("pair")).split(",")) == ["GPU-n1-1", "GPU-n1-2"]
        assert len(await reservation_pods(node_lab.lab)) == 2


async def test_a_lost_reservation_closes_the_node_until_a_reservation_pod_has_the_same_gpu_again() -> None:
    async with a_coexist_node(gpus=3) as node_lab:
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
        gpu = await node_lab.gpu_of("a")
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
        assert (await node_lab.the_reservation_pod())["metadata"]["annotations"]["run.ai/reserve_for_gpu_index"] == gpu


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
    async with a_coexist_node(gpus=4) as node_lab:
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

        assert node_lab.replica.pod_facts.asked(reservation) is None


async def test_members_of_a_gang_get_their_reservations_together() -> None:
    async with a_coexist_node() as node_lab:
        gang = {**HALF, "pod-group-name": "team", "carrel.dev/gang-size": "3"}
        pods = [await node_lab.lab.pod(name, annotations=gang) for name in "abc"]
        seen = [await node_lab.replica.sees(pod) for pod in pods]
        for pod in seen:
            assert list(node_lab.replica.filter(pod, [N1]).fitting) == ["n1"]
        binding = asyncio.gather(*(node_lab.replica.scheduler.bind(pod, N1) for pod in seen))
        while not binding.done():
            await node_lab.reconcile(1)

        assert await binding == [None, None, None]
        gpus = Counter([await node_lab.gpu_of(name) for name in "abc"])
        assert sorted(gpus.values()) == [1, 2]


async def test_a_forged_annotation_on_a_users_pod_is_no_reservation() -> None:
    async with a_coexist_node() as node_lab:
        await node_lab.lab.pod("forged", annotations={"carrel.dev/lease": "gpu-n1-0"}, limits=WHOLE)
        await node_lab.reconcile(2)

        assert await node_lab.lab.client.get(PODS, "forged", "lab")
        with pytest.raises(NotFound):
            await node_lab.lab.client.get(LEASES, "gpu-n1-0", "carrel")


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
        choice = RuntimeClasses(informers)
        assert choice.chosen() == ""
        await informers.read_once()
        options = ReservationOptions(runtime_class=choice.chosen)
        node_lab.replica.reservations = ReservationPods(node_lab.replica, options)
        await node_lab.run_pod("a", annotations=HALF)

        spec = (await node_lab.the_reservation_pod())["spec"]
        assert spec["runtimeClassName"] == "nvidia"
