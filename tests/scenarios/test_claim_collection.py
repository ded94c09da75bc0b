"""A GPU is free soon after its claim has given it back, and never before."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.kubernetes.cluster import Json, MergePatch, NotFound
from carrel.kubernetes.store import Key
from carrel.resource_claims.objects import RESOURCE_CLAIMS
from tests.kit.dra import Gate, allocated, deallocate, delete_claim, new_claim, publish, sees_claim, store
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

N1 = a_node("n1")
HALF = {"n1/gpu-0": "8138Mi"}


@asynccontextmanager
async def an_allocated_claim() -> AsyncIterator[tuple[Lab, Replica, Json]]:
    async with a_lab([N1]) as lab:
        await publish(lab, N1)
        async with lab.replica(dra=True) as replica:
            claim = await new_claim(lab, "train")
            after = allocated(claim, HALF)
            assert await Gate(replica).ask(after, claim) is None
            stored = await store(lab, after)
            await sees_claim(replica, stored)
            yield lab, replica, stored


async def freed(replica: Replica) -> list[str]:
    return [each.why for each in await replica.collector.collect()]


async def is_gone(replica: Replica) -> None:
    assert replica.device_claims is not None
    claims = replica.device_claims.claims.store
    await eventually(lambda: claims.get("train", "lab") is None)


def later(replica: Replica, seconds: float) -> None:
    clock = replica.collector._clock
    replica.collector._clock = lambda: clock() + seconds


async def test_an_allocated_claim_keeps_its_gpu() -> None:
    async with an_allocated_claim() as (lab, replica, claim):
        assert await freed(replica) == []
        later(replica, 3600)
        assert await freed(replica) == []
        assert await lab.held() == {"gpu-n1-0": {claim["metadata"]["uid"]: 8138}}


async def test_a_claim_that_is_gone_frees_its_gpu_at_once() -> None:
    async with an_allocated_claim() as (lab, replica, _):
        await delete_claim(lab, "train")
        await is_gone(replica)
        assert await freed(replica) == ["the claim is gone"]
        assert await lab.held() == {}
        assert [entry.free for entry in replica.ledger.entries(N1.name)] == [16276, 16276]


async def test_the_end_of_a_claim_does_not_read_the_other_claims_of_its_namespace() -> None:
    """Claims end with nearly every pod, and a namespace may have thousands."""
    async with an_allocated_claim() as (lab, replica, _):
        for number in range(3):
            await new_claim(lab, f"other-{number}")
        ask = replica.cluster.list
        read: list[object] = []

        async def counted(resource, *given, **named):  # type: ignore[no-untyped-def]
            found = await ask(resource, *given, **named)
            read.extend(found.items if resource is RESOURCE_CLAIMS else ())
            return found

        await delete_claim(lab, "train")
        await is_gone(replica)
        replica.cluster.list = counted  # type: ignore[method-assign]
        assert await freed(replica) == ["the claim is gone"]
        assert read == []


async def test_a_claim_that_was_seen_allocated_and_is_so_no_more_frees_its_gpu_at_once() -> None:
    async with an_allocated_claim() as (lab, replica, _):
        await sees_claim(replica, await deallocate(lab, "train"))
        assert await freed(replica) == ["the claim is not allocated to GPU 0 of n1"]


async def test_another_claim_of_the_same_name_does_not_get_the_gpu() -> None:
    async with an_allocated_claim() as (lab, replica, _):
        await delete_claim(lab, "train")
        await sees_claim(replica, await new_claim(lab, "train"))
        assert await freed(replica) == ["another claim has its name now"]


async def test_an_allocation_that_is_not_stored_yet_has_ninety_seconds() -> None:
    async with a_lab([N1]) as lab:
        await publish(lab, N1)
        async with lab.replica(dra=True) as replica:
            claim = await new_claim(lab, "train")
            assert await Gate(replica).ask(allocated(claim, HALF), claim) is None

            assert await freed(replica) == []
            later(replica, 89)
            assert await freed(replica) == [], "the API server may still store it"
            later(replica, 2)
            assert await freed(replica) == ["the claim is not allocated to GPU 0 of n1"]


async def test_a_claim_that_is_allocated_again_begins_a_new_grace() -> None:
    async with an_allocated_claim() as (lab, replica, _):
        free = await deallocate(lab, "train")
        await sees_claim(replica, free)
        assert await Gate(replica).ask(allocated(free, HALF), free) is None

        assert await freed(replica) == [], "the gate has said yes again, and the write is under way"


async def test_a_claim_that_moved_frees_the_gpu_that_it_did_not_get() -> None:
    async with an_allocated_claim() as (lab, replica, _):
        free = await deallocate(lab, "train")
        elsewhere = {"n1/gpu-1": "8138Mi"}
        assert await Gate(replica).allocate(lab, free, elsewhere) is None
        await sees_claim(replica, await lab.client.get(RESOURCE_CLAIMS, "train", "lab"))

        assert await freed(replica) == ["the claim is not allocated to GPU 0 of n1"]
        assert list(await lab.held()) == ["gpu-n1-1"]


async def test_a_claim_that_is_prepared_on_its_node_keeps_the_gpu_although_it_is_gone() -> None:
    """A pod that is deleted by force frees its claim at once, and its containers may still run."""
    async with an_allocated_claim() as (lab, replica, claim):
        uid = claim["metadata"]["uid"]
        await _used_by(lab, replica, [uid])
        await delete_claim(lab, "train")
        await is_gone(replica)

        assert await freed(replica) == []

        await _used_by(lab, replica, [])
        assert await freed(replica) == ["the claim is gone"]


async def test_an_outdated_cache_frees_nothing() -> None:
    async with an_allocated_claim() as (lab, replica, claim):
        replica.device_claims.claims.store.drop(Key("lab", "train"))
        assert await freed(replica) == []
        assert await lab.held() == {"gpu-n1-0": {claim["metadata"]["uid"]: 8138}}


async def test_a_collector_that_does_not_watch_claims_asks_the_api_server() -> None:
    """`--dra` was switched off, and some claims still have their GPUs."""
    async with an_allocated_claim() as (lab, _, _), lab.replica() as without:
        assert await freed(without) == []
        await delete_claim(lab, "train")
        assert await freed(without) == ["the claim is gone"]


async def test_a_server_that_does_not_know_claims_frees_nothing() -> None:
    async with an_allocated_claim() as (lab, _, claim), lab.replica() as without:
        answer, ask = without.cluster.get, without.cluster.list

        async def unknown_kind(resource, *given, **named):  # type: ignore[no-untyped-def]
            if resource is RESOURCE_CLAIMS:
                raise NotFound(404, "NotFound", "the server could not find the requested resource")
            return await (ask if given and not isinstance(given[0], str) else answer)(resource, *given, **named)

        without.cluster.get = without.cluster.list = unknown_kind  # type: ignore[method-assign]
        assert await freed(without) == []
        assert await lab.held() == {"gpu-n1-0": {claim["metadata"]["uid"]: 8138}}


async def _used_by(lab: Lab, replica: Replica, uids: list[str]) -> None:
    status = await lab.client.get(GPU_NODE_STATUSES, "n1")
    devices = [{**each, "inUseBy": uids if each["id"] == 0 else []} for each in status["status"]["devices"]]
    await lab.client.patch(GPU_NODE_STATUSES, "n1", MergePatch({"status": {"devices": devices}}), subresource="status")
    await eventually(lambda: list(replica.cluster_ledger.users_of(replica.ledger.entries(N1.name)[0].gpu)) == uids)


async def test_a_claim_that_was_stored_elsewhere_at_its_second_try_frees_the_first_gpu_at_once() -> None:
    """The first write was refused after the gate's yes, because the claim had changed meanwhile."""
    async with a_lab([N1]) as lab:
        await publish(lab, N1)
        async with lab.replica(dra=True) as replica:
            claim = await new_claim(lab, "train")
            assert await Gate(replica).ask(allocated(claim, HALF), claim) is None
            assert await Gate(replica).allocate(lab, claim, {"n1/gpu-1": "8138Mi"}) is None
            await sees_claim(replica, await lab.client.get(RESOURCE_CLAIMS, "train", "lab"))

            assert await freed(replica) == ["the claim is not allocated to GPU 0 of n1"]
            assert list(await lab.held()) == ["gpu-n1-1"]


async def test_a_claim_that_was_handed_over_a_moment_ago_keeps_its_gpu_although_the_cache_does_not_know_it() -> None:
    async with an_allocated_claim() as (lab, replica, claim):
        await _used_by(lab, replica, [claim["metadata"]["uid"]])
        replica.cluster_ledger.users_on = lambda record: ()  # type: ignore[method-assign] # its watch is late
        await delete_claim(lab, "train")
        await is_gone(replica)
        assert await freed(replica) == []
