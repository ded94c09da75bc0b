"""After a node's GPUs have changed their indices, running pods and claims keep theirs, and empty GPUs can be used."""

import json
from collections.abc import Mapping, Sequence

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.ids import PodUid
from carrel.kubernetes.cluster import AlreadyExists, Json, MergePatch
from carrel.kubernetes.objects.resources import EVENTS, LEASES
from carrel.kubernetes.transport import ApiRequest, ApiResponse, ResponseLike
from carrel.lifecycle.freeing.renumbered_gpus import RenumberedGpus
from carrel.resource_claims.allocation.unrecorded_claims import UnrecordedClaims
from carrel.resource_claims.objects import RESOURCE_CLAIMS, RESOURCE_SLICES
from kubernetes_in_memory import EmbeddedApi
from tests.kit.dra import Gate, allocated, delete_claim, new_claim, sees_claim, store
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

WHOLE = {"nvidia.com/gpu": "1"}
N1 = a_node("n1", gpus=3)
NOBODY: Mapping[str, list[str]] = {}
A, B, C = (gpu.uuid for gpu in N1.gpus)


def uid_of(made: Json) -> str:
    return str(made["metadata"]["uid"])


async def renumber(lab: Lab, *replicas: Replica, order: Sequence[str], used: Mapping[str, list[str]] = NOBODY) -> None:
    """As the agent reports it after a reboot: the GPUs in the order of their new indices, and who uses them."""
    devices = [
        {"id": index, "uuid": uuid, "memoryMiB": 16276, "health": "Healthy", "inUseBy": used.get(uuid, [])}
        for index, uuid in enumerate(order)
    ]
    await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch({"status": {"devices": devices}}), subresource="status")

    def has_seen(replica: Replica) -> bool:
        return [entry.gpu.uuid for entry in replica.ledger.entries(N1.name)] == list(order)

    await eventually(lambda: all(map(has_seen, replicas)))


async def bound(lab: Lab, replica: Replica, name: str) -> str:
    """A pod with a whole GPU. Its uid."""
    pod = await lab.pod(name, limits=WHOLE)
    assert await replica.bind(pod, "n1") is None
    return uid_of(pod)


async def records(lab: Lab) -> dict[str, tuple[str, set[str]]]:
    """Lease → the GPU that it records, and who holds it."""
    held = await lab.held()
    leases = {name: await lab.client.get(LEASES, name, "carrel") for name in held}
    return {name: (leases[name]["metadata"]["annotations"]["carrel.dev/gpu"], set(held[name])) for name in held}


def unusable(replica: Replica) -> dict[str, str]:
    return {entry.gpu.uuid: entry.gpu.unusable for entry in replica.ledger.entries(N1.name) if entry.gpu.unusable}


async def test_the_lease_of_a_renumbered_gpu_is_moved_and_the_empty_gpu_can_be_had() -> None:
    async with a_lab([N1]) as lab, lab.replica() as replica, lab.replica() as other:
        train = await bound(lab, replica, "train")
        assert await records(lab) == {"gpu-n1-0": (A, {train})}
        await renumber(lab, replica, other, order=[B, A, C])
        assert set(unusable(replica)) == {A, B}
        assert all(
            "moved within seconds, or goes when its holders have ended" in why for why in unusable(replica).values()
        )

        gpus = RenumberedGpus(replica)
        assert gpus.found() == {"gpu-n1-0": 1}
        assert await gpus.move(list(gpus.found())) == ["gpu-n1-0"]

        assert await records(lab) == {"gpu-n1-1": (A, {train})}
        assert not gpus.found() and not unusable(replica)
        await eventually(lambda: not unusable(other))
        for each, name in ((replica, "second"), (other, "third")):
            await bound(lab, each, name)
        assert {gpu for gpu, _ in (await records(lab)).values()} == {A, B, C}
        late = await lab.pod("late", limits=WHOLE)
        assert await replica.bind(late, "n1") is not None, "no GPU is promised twice"


async def test_gpus_that_moved_on_one_after_the_other_are_all_put_right() -> None:
    async with a_lab([N1]) as lab, lab.replica() as replica:
        first, second = await bound(lab, replica, "first"), await bound(lab, replica, "second")
        await renumber(lab, replica, order=[C, A, B])

        gpus = RenumberedGpus(replica)
        for _ in range(2):
            await gpus.move(list(gpus.found()))

        assert await records(lab) == {"gpu-n1-1": (A, {first}), "gpu-n1-2": (B, {second})}
        assert unusable(replica) == {}


async def test_gpus_that_changed_places_and_are_all_held_stay_as_they_are_until_a_holder_ends() -> None:
    two = a_node("n1", gpus=2)
    async with a_lab([two]) as lab, lab.replica() as replica:
        first, second = await bound(lab, replica, "first"), await bound(lab, replica, "second")
        await renumber(lab, replica, order=[B, A])
        gpus = RenumberedGpus(replica)

        assert await gpus.move(list(gpus.found())) == []
        assert await records(lab) == {"gpu-n1-0": (A, {first}), "gpu-n1-1": (B, {second})}
        assert set(unusable(replica)) == {A, B}

        assert await replica.lease_writer.remove_pod(N1.name, 1, PodUid(second))
        assert await gpus.move(list(gpus.found())) == ["gpu-n1-0"]
        assert await records(lab) == {"gpu-n1-1": (A, {first})}
        assert unusable(replica) == {}


class NoDeletions:
    """An API server that refuses to delete: as after a crash before that."""

    def __init__(self, inner: EmbeddedApi) -> None:
        self._inner = inner

    async def send(self, request: ApiRequest) -> ResponseLike:
        if request.method != "DELETE":
            return await self._inner.send(request)
        no = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "not today"}
        return ApiResponse(403, json.dumps(no).encode(), {"content-type": "application/json"})

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_after_a_crash_between_both_writes_the_holders_count_once_and_the_next_round_goes_on() -> None:
    async with a_lab([N1]) as lab:
        async with lab.replica(NoDeletions(lab.api)) as replica:
            train = await bound(lab, replica, "train")
            await renumber(lab, replica, order=[B, A, C])
            gpus = RenumberedGpus(replica)
            assert await gpus.move(list(gpus.found())) == []
            assert await records(lab) == {"gpu-n1-0": (A, {train}), "gpu-n1-1": (A, {train})}
            assert {A, B} <= set(unusable(replica))
        async with lab.replica() as replica:
            gpus = RenumberedGpus(replica)
            assert await gpus.move(list(gpus.found())) == ["gpu-n1-0"]
            assert await records(lab) == {"gpu-n1-1": (A, {train})}
            assert unusable(replica) == {}


async def test_a_holder_that_comes_to_the_old_lease_at_the_last_moment_is_not_lost() -> None:
    """A scheduler that has not seen the new numbers yet."""
    async with a_lab([N1]) as lab, lab.replica() as replica, lab.replica() as late:
        pod = await lab.pod("part", limits={"aliyun.com/gpu-mem": "4000"})
        assert await replica.bind(pod, "n1") is None
        late.node_statuses._handlers.clear()  # its watch of reports is late
        await renumber(lab, replica, order=[B, A, C])
        known = replica.cluster_ledger.lease("gpu-n1-0")
        assert known is not None
        another = await lab.pod("another", limits={"aliyun.com/gpu-mem": "4000"})
        assert await late.bind(another, "n1") is None

        assert not await replica.lease_writer.move(known, 1), "the Lease has changed since it was read"
        gpus = RenumberedGpus(replica)
        await gpus.move(list(gpus.found()))

        assert await records(lab) == {"gpu-n1-1": (A, {uid_of(pod), uid_of(another)})}


# --- claims ----------------------------------------------------------------------------------------------------------


async def by_uuid(lab: Lab, order: Sequence[str]) -> None:
    """The slice as the agent publishes it."""
    devices = [
        {"name": uuid.lower(), "attributes": {"uuid": {"string": uuid}}, "allowMultipleAllocations": True}
        for uuid in order
    ]
    body: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "n1-gpu.carrel.dev"},
        "spec": {"driver": "gpu.carrel.dev", "nodeName": "n1", "pool": {"name": "n1", "generation": 1}},
    }
    try:
        await lab.client.create(RESOURCE_SLICES, {**body, "spec": {**body["spec"], "devices": devices}})
    except AlreadyExists:
        patch = MergePatch({"spec": {"devices": devices}})
        await lab.client.patch(RESOURCE_SLICES, "n1-gpu.carrel.dev", patch)


async def test_a_claim_that_has_a_lease_is_never_told_that_it_has_none_and_keeps_its_gpu() -> None:
    async with a_lab([N1]) as lab:
        await by_uuid(lab, [A, B, C])
        async with lab.replica(dra=True) as replica:
            assert replica.device_claims is not None
            gate, claim = Gate(replica), await new_claim(lab, "train")
            await sees_claim(replica, claim)
            assert await gate.allocate(lab, claim, {f"n1/{A.lower()}": ""}) is None
            await sees_claim(replica, await lab.client.get(RESOURCE_CLAIMS, "train", "lab"))
            await renumber(lab, replica, order=[B, A, C])
            await by_uuid(lab, [B, A, C])

            unrecorded = UnrecordedClaims(replica, replica.device_claims)
            assert unrecorded.found() == []
            assert await replica.collector.collect() == []
            gpus = RenumberedGpus(replica)
            await gpus.move(list(gpus.found()))
            assert unrecorded.found() == [] and await replica.collector.collect() == []
            assert await records(lab) == {"gpu-n1-1": (A, {uid_of(claim)})}

            second = await new_claim(lab, "second")
            await sees_claim(replica, second)
            assert await gate.allocate(lab, second, {f"n1/{A.lower()}": ""}) is not None
            assert await gate.allocate(lab, second, {f"n1/{B.lower()}": ""}) is None, "the empty one"
        assert not (await lab.client.list(EVENTS)).items


async def test_a_claim_that_is_gone_keeps_its_renumbered_gpu_while_its_containers_run() -> None:
    """Its pod was deleted by force."""
    async with a_lab([N1]) as lab:
        await by_uuid(lab, [A, B, C])
        async with lab.replica(dra=True) as replica:
            claim = await new_claim(lab, "train")
            await sees_claim(replica, claim)
            assert await Gate(replica).allocate(lab, claim, {f"n1/{A.lower()}": ""}) is None
            await renumber(lab, replica, order=[B, A, C], used={A: [uid_of(claim)]})
            await delete_claim(lab, "train")
            assert replica.device_claims is not None
            claims = replica.device_claims.claims.store
            await eventually(lambda: claims.get("train", "lab") is None)

            assert await replica.collector.collect() == []
            await renumber(lab, replica, order=[B, A, C])
            await eventually(lambda: not replica.cluster_ledger.users_of(replica.ledger.entries(N1.name)[1].gpu))
            assert [freed.why for freed in await replica.collector.collect()] == ["the claim is gone"]


async def test_a_claim_past_the_gate_on_a_gpu_whose_lease_is_not_free_yet_is_told_why() -> None:
    async with a_lab([N1]) as lab:
        await by_uuid(lab, [A, B, C])
        async with lab.replica(dra=True) as replica:
            assert replica.device_claims is not None
            await bound(lab, replica, "train")
            await renumber(lab, replica, order=[B, A, C])
            claim = await new_claim(lab, "claim")
            await sees_claim(replica, await store(lab, allocated(claim, {f"n1/{B.lower()}": ""})))
            unrecorded = UnrecordedClaims(replica, replica.device_claims)
            await unrecorded.treat(unrecorded.found())
            (event,) = (await lab.client.list(EVENTS)).items
            assert event.reason == "GPUWithoutLease"
            assert "is set aside: Lease gpu-n1-0 still records another GPU" in event.message

            gpus = RenumberedGpus(replica)
            await gpus.move(list(gpus.found()))
            await unrecorded.treat(unrecorded.found())
            assert (await records(lab))["gpu-n1-0"] == (B, {uid_of(claim)})
