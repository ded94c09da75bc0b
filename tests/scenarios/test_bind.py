"""A bind takes the GPUs and writes them on the pod in as few writes as possible, or takes nothing."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from carrel.dialects.gpu_lease import LeaseRecord, write_lease
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GPU_NODE_STATUSES
from carrel.ids import GpuUuid, PodUid
from carrel.kubernetes.cluster import DeleteOptions, Forbidden, MergePatch
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.kubernetes.transport import ApiRequest, ApiResponse, ResponseLike, Transport
from carrel.ledger.shares import Holder, Share
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import Lab, a_lab

GPU_MEM = {"aliyun.com/gpu-mem": "8138"}


async def test_a_pod_with_one_gpu_costs_two_writes_and_gets_the_annotations_of_its_dialect() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits=GPU_MEM)

        assert await replica.bind(pod, "n1") is None

        assert replica.transport.writes == [
            "POST /apis/coordination.k8s.io/v1/namespaces/carrel/leases",
            "POST /api/v1/namespaces/lab/pods/train/binding",
        ]
        assert await lab.annotations("train") == {
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_GPU_ID": "0",
            "ALIYUN_COM_GPU_MEM_DEV": "16276",
            "ALIYUN_COM_GPU_MEM_POD": "8138",
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1794830400000000000",
            "carrel.dev/devices": "GPU-n1-0",
            "carrel.dev/cgpu-disable": "false",
        }
        assert await lab.held() == {"gpu-n1-0": {pod["metadata"]["uid"]: 8138}}


async def test_a_lease_of_a_gpus_name_in_somebodys_namespace_counts_for_nothing() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        forged = LeaseRecord(
            N1, 0, GpuUuid("GPU-n1-0"), (Share(Holder(PodUid("forged"), "lab", "forged"), GpuUuid("GPU-n1-0"), None),)
        )
        await lab.client.create(LEASES, write_lease(forged, "lab", lab.clock()), "lab")
        async with lab.replica() as replica:
            pod = await lab.pod("train", limits={"nvidia.com/gpu": "1"})

            assert await replica.bind(pod, "n1") is None
            assert await lab.held() == {"gpu-n1-0": {pod["metadata"]["uid"]: None}}


@pytest.mark.parametrize(
    ("annotations", "limits", "expected", "held"),
    [
        pytest.param(
            {"gpu-fraction": "0.5"},
            {},
            {"carrel.dev/devices": "GPU-n1-0", "received-resource-type": "Fraction"},
            {"gpu-n1-0": 8138},
            id="a fraction",
        ),
        pytest.param(
            {}, {"nvidia.com/gpu": "2"}, {"carrel.dev/devices": "GPU-n1-0,GPU-n1-1"},
            {"gpu-n1-0": None, "gpu-n1-1": None}, id="two whole GPUs",
        ),
        pytest.param(
            {"gpu.scheduling/claim": "pair"},
            {},
            {"carrel.dev/devices": "GPU-n1-0,GPU-n1-1", "gpu.scheduling/allocated": "n1:0,1"},
            {"gpu-n1-0": None, "gpu-n1-1": None},
            id="a claim",
        ),
        pytest.param(
            {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-memory-mib": "100"},
            {},
            {"carrel.dev/devices": "GPU-n1-0,GPU-n1-1"},
            {"gpu-n1-0": 100, "gpu-n1-1": 100},
            id="some memory on each of two GPUs",
        ),
        pytest.param({}, {}, {}, {}, id="no GPU"),
    ],
)  # fmt: skip
async def test_every_dialect_gets_its_gpus_in_its_own_annotations(
    annotations: dict[str, str], limits: dict[str, str], expected: dict[str, str], held: dict[str, int | None]
) -> None:
    async with a_lab([a_node("n1")]) as lab:
        claim = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "pair"}}
        await lab.client.create(GPU_CLAIMS, {**claim, "spec": {"devices": {"count": 2}}}, "lab")
        async with lab.replica() as replica:
            pod = await lab.pod("train", annotations=annotations, limits=limits)

            assert await replica.bind(pod, "n1") is None

            told = await lab.annotations("train")
            prefix = told.pop("runai/shared-gpu-configmap", "")
            assert told == {**annotations, **expected}
            assert prefix == (f"train-{pod['metadata']['uid'][:7]}-shared-gpu" if "gpu-fraction" in annotations else "")
            uid = pod["metadata"]["uid"]
            assert await lab.held() == {lease: {uid: memory} for lease, memory in held.items()}
            assert await lab.bound() == {uid: "n1"}


@pytest.mark.parametrize(("label", "told"), [("true", "true"), ("yes", "false"), ("", "false")])
async def test_a_pod_learns_whether_its_node_isolates_memory(label: str, told: str) -> None:
    node = replace(a_node("n1"), labels={"cgpu.disable.isolation": label})
    async with a_lab([node]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("train", limits=GPU_MEM), "n1") is None
        assert (await lab.annotations("train"))["carrel.dev/cgpu-disable"] == told


async def test_containers_with_gpus_of_their_own_get_annotations_of_their_own() -> None:
    async with a_lab([a_node("n1", gpus=3)]) as lab, lab.replica() as replica:
        containers = [
            {"name": name, "image": "work", "resources": {"limits": {"nvidia.com/gpu": count}}}
            for name, count in (("left", "1"), ("right", "2"))
        ]
        pod = await lab.pod("train", containers=containers)

        assert await replica.bind(pod, "n1") is None

        assert await lab.annotations("train") == {
            "carrel.dev/devices": "GPU-n1-0,GPU-n1-1,GPU-n1-2",
            "devices.carrel.dev/left": "GPU-n1-0",
            "devices.carrel.dev/right": "GPU-n1-1,GPU-n1-2",
        }


async def test_a_pod_that_no_longer_fits_is_refused_and_takes_nothing() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await replica.bind(await lab.pod("first", limits={"nvidia.com/gpu": "1"}), "n1")
        before = await lab.held()

        refusal = await replica.bind(await lab.pod("second", limits=GPU_MEM), "n1")

        assert refusal is not None
        assert refusal.reason == "GPU 0 of n1 has 0 MiB free, 8,138 MiB asked; held by lab/first"
        assert await lab.held() == before


async def test_a_pod_that_is_deleted_before_its_binding_gives_its_gpu_back() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        pod = await lab.pod("train", limits=GPU_MEM)
        seen = await replica.sees(pod)
        await lab.client.delete(PODS, "train", "lab")

        refusal = await replica.scheduler.bind(seen, N1)

        assert refusal is not None
        assert await lab.held() == {}
        assert [entry.free for entry in replica.ledger.entries(N1)] == [16276, 16276]


async def test_a_pod_of_the_same_name_with_another_uid_is_not_bound_in_its_place() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        seen = await replica.sees(await lab.pod("train", limits=GPU_MEM))
        await lab.client.delete(PODS, "train", "lab")
        successor = await lab.pod("train", limits=GPU_MEM)

        assert await replica.scheduler.bind(seen, N1) is not None

        assert await lab.held() == {}
        assert (await lab.bound()).get(successor["metadata"]["uid"]) is None


async def test_a_gpu_that_another_replica_has_just_taken_is_not_promised_again() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as one, lab.replica() as other:
        pods = [await lab.pod(name, limits={"nvidia.com/gpu": "1"}) for name in ("a", "b")]
        for replica in (one, other):
            for pod in pods:
                await replica.sees(pod)

        answers = await asyncio.gather(one.bind(pods[0], "n1"), other.bind(pods[1], "n1"))

        assert sorted(answer is None for answer in answers) == [False, True]
        assert len((await lab.held())["gpu-n1-0"]) == 1
        assert len(await lab.bound()) == 1


async def test_many_binds_at_once_on_two_replicas_never_oversubscribe_a_gpu() -> None:
    nodes = [a_node(f"n{number}", gpus=2, memory=1000) for number in range(4)]
    async with a_lab(nodes) as lab, lab.replica() as one, lab.replica() as other:
        pods = [await lab.pod(f"p{number}", limits={"aliyun.com/gpu-mem": "300"}) for number in range(64)]

        answers = await asyncio.gather(
            *((one, other)[number % 2].bind(pod, f"n{number % 4}") for number, pod in enumerate(pods))
        )

        held = await lab.held()
        assert all(sum(memory or 0 for memory in shares.values()) <= 1000 for shares in held.values())
        holders = {uid for shares in held.values() for uid in shares}
        assert holders == set(await lab.bound())
        assert len(holders) == sum(answer is None for answer in answers) == 4 * 2 * 3
        for replica in (one, other):
            await eventually(lambda replica=replica: len(list(replica.ledger.holders())) == 24)  # type: ignore[misc] # bound now
            replica.ledger.audit()


async def test_a_lease_that_cannot_be_read_makes_its_gpu_unusable_and_is_not_overwritten() -> None:
    async with a_lab([a_node("n1")]) as lab:
        forged = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "gpu-n1-0", "annotations": {"carrel.dev/shares": "{not json"}},
        }
        await lab.client.create(LEASES, forged, "carrel")
        async with lab.replica() as replica:
            pod = await lab.pod("train", limits=GPU_MEM)

            assert await replica.bind(pod, "n1") is None

            assert set(await lab.annotations("train")) > {"ALIYUN_COM_GPU_MEM_IDX"}
            assert (await lab.annotations("train"))["carrel.dev/devices"] == "GPU-n1-1"
            assert "expected JSON" in replica.ledger.entries(N1)[0].gpu.unusable

            await lab.client.delete(LEASES, "gpu-n1-0", "carrel", how=DeleteOptions())
            await eventually(lambda: not replica.ledger.entries(N1)[0].gpu.unusable)


async def test_a_whole_gpu_that_a_peer_took_with_its_own_lease_is_not_used() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab:
        theirs = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "gpu-n1-0"},
            "spec": {"holderIdentity": "somebody"},
        }
        await lab.client.create(LEASES, theirs, "carrel")
        async with lab.replica() as replica:
            refusal = await replica.bind(await lab.pod("train", limits=GPU_MEM), "n1")

            assert refusal is not None
            assert "Lease gpu-n1-0 still records another GPU" in refusal.reason


async def test_forged_annotations_on_a_pod_change_nothing() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        lies = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "-99999", "carrel.dev/devices": "GPU-n1-0"}
        await lab.pod("liar", annotations=lies)

        whole = await lab.pod("whole", limits={"nvidia.com/gpu": "1"})

        assert await replica.bind(whole, "n1") is None

        assert await lab.held() == {"gpu-n1-0": {whole["metadata"]["uid"]: None}}


async def _swap_gpu_indices(lab: Lab) -> None:
    swapped = [{"id": 1, "uuid": "GPU-n1-0"}, {"id": 0, "uuid": "GPU-n1-1"}]
    devices = [{**device, "memoryMiB": 16276, "health": "Healthy"} for device in swapped]
    await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch({"status": {"devices": devices}}), subresource="status")


async def test_gpus_whose_index_changed_keep_their_pods_and_are_unusable_until_their_leases_are_gone() -> None:
    async with a_lab([a_node("n1")]) as lab:
        async with lab.replica() as replica:
            assert await replica.bind(await lab.pod("train", limits=GPU_MEM), "n1") is None
        await _swap_gpu_indices(lab)
        async with lab.replica() as replica:
            entries = {entry.gpu.uuid: entry for entry in replica.ledger.entries(N1)}

            assert entries[GpuUuid("GPU-n1-0")].free == 8138
            assert (
                "it is still recorded on Lease gpu-n1-0: its index has changed"
                in entries[GpuUuid("GPU-n1-0")].gpu.unusable
            )
            assert "Lease gpu-n1-0 still records another GPU" in entries[GpuUuid("GPU-n1-1")].gpu.unusable

            await lab.client.delete(PODS, "train", "lab", how=DeleteOptions(grace_seconds=0))
            await eventually(lambda: not len(replica.pods.store))
            await replica.collector.collect()
            assert [entry.gpu.unusable for entry in replica.ledger.entries(N1)] == ["", ""]


async def test_a_binding_that_the_api_server_refuses_gives_the_gpu_back() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica(NoBindings(lab.api)) as replica:
        pod = await lab.pod("train", limits=GPU_MEM)

        with pytest.raises(Forbidden):
            await replica.bind(pod, "n1")

        assert await lab.held() == {}


async def test_a_user_cannot_have_a_gpu_freed_that_the_pod_was_bound_with() -> None:
    async with a_lab([a_node("n1")]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("train", annotations={"carrel.dev/gpu-count": "2"}), "n1") is None
        lies = {"carrel.dev/gpu-count": "1", "carrel.dev/devices": "GPU-n1-0"}
        forged = await lab.client.patch(PODS, "train", MergePatch({"metadata": {"annotations": lies}}), "lab")
        await replica.sees(forged)

        for _ in range(3):
            await replica.collector.collect()
            lab.clock.now += timedelta(minutes=2)

        assert set(await lab.held()) == {"gpu-n1-0", "gpu-n1-1"}


class NoBindings:
    """A cluster in which another admission webhook forbids every Binding."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    async def send(self, request: ApiRequest) -> ResponseLike:
        if not request.path.endswith("/binding"):
            return await self._inner.send(request)
        no = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "not today"}
        return ApiResponse(403, json.dumps(no).encode(), {"content-type": "application/json"})

    async def aclose(self) -> None:
        await self._inner.aclose()
