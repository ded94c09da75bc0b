"""HAMi's dialect from the webhook to the Leases: five pods of 3000 MiB on two GPUs, in native and in coexist mode."""

import json
from dataclasses import replace

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects.interface import PodRequest
from carrel.dialects.options import WhenFull
from carrel.dialects.seal import Seal
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.placement import place
from carrel.ledger.refusals import Refusal
from tests.kit.coexist import Kubelet, coexisting, create_reservation_namespace, last, reservation_pods
from tests.kit.coexist_node import CoexistNode
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.reviews import ReviewedCluster, RunningPod

LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
RECORD = '{"containers":{"main":{"nvidia.com/gpu":1,"nvidia.com/gpumem":3000}}}'
SEALED = ReviewedCluster(seal=Seal((b"key",)), classes=())
COEXIST = replace(SEALED, options=AdmissionOptions(coexist=True))


def a_pod(name: str = "train", limits: dict[str, str] = LIMITS, annotations: dict[str, str] | None = None) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "lab", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "image": "work", "resources": {"limits": dict(limits)}}]},
    }


async def admitted(lab: Lab, world: ReviewedCluster, manifest: Json) -> Json:
    told = await world.create(manifest)
    assert told.allowed, told.message
    return await lab.client.create(PODS, told.object, "lab")


# --- the webhook -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [SEALED, COEXIST], ids=["native", "coexist"])
async def test_the_webhook_records_the_request_and_takes_the_resources_off(world: ReviewedCluster) -> None:
    told = await world.create(a_pod(limits={**LIMITS, "nvidia.com/gpucores": "30", "cpu": "1"}))

    assert json.loads(told.annotations["carrel.dev/hami"]) == {
        "containers": {"main": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}}
    }
    assert told.container()["resources"] == {"limits": {"cpu": "1"}}
    assert told.env() == {
        "NVIDIA_VISIBLE_DEVICES": "<carrel.dev/devices>",
        "CUDA_VISIBLE_DEVICES": "<carrel.dev/devices>",
        "CUDA_DEVICE_MEMORY_LIMIT": "3000m",
        "CUDA_DEVICE_SM_LIMIT": "30",
    }
    assert told.object["spec"]["schedulerName"] == "gpu-scheduler"


async def test_a_pod_for_hamis_own_scheduler_is_carrels() -> None:
    manifest = a_pod()
    manifest["spec"]["schedulerName"] = "hami-scheduler"
    assert (await SEALED.create(manifest)).object["spec"]["schedulerName"] == "gpu-scheduler"


@pytest.mark.parametrize("world", [SEALED, replace(SEALED, seal=None)], ids=["with a key", "without a key"])
async def test_who_asks_again_gets_the_same_answer(world: ReviewedCluster) -> None:
    first = await world.create(a_pod())
    again = await world.create(first.object)
    assert again.allowed and again.object == first.object


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"carrel.dev/hami": RECORD.replace("3000", "9000")}, id="changed by another webhook"),
        pytest.param({"carrel.dev/admitted": ""}, id="without its seal"),
        pytest.param({"carrel.dev/user": "eve@lab.example"}, id="of another user"),
    ],
)
async def test_a_record_without_a_good_seal_is_refused(changes: dict[str, str]) -> None:
    first = (await SEALED.create(a_pod())).object
    first["metadata"]["annotations"] |= changes
    told = await SEALED.create(first)
    assert (told.allowed, told.code) == (False, 422)
    assert "carrel.dev/hami, which only Carrel's webhook writes" in told.message


async def test_a_record_that_was_copied_to_another_pod_is_refused() -> None:
    copied = (await SEALED.create(a_pod())).object
    copied["metadata"]["name"] = "copy"
    assert not (await SEALED.create(copied)).allowed


async def test_a_record_beside_the_resources_is_refused_with_or_without_a_key() -> None:
    for world in (SEALED, replace(SEALED, seal=None)):
        told = await world.create(a_pod(annotations={"carrel.dev/hami": RECORD}))
        assert not told.allowed and "only Carrel's webhook writes" in told.message


async def test_what_cannot_be_honoured_is_refused_with_the_reason() -> None:
    told = await SEALED.create(a_pod(limits={**LIMITS, "nvidia.com/gpumem-percentage": "50"}))
    assert (told.allowed, told.code) == (False, 422)
    assert "has both nvidia.com/gpumem and nvidia.com/gpumem-percentage; keep one of them" in told.message


async def test_a_whole_gpu_of_hami_runs_without_one_when_no_gpu_is_free() -> None:
    manifest = a_pod(limits={"nvidia.com/gpu": "1"}, annotations={"nvidia.com/use-gputype": "A100"})
    a100, t4 = a_node("n1", 1, model="NVIDIA-A100"), a_node("n2", 3, model="T4")
    options = AdmissionOptions(when_full=WhenFull.CPU)
    world = replace(SEALED, nodes=[a100, t4], running=[RunningPod("busy")], options=options)
    told = await world.create(manifest)
    assert "nvidia.com/use-gputype" not in told.annotations and told.container()["resources"] == {"limits": {}}
    assert "runs without a GPU" in told.warnings[0]


# --- the GPUs --------------------------------------------------------------------------------------------------------


async def test_five_pods_share_two_gpus_in_native_mode() -> None:
    async with a_lab([a_node("n1", gpus=2, memory=10_000)]) as lab, lab.replica() as carrel:
        for name in "abcde":
            pod = await admitted(lab, SEALED, a_pod(name))
            assert list(carrel.filter(await carrel.sees(pod), [N1]).fitting) == ["n1"]
            assert await carrel.bind(pod, "n1") is None

        assert sorted([*each.values()] for each in (await lab.held()).values()) == [[3000] * 2, [3000] * 3]
        given = [(await lab.annotations(name))["carrel.dev/devices"] for name in "abcde"]
        assert given == ["GPU-n1-0"] * 3 + ["GPU-n1-1"] * 2

        sixth = await carrel.sees(await admitted(lab, SEALED, a_pod("f")))
        assert list(carrel.filter(sixth, [N1]).fitting) == ["n1"], "three fit on each GPU"
        assert await carrel.scheduler.bind(sixth, N1) is None
        seventh = await carrel.sees(await admitted(lab, SEALED, a_pod("g")))
        refused = await carrel.scheduler.bind(seventh, N1)
        assert isinstance(refused, Refusal) and "1,000 MiB free, 3,000 MiB asked" in str(refused)


async def test_five_pods_share_two_gpus_that_reservation_pods_hold_in_coexist_mode() -> None:
    node = coexisting("n1", 2, 10_000)
    async with a_lab([node]) as lab:
        await create_reservation_namespace(lab)
        async with lab.replica() as carrel:
            node_lab = CoexistNode(lab, Kubelet(lab, node, last), carrel)
            for name in "abcde":
                assert await node_lab.bind(await admitted(lab, COEXIST, a_pod(name))) is None

            given = [(await lab.annotations(name))["carrel.dev/devices"] for name in "abcde"]
            assert given == ["GPU-n1-1"] * 3 + ["GPU-n1-0"] * 2, "as the kubelet chose"
            assert len(await reservation_pods(lab)) == 2
            assert node_lab.kubelet.free == []
            carrel.ledger.audit()


async def test_a_gpu_is_chosen_by_its_uuid_in_native_mode_only() -> None:
    wanted = {"nvidia.com/use-gpuuuid": "GPU-n1-1"}
    for node, why in ((a_node("n1"), ""), (coexisting("n1"), "the kubelet chooses GPUs on this node")):
        async with a_lab([node]) as lab, lab.replica() as carrel:
            pod = await carrel.sees(await admitted(lab, SEALED, a_pod(annotations=wanted)))
            if not why:
                assert await carrel.scheduler.bind(pod, N1) is None
                assert (await lab.annotations("train"))["carrel.dev/devices"] == "GPU-n1-1"
            else:
                assert list(carrel.filter(pod, [N1]).fitting) == []
                ask = carrel.pod_facts.asked(pod)
                assert isinstance(ask, PodRequest) and why in str(place(carrel.ledger, ask.request, N1))


async def test_a_pod_whose_request_the_webhook_did_not_record_gets_no_gpu() -> None:
    """Otherwise a user could change an admitted NVIDIA pod into one for which a second GPU is reserved."""
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await replica.sees(await lab.pod("late", limits={"nvidia.com/gpu": "1"}))
        assert isinstance(replica.pod_facts.asked(pod), PodRequest)

        changed = await lab.client.patch(
            PODS, "late", MergePatch({"metadata": {"annotations": {"hami.io/gpu-scheduler-policy": "binpack"}}}), "lab"
        )
        refusal = replica.pod_facts.asked(await replica.sees(changed))

        assert isinstance(refusal, Refusal)
        assert "Carrel's webhook has not recorded that; delete the pod and create it again" in refusal.reason


async def test_a_users_own_limit_does_not_survive() -> None:
    manifest = a_pod(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"})
    manifest["spec"]["containers"][0]["env"] = [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "99999m"}]

    assert "CUDA_DEVICE_MEMORY_LIMIT" not in (await SEALED.create(manifest)).env()
