"""A scheduler's allocation of a ResourceClaim passes only if the Leases of its GPUs could be taken."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from carrel.cluster.pod_progress import holder_of
from carrel.kubernetes.cluster import Json, Unavailable
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.resource_claims.objects import RESOURCE_CLAIMS
from tests.kit.dra import Gate, allocated, deallocate, new_claim, publish, sees_claim
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

N1 = a_node("n1")
HALF, WHOLE = "8138Mi", ""


@asynccontextmanager
async def a_dra_lab(*nodes: Node) -> AsyncIterator[tuple[Lab, Gate]]:
    async with a_lab(nodes or [N1]) as lab:
        await publish(lab, *(nodes or [N1]))
        async with lab.replica(dra=True) as replica:
            yield lab, Gate(replica)


def uid_of(thing: Json) -> str:
    uid: str = thing["metadata"]["uid"]
    return uid


async def test_an_allocation_that_fits_takes_the_leases_of_its_gpus() -> None:
    async with a_dra_lab() as (lab, gate):
        claim = await new_claim(lab, "train")

        assert await gate.allocate(lab, claim, {"n1/gpu-0": HALF, "n1/gpu-1": WHOLE}) is None

        assert await lab.held() == {"gpu-n1-0": {uid_of(claim): 8138}, "gpu-n1-1": {uid_of(claim): None}}


async def test_a_full_gpu_is_refused_in_words_and_nothing_is_left_behind() -> None:
    async with a_dra_lab() as (lab, gate):
        first, second = await new_claim(lab, "first"), await new_claim(lab, "second")
        assert await gate.allocate(lab, first, {"n1/gpu-1": HALF}) is None

        refusal = await gate.allocate(lab, second, {"n1/gpu-0": HALF, "n1/gpu-1": WHOLE})

        assert str(refusal) == ("GPU 1 of n1 has 8,138 MiB free, 16,276 MiB asked; held by ResourceClaim lab/first")
        assert await lab.held() == {"gpu-n1-1": {uid_of(first): 8138}}


async def test_pods_of_other_dialects_and_claims_share_a_gpu_and_never_exceed_it() -> None:
    async with a_dra_lab(a_node("n1", gpus=1)) as (lab, gate):
        pod = await lab.pod("share", limits={"aliyun.com/gpu-mem": "8138"})
        assert await gate.replica.bind(pod, "n1") is None
        claim, late = await new_claim(lab, "claim"), await new_claim(lab, "late")

        assert await gate.allocate(lab, claim, {"n1/gpu-0": HALF}) is None
        refused = await gate.allocate(lab, late, {"n1/gpu-0": "1Mi"})
        next_pod = await lab.pod("next", limits={"aliyun.com/gpu-mem": "1"})

        assert "held by ResourceClaim lab/claim, lab/share" in str(refused)
        assert "ResourceClaim lab/claim" in str(await gate.replica.bind(next_pod, "n1"))
        assert await lab.held() == {"gpu-n1-0": {uid_of(pod): 8138, uid_of(claim): 8138}}


@pytest.mark.parametrize(
    ("consumed", "mib"),
    [("2000M", 1908), ("2Gi", 2048), ("1", 1), ("0", 1), ("16276Mi", None)],
    ids=["megabytes", "gibibytes", "a byte", "nothing", "all of it"],
)
async def test_memory_counts_in_whole_mib_rounded_up(consumed: str, mib: int | None) -> None:
    async with a_dra_lab() as (lab, gate):
        claim = await new_claim(lab, "train")
        assert await gate.allocate(lab, claim, {"n1/gpu-0": consumed}) is None
        assert await lab.held() == {"gpu-n1-0": {uid_of(claim): mib}}


async def test_asked_again_the_gate_says_the_same_and_takes_nothing_more() -> None:
    async with a_dra_lab() as (lab, gate):
        claim = await new_claim(lab, "train")
        after = allocated(claim, {"n1/gpu-0": HALF})
        assert [await gate.ask(after, claim) for _ in range(3)] == [None, None, None]
        assert await lab.held() == {"gpu-n1-0": {uid_of(claim): 8138}}


async def test_a_claim_that_loses_races_for_minutes_is_never_told_that_its_allocation_was_not_stored() -> None:
    async with a_dra_lab() as (lab, gate):
        claim, taken = await new_claim(lab, "train"), Refusal("another replica was faster")
        writer = gate.replica.lease_writer
        take = writer.take

        async def lost(*given: object) -> Refusal:
            return taken

        writer.take = lost  # type: ignore[method-assign, assignment]
        for _ in range(5):
            assert await gate.ask(allocated(claim, {"n1/gpu-0": HALF}), claim) == taken
            lab.clock.now += timedelta(minutes=1)
        writer.take = take  # type: ignore[method-assign]
        assert await gate.allocate(lab, claim, {"n1/gpu-0": HALF}) is None


async def test_an_allocation_elsewhere_leaves_the_first_gpu_to_the_collector() -> None:
    """The first write may still arrive."""
    async with a_dra_lab() as (lab, gate):
        claim = await new_claim(lab, "train")
        assert await gate.ask(allocated(claim, {"n1/gpu-0": HALF}), claim) is None
        assert await gate.allocate(lab, claim, {"n1/gpu-1": HALF}) is None
        assert await lab.held() == {"gpu-n1-0": {uid_of(claim): 8138}, "gpu-n1-1": {uid_of(claim): 8138}}


async def test_a_dry_run_gets_the_same_answer_and_takes_nothing() -> None:
    async with a_dra_lab() as (lab, gate):
        claim, whole = await new_claim(lab, "train"), allocated(await new_claim(lab, "whole"), {"n1/gpu-0": WHOLE})
        assert await gate.ask(allocated(claim, {"n1/gpu-0": HALF}), claim, dry_run=True) is None
        assert await lab.held() == {}

        assert await gate.allocate(lab, claim, {"n1/gpu-0": HALF}) is None
        assert "8,138 MiB free" in str(await gate.ask(whole, claim, dry_run=True))


async def test_admin_access_takes_nothing() -> None:
    async with a_dra_lab() as (lab, gate):
        claim = await new_claim(lab, "look")
        (asked,) = claim["spec"]["devices"]["requests"]
        looks = {"devices": {"requests": [{**asked, "exactly": {**asked["exactly"], "adminAccess": True}}]}}
        forged = allocated(claim, {"n1/gpu-0": WHOLE}, adminAccess=True)
        assert await gate.ask({**forged, "spec": looks}, {**claim, "spec": looks}) is None
        assert await lab.held() == {}

        assert await gate.ask(forged, claim) is None
        assert await lab.held() == {"gpu-n1-0": {uid_of(claim): None}}, "the claim did not ask for admin access"


async def test_another_driver_and_what_is_allocated_already_are_not_our_business() -> None:
    async with a_dra_lab() as (lab, gate):
        claim = await new_claim(lab, "train")
        given = allocated(claim, {"n1/gpu-0": WHOLE})
        assert await gate.ask(allocated(claim, {"n1/nic-0": WHOLE}, driver="nic.example"), claim) is None
        assert await gate.ask(given, given) is None
        assert await gate.ask({**claim, "status": {}}, given) is None
        assert await lab.held() == {}


async def test_a_device_that_no_slice_has_is_refused() -> None:
    async with a_dra_lab() as (lab, gate):
        refusal = await gate.allocate(lab, await new_claim(lab, "train"), {"n1/gpu-7": WHOLE})
        assert str(refusal).startswith("device gpu.carrel.dev/n1/gpu-7 is in no slice yet")


async def test_the_uuid_of_the_newest_slice_counts_and_not_the_name_of_the_device() -> None:
    """After a reboot the GPUs of a node may have changed places."""
    async with a_lab([N1]) as lab:
        swapped = Node(N1.name, tuple(replace(gpu, index=1 - gpu.index) for gpu in N1.gpus))
        await publish(lab, swapped)
        async with lab.replica(dra=True) as replica:
            claim = await new_claim(lab, "train")
            assert await Gate(replica).allocate(lab, claim, {"n1/gpu-0": WHOLE}) is None
            assert await lab.held() == {"gpu-n1-1": {uid_of(claim): None}}


async def test_gpus_of_two_nodes_are_refused() -> None:
    async with a_dra_lab(N1, a_node("n2")) as (lab, gate):
        refusal = await gate.allocate(lab, await new_claim(lab, "train"), {"n1/gpu-0": WHOLE, "n2/gpu-0": WHOLE})
        assert str(refusal) == "the allocation has GPUs of n1 and n2; a claim gets GPUs of one node"


async def test_a_pod_that_also_asks_in_another_dialect_gets_no_claim() -> None:
    async with a_dra_lab() as (lab, gate):
        uses = [{"name": "gpu", "resourceClaimName": "train"}]
        pod = await lab.pod("both", limits={"aliyun.com/gpu-mem": "8138"}, claims=uses)
        refusal = await gate.allocate(lab, await new_claim(lab, "train"), {"n1/gpu-0": HALF}, pod)
        assert str(refusal) == (
            "pod lab/both asks for GPUs in 2 ways: aliyun.com/gpu-mem and ResourceClaim train; keep one of them"
        )


EXTENDED = {"resource.kubernetes.io/extended-resource-claim": "true"}


@pytest.mark.parametrize(
    ("annotations", "others"),
    [
        pytest.param({}, "", id="nvidia.com/gpu alone is the claim"),
        pytest.param({"gpu-fraction": "0.5"}, "gpu-fraction", id="another dialect besides"),
    ],
)
async def test_the_claim_that_a_scheduler_makes_for_nvidias_resource_is_no_second_way_of_asking(
    annotations: dict[str, str], others: str
) -> None:
    async with a_dra_lab() as (lab, gate):
        pod = await lab.pod("plain", limits={"nvidia.com/gpu": "1"}, annotations=annotations)
        claim = await new_claim(lab, "plain-extended-resources-x")
        made = {**claim, "metadata": {**claim["metadata"], "annotations": EXTENDED}}
        refusal = await gate.ask(allocated(made, {"n1/gpu-0": WHOLE}, pod), made)
        assert others in str(refusal) if others else refusal is None


async def test_a_gpu_that_is_kept_for_a_booked_pod_is_refused() -> None:
    async with a_dra_lab() as (lab, gate):
        booked = await gate.replica.sees(await lab.pod("booked", limits={"nvidia.com/gpu": "1"}))
        assert await gate.replica.lease_writer.keep_for(N1.gpus[0], holder_of(booked), ())
        refusal = await gate.allocate(lab, await new_claim(lab, "train"), {"n1/gpu-0": HALF})
        assert str(refusal) == "GPU 0 of n1 is kept for lab/booked"


async def test_two_replicas_decide_by_the_version_of_the_lease() -> None:
    async with a_lab([N1]) as lab:
        await publish(lab, N1)
        async with lab.replica(dra=True) as one, lab.replica(dra=True) as other:
            claims = [await new_claim(lab, f"claim-{number}") for number in range(8)]
            gates = [Gate(one), Gate(other)]
            asked = [
                gates[number % 2].allocate(lab, claim, {f"n1/gpu-{number % 3 % 2}": HALF})
                for number, claim in enumerate(claims)
            ]
            answers = await asyncio.gather(*asked)

            assert [answer is None for answer in answers].count(True) == 4
            held = await lab.held()
            assert [sum(filter(None, shares.values())) for shares in held.values()] == [16276, 16276]


async def test_a_write_that_fails_half_way_gives_back_what_was_taken() -> None:
    async with a_lab([N1]) as lab:
        await publish(lab, N1)
        claim = await new_claim(lab, "train")
        async with lab.replica(dra=True) as replica:
            create = replica.cluster.create

            async def fails_for_the_second(resource: Any, body: Json, *given: Any, **named: Any) -> Json:
                if body["metadata"]["name"] == "gpu-n1-1":
                    raise Unavailable(503, "ServiceUnavailable", "the API server is away")
                return await create(resource, body, *given, **named)

            replica.cluster.create = fails_for_the_second  # type: ignore[method-assign]
            with pytest.raises(Unavailable):
                await Gate(replica).ask(allocated(claim, {"n1/gpu-0": HALF, "n1/gpu-1": HALF}), claim)
            assert await lab.held() == {}
            assert [entry.free for entry in replica.ledger.entries(N1.name)] == [16276, 16276]


async def test_a_replica_that_was_killed_after_its_yes_is_succeeded_by_one_that_says_the_same() -> None:
    async with a_lab([N1]) as lab:
        await publish(lab, N1)
        claim = await new_claim(lab, "train")
        async with lab.replica(dra=True) as killed:
            assert await Gate(killed).ask(allocated(claim, {"n1/gpu-0": WHOLE}), claim) is None
        async with lab.replica(dra=True) as successor:
            assert await Gate(successor).allocate(lab, claim, {"n1/gpu-0": WHOLE}) is None
            assert await lab.held() == {"gpu-n1-0": {uid_of(claim): None}}


async def test_a_claim_whose_allocation_is_never_stored_does_not_hold_its_gpu_for_ever() -> None:
    """Another webhook may refuse what the gate lets through, and the scheduler tries again every few seconds."""
    async with a_dra_lab(a_node("n1", gpus=1)) as (lab, gate):
        refused, other = await new_claim(lab, "refused"), await new_claim(lab, "other")
        held, answers = [], set()
        for _ in range(60):
            answers.add(str(await gate.ask(allocated(refused, {"n1/gpu-0": WHOLE}), refused)))
            await gate.replica.collector.collect()
            held.append(bool(await lab.held()))
            lab.clock.now += timedelta(seconds=10)

        assert "None" in answers
        assert any("another webhook may refuse it" in each for each in answers)
        assert not all(held), "in between, others may have the GPU"
        first_free = held.index(False)
        assert first_free * 10 < 320
        lab.clock.now += timedelta(seconds=200)
        await gate.replica.collector.collect()
        lab.clock.now += timedelta(seconds=200)
        await gate.replica.collector.collect()
        assert await gate.allocate(lab, other, {"n1/gpu-0": WHOLE}) is None


async def test_a_claim_that_is_stored_each_time_may_be_allocated_as_often_as_it_wants() -> None:
    async with a_dra_lab(a_node("n1", gpus=1)) as (lab, gate):
        claim = await new_claim(lab, "often")
        for _ in range(12):
            assert await gate.allocate(lab, claim, {"n1/gpu-0": WHOLE}) is None
            await sees_claim(gate.replica, await lab.client.get(RESOURCE_CLAIMS, "often", "lab"))
            claim = await deallocate(lab, "often")
            await sees_claim(gate.replica, claim)
            lab.clock.now += timedelta(seconds=30)
