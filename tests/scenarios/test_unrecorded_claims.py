"""A claim that has a GPU without a Lease: recorded if it fits, else reported; and its GPU is given to nobody else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import EVENTS, LEASES
from carrel.ledger.gpus import Gpu
from carrel.resource_claims.allocation.unrecorded_claims import ClaimOutcome, UnrecordedClaims
from carrel.resource_claims.dra import DevicePlace
from carrel.resource_claims.objects import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.kit.dra import Gate, allocated, deallocate, new_claim, publish, sees_claim, store
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import OURS, Lab, Replica, a_lab

N1 = a_node("n1", gpus=1)
HALF = {"n1/gpu-0": "8138Mi"}


@asynccontextmanager
async def a_claim_lab() -> AsyncIterator[tuple[Lab, Replica, UnrecordedClaims]]:
    async with a_lab([N1]) as lab:
        await publish(lab, N1)
        async with lab.replica(dra=True) as replica:
            assert replica.device_claims is not None
            yield lab, replica, UnrecordedClaims(replica, replica.device_claims)


async def past_the_gate(lab: Lab, replica: Replica, name: str, memory: str = "8138Mi") -> Json:
    claim = await new_claim(lab, name)
    stored = await store(lab, allocated(claim, {"n1/gpu-0": memory}))
    await sees_claim(replica, stored)
    return stored


def _gpu(replica: Replica) -> Gpu:
    return replica.ledger.entries(N1.name)[0].gpu


async def prepared(lab: Lab, replica: Replica, *uids: str) -> None:
    """As the node's agent reports the claims that it has handed over."""
    status = await lab.client.get(GPU_NODE_STATUSES, "n1")
    devices = [{**each, "inUseBy": list(uids)} for each in status["status"]["devices"]]
    body = {"status": {"devices": devices, "preparedClaims": list(uids)}}
    await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch(body), subresource="status")
    await eventually(lambda: list(replica.cluster_ledger.users_of(_gpu(replica))) == list(uids))


@pytest.mark.parametrize(("memory", "mib"), [("8138Mi", 8138), ("", None)], ids=["a part", "the whole GPU"])
async def test_an_allocation_past_the_gate_is_recorded_if_it_fits(memory: str, mib: int | None) -> None:
    async with a_claim_lab() as (lab, replica, unrecorded):
        claim = await past_the_gate(lab, replica, "train", memory)
        assert await unrecorded.treat(unrecorded.found()) == [ClaimOutcome.RECORDED]
        assert await lab.held() == {"gpu-n1-0": {claim["metadata"]["uid"]: mib}}
        assert unrecorded.found() == []
        assert await replica.collector.collect() == []


async def test_of_a_claim_with_two_gpus_the_one_without_a_lease_is_found() -> None:
    node = a_node("n1", gpus=2)
    async with a_lab([node]) as lab:
        await publish(lab, node)
        async with lab.replica(dra=True) as replica:
            assert replica.device_claims is not None
            unrecorded = UnrecordedClaims(replica, replica.device_claims)
            claim = await new_claim(lab, "train")
            assert await Gate(replica).ask(allocated(claim, HALF), claim) is None
            await sees_claim(replica, await store(lab, allocated(claim, {**HALF, "n1/gpu-1": ""})))
            assert [each.gpu.index for each in unrecorded.found()] == [1]


async def test_to_look_at_claims_again_reads_neither_their_amounts_nor_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be tens of thousands, and the event loop waits meanwhile."""
    async with a_claim_lab() as (lab, replica, unrecorded):
        for name in ("first", "second"):
            claim = await new_claim(lab, name)
            assert await Gate(replica).allocate(lab, claim, {"n1/gpu-0": "4000Mi"}) is None
            await sees_claim(replica, await lab.client.get(RESOURCE_CLAIMS, name, "lab"))
        assert unrecorded.found() == []

        def never(*given: object) -> None:
            raise AssertionError("it is known already")

        monkeypatch.setattr("carrel.resource_claims.dra.uuids_in", never)
        monkeypatch.setattr("carrel.resource_claims.dra.allocated", never)
        monkeypatch.setattr(replica.isolation, "found", lambda _, items, look: list(map(look, items)))
        assert unrecorded.found() == []


async def test_a_device_that_becomes_another_gpu_is_known_as_that_one() -> None:
    async with a_claim_lab() as (lab, replica, _):
        assert replica.device_claims is not None
        place, known = DevicePlace("gpu.carrel.dev", "n1", "gpu-0"), replica.device_claims.uuid_of
        assert known(place) == N1.gpus[0].uuid
        replaced = (await lab.client.get(RESOURCE_SLICES, "n1-gpu.carrel.dev"))["spec"]
        replaced["devices"][0]["attributes"]["uuid"]["string"] = "GPU-new"
        await lab.client.patch(RESOURCE_SLICES, "n1-gpu.carrel.dev", MergePatch({"spec": replaced}))
        await eventually(lambda: known(place) == "GPU-new")


async def test_one_that_does_not_fit_is_reported_and_gets_no_lease() -> None:
    async with a_claim_lab() as (lab, replica, unrecorded):
        pod = await lab.pod("share", limits={"aliyun.com/gpu-mem": "12000"})
        assert await replica.bind(pod, "n1") is None
        user = await lab.pod("user", claims=[{"name": "gpu", "resourceClaimName": "train"}])
        await replica.sees(user)
        claim = await new_claim(lab, "train")
        await sees_claim(replica, await store(lab, allocated(claim, HALF, user)))

        for _ in range(2):
            assert await unrecorded.treat(unrecorded.found()) == [ClaimOutcome.NO_ROOM]

        assert await lab.held() == {"gpu-n1-0": {pod["metadata"]["uid"]: 12000}}
        told = (await lab.client.list(EVENTS, Selection("lab"))).items
        assert sorted(each.involved_object.kind for each in told) == ["Pod", "ResourceClaim"], "once each"
        assert {each.reason for each in told} == {"GPUWithoutLease"}
        assert "has 4,276 MiB free, 8,138 MiB asked" in told[0].message


async def test_a_claim_that_runs_and_whose_lease_was_deleted_keeps_its_gpu_from_others() -> None:
    """Also in processes that do not watch claims, as the extender."""
    async with a_claim_lab() as (lab, replica, unrecorded), lab.replica() as extender:
        claim = await new_claim(lab, "train")
        assert await Gate(replica).allocate(lab, claim, HALF) is None
        await prepared(lab, replica, claim["metadata"]["uid"])
        await eventually(lambda: extender.ledger.shares_of(claim["metadata"]["uid"]))
        assert not replica.ledger.entries(N1.name)[0].gpu.unusable

        await lab.client.delete(LEASES, "gpu-n1-0", OURS)
        for each in (replica, extender):
            await eventually(lambda each=each: each.ledger.entries("n1")[0].gpu.unusable)  # type: ignore[misc] # bound now
        assert (
            replica.ledger.entries(N1.name)[0].gpu.unusable == "ResourceClaim lab/train uses it, and no Lease says so"
        )
        late = await lab.pod("late", limits={"aliyun.com/gpu-mem": "1"})
        assert "no Lease says so" in str(await extender.bind(late, "n1"))
        assert any("no Lease gives it to this claim" in each for each in await lab.violations())

        assert await unrecorded.treat(unrecorded.found()) == [ClaimOutcome.RECORDED]
        assert await lab.held() == {"gpu-n1-0": {claim["metadata"]["uid"]: 8138}}
        await eventually(lambda: not extender.ledger.entries(N1.name)[0].gpu.unusable)
        assert await extender.bind(late, "n1") is None


async def test_a_pod_that_uses_a_gpu_does_not_count_as_a_claim() -> None:
    async with a_claim_lab() as (lab, replica, _):
        pod = await lab.pod("share", limits={"aliyun.com/gpu-mem": "8138"})
        assert await replica.bind(pod, "n1") is None
        status = await lab.client.get(GPU_NODE_STATUSES, "n1")
        devices = [{**each, "inUseBy": ["gone", pod["metadata"]["uid"]]} for each in status["status"]["devices"]]
        body = MergePatch({"status": {"devices": devices}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", body, subresource="status")
        await eventually(lambda: len(replica.cluster_ledger.users_of(_gpu(replica))) == 2)
        assert not replica.ledger.entries(N1.name)[0].gpu.unusable


async def test_admin_access_and_claims_that_were_given_up_are_not_recorded() -> None:
    async with a_claim_lab() as (lab, replica, unrecorded):
        claim = await new_claim(lab, "looks", adminAccess=True)
        await sees_claim(replica, await store(lab, allocated(claim, HALF, adminAccess=True)))
        assert unrecorded.found() == []
        await past_the_gate(lab, replica, "train")
        due = unrecorded.found()
        await deallocate(lab, "train")
        assert await unrecorded.treat(due) == [ClaimOutcome.OVER]
        assert await lab.held() == {}


async def test_a_claim_that_cannot_be_read_does_not_stop_the_others() -> None:
    async with a_claim_lab() as (lab, replica, unrecorded):
        await past_the_gate(lab, replica, "odd", "many")
        claim = await past_the_gate(lab, replica, "train")
        assert await unrecorded.treat(unrecorded.found()) == [ClaimOutcome.RECORDED]
        assert await lab.held() == {"gpu-n1-0": {claim["metadata"]["uid"]: 8138}}
