"""Bookings work for pods with ResourceClaims: their claims are covered, revoked and handed over as GPUs of pods are."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import LeaseRecord, read_lease
from carrel.kubernetes.cluster import DeleteOptions, Json, MergePatch, Selection
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.ledger.tiers import AtEnd
from carrel.resource_claims.allocation.claim_allocator import ClaimAllocator
from carrel.resource_claims.objects import RESOURCE_CLAIMS
from tests.kit.claimed_pods import ADA, EVE, ClaimLab, a_claim_lab, asking
from tests.kit.dra import allocated, deallocate, sees_claim, store
from tests.kit.gpus import A100, A6000, a_node
from tests.kit.lab import DAY
from tests.kit.tiers import an_opportunistic_pod, mark_unschedulable, pods_of

WHOLE = {"nvidia.com/gpu": "1"}
HALF = "8138Mi"


async def records(of: ClaimLab) -> dict[str, LeaseRecord]:
    found = (await of.lab.client.list(LEASES, Selection("carrel"))).items
    read = {lease.metadata.name: read_lease(lease) for lease in found}
    return {name: record for name, record in read.items() if record is not None}


async def covered_by(of: ClaimLab) -> dict[str, str]:
    """Claim or pod → the booking that its shares are recorded for."""
    shares = [share for record in (await records(of)).values() for share in record.shares]
    return {share.holder.name: share.coverage.booking if share.coverage else "" for share in shares}


async def told(of: ClaimLab, name: str) -> str:
    return (await of.lab.annotations(name)).get("carrel.dev/tier", "")


async def handed_over(of: ClaimLab) -> set[str]:
    pods = await pods_of(of.lab)
    return {name for name, pod in pods.items() if "carrel.dev/handed-over" in pod.metadata.annotations}


async def manifest(of: ClaimLab, name: str) -> Json:
    return await of.lab.client.get(PODS, name, "lab")


async def a_template(of: ClaimLab, **asked: Any) -> None:
    await of.template("gpu", asking(**asked))


async def test_claims_that_nobody_uses_and_shadow_claims_do_not_change_what_is_covered() -> None:
    """There may be tens of thousands of them: coverage must not be decided anew at each of their events."""
    async with a_claim_lab(a_node("n1")) as of:
        covered = of.replica.covered_pods
        await of.replica.sees(await of.pod("train", ADA, claim="named"))
        before = covered.covered_waiting()
        labelled = {"name": "held-1", "labels": {"carrel.dev/shadow": "true"}}
        shadow = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": labelled, "spec": asking()}
        for claim in (await of.claim("idle"), await of.lab.client.create(RESOURCE_CLAIMS, shadow, "carrel")):
            await sees_claim(of.replica, claim)
            await sees_claim(of.replica, await store(of.lab, allocated(claim, {"n1/gpu-0": HALF})))
        assert covered.covered_waiting() is before
        await sees_claim(of.replica, await of.claim("named"))
        assert covered.covered_waiting() is not before, "a pod waits for this one"


# --- coverage --------------------------------------------------------------------------------------------------------


async def test_the_claim_of_a_covered_pod_counts_as_a_gpu_of_its_booking() -> None:
    async with a_claim_lab(a_node("n1", 2)) as of:
        await of.lab.book(gpus=1)
        await a_template(of)
        await of.pod("first", ADA, template="gpu")
        await of.settle()
        await of.pod("second", ADA, template="gpu")
        await of.settle()

        assert await covered_by(of) == {"first-gpu": "booking-ada", "second-gpu": ""}
        assert (await told(of, "first"), await told(of, "second")) == ("booked", "opportunistic")
        booking = await of.lab.client.get(BOOKINGS, "booking-ada")
        assert booking["status"] == {"used": 1, "pods": ["lab/first"]}
        assert await of.lab.violations() == []


async def test_claims_and_pods_of_other_dialects_share_one_booking() -> None:
    async with a_claim_lab(a_node("n1", 3)) as of:
        await of.lab.book(gpus=2)
        await a_template(of)
        await of.pod("claimed", ADA, template="gpu")
        await of.settle()
        for name in ("whole", "beyond"):
            await of.lab.pod(name, limits=WHOLE, annotations=ADA)
            await of.settle()

        assert await covered_by(of) == {"claimed-gpu": "booking-ada", "whole": "booking-ada", "beyond": ""}


@pytest.mark.parametrize("change", ["cancelled", "shortened", "starts later"])
async def test_a_claim_loses_its_cover_with_its_booking(change: str) -> None:
    async with a_claim_lab(a_node("n1", 1), at_end=AtEnd.KEEP) as of:
        await of.lab.book()
        await a_template(of)
        await of.pod("train", ADA, template="gpu")
        await of.settle()
        assert await told(of, "train") == "booked"

        if change == "cancelled":
            await of.lab.client.delete(BOOKINGS, "booking-ada")
        else:
            now = of.lab.clock.now
            times = {"end": (now - timedelta(hours=1)).isoformat()}
            if change == "starts later":
                times = {"start": (now + DAY).isoformat(), "end": (now + 2 * DAY).isoformat()}
            await of.lab.client.patch(BOOKINGS, "booking-ada", MergePatch({"spec": times}))
        await of.settle()

        assert await covered_by(of) == {"train-gpu": ""}
        assert await told(of, "train") == "opportunistic"
        assert await handed_over(of) == set()


async def test_a_running_claim_is_covered_when_its_booking_starts() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await a_template(of)
        await of.pod("train", ADA, template="gpu")
        await of.settle()
        await of.lab.book()
        await of.settle()
        assert await covered_by(of) == {"train-gpu": "booking-ada"}
        assert await told(of, "train") == "booked"


# --- a claim that several pods use ------------------------------------------------------------------------------------


async def test_the_first_pod_decides_for_a_claim_and_a_guest_of_another_person_is_not_booked_by_it() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        await of.claim("shared")
        await of.pod("first", ADA, claim="shared")
        await of.settle()
        await of.pod("guest", EVE, claim="shared")
        await of.settle()

        assert await covered_by(of) == {"shared": "booking-ada"}
        assert (await told(of, "first"), await told(of, "guest")) == ("booked", "opportunistic")

        await of.lab.client.delete(PODS, "first", "lab", how=DeleteOptions(grace_seconds=0))
        await of.settle()

        assert await covered_by(of) == {"shared": ""}
        assert await told(of, "guest") == "opportunistic"


async def test_a_second_pod_of_the_same_person_is_booked_with_the_claim_and_counts_as_no_further_gpu() -> None:
    async with a_claim_lab(a_node("n1", 2)) as of:
        await of.lab.book(gpus=1)
        await of.claim("shared")
        for name in ("first", "second"):
            await of.pod(name, ADA, claim="shared")
            await of.settle()
        assert (await told(of, "first"), await told(of, "second")) == ("booked", "booked")

        await of.lab.client.delete(PODS, "first", "lab", how=DeleteOptions(grace_seconds=0))
        await of.settle()

        assert await covered_by(of) == {"shared": "booking-ada"}
        assert await told(of, "second") == "booked"


async def test_a_booked_guest_protects_nobody_elses_claim() -> None:
    """Who joins the claim of a pod without a booking loses what that loses."""
    async with a_claim_lab(a_node("n1", 1), has_booker=True) as of:
        await of.lab.book()
        await of.claim("shared")
        await of.pod("eves", EVE, claim="shared")
        await of.settle()
        await of.pod("adas", ADA, claim="shared")
        await of.settle()
        assert await told(of, "adas") == "opportunistic"


# --- the gate ---------------------------------------------------------------------------------------------------------


async def test_a_gpu_that_is_kept_for_a_booked_person_is_given_to_their_claim_and_refused_to_others() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        await an_opportunistic_pod(of.lab, of.replica, "busy", grace_seconds=60)
        await a_template(of)
        await of.pod("adas", ADA, template="gpu")
        await of.schedule()
        for _ in range(3):  # the victim is told to end, and has not ended yet
            await of.follow()
            await of.controller.round()
        assert (await records(of))["gpu-n1-0"].kept_for is not None
        await of.pod("eves", EVE, template="gpu")
        await of.lab.client.delete(PODS, "busy", "lab", how=DeleteOptions(grace_seconds=0))
        await of.follow()
        await of.replica.collector.collect()
        claim = next(each for each in await of.claims() if each.metadata.name == "eves-gpu")
        refused = await of.gate.ask(*await eves_try(of, claim.metadata.name))
        assert str(refused) == "GPU 0 of n1 is kept for lab/adas"

        await of.settle()

        assert "adas-gpu" in await covered_by(of)
        assert (await pods_of(of.lab))["adas"].spec.node_name == "n1"


async def eves_try(of: ClaimLab, name: str) -> tuple[Json, Json]:
    """What a scheduler writes for eve's pod, and what was before."""
    claim = await of.lab.client.get(RESOURCE_CLAIMS, name, "lab")
    return allocated(claim, {"n1/gpu-0": ""}, await manifest(of, "eves")), claim


async def test_an_opportunistic_claim_leaves_room_for_a_booked_pod_that_waits() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        await of.lab.pod("whole", limits=WHOLE, annotations=ADA)
        await a_template(of)
        await of.pod("eves", EVE, template="gpu")
        await of.schedule()
        assert of.refusals == ["GPU 0 of n1 has room, but a booked pod waits for it"]
        await of.settle()
        assert await covered_by(of) == {"whole": "booking-ada"}


async def test_a_booked_pods_claim_gets_only_gpus_of_the_booked_model() -> None:
    async with a_claim_lab(a_node("n1", 1, model=A6000), a_node("n2", 1, model=A100)) as of:
        await of.lab.book(model=A100)
        await a_template(of)
        await of.pod("train", ADA, template="gpu")
        await of.settle()
        assert any(f"is a {A6000}, {A100} asked" in each for each in of.refusals)
        assert list(await records(of)) == ["gpu-n2-0"]
        assert await covered_by(of) == {"train-gpu": "booking-ada"}


# --- revocation -------------------------------------------------------------------------------------------------------


async def test_a_booked_pod_of_another_dialect_takes_the_gpu_of_an_opportunistic_claim() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await a_template(of)
        await of.pod("victim", EVE, template="gpu")
        await of.settle()
        await of.lab.book()
        await of.lab.pod("urgent", limits=WHOLE, annotations=ADA)
        await of.settle()

        assert await covered_by(of) == {"urgent": "booking-ada"}
        assert await handed_over(of) == {"victim"}
        successor = await manifest(of, "victim")
        assert "resourceClaims" not in successor["spec"]
        assert await of.lab.violations() == []


@pytest.mark.parametrize("victim", ["a claim", "a pod of another dialect"])
async def test_a_booked_pod_that_waits_for_a_claim_takes_the_gpu_of_an_opportunistic_one(victim: str) -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await a_template(of)
        if victim == "a claim":
            await of.pod("victim", EVE, template="gpu")
        else:
            await of.lab.pod("victim", limits=WHOLE, annotations=EVE)
        await of.settle()
        await of.lab.book()
        await of.pod("urgent", ADA, template="gpu")
        await of.settle()

        assert await covered_by(of) == {"urgent-gpu": "booking-ada"}
        assert await handed_over(of) == {"victim"}


async def test_no_booked_claim_is_a_victim() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book("eve@lab.example")
        await a_template(of)
        await of.pod("eves", EVE, template="gpu")
        await of.settle()
        await of.lab.book()
        await of.pod("adas", ADA, template="gpu")
        await of.settle()
        assert await covered_by(of) == {"eves-gpu": "booking-eve"}
        assert await handed_over(of) == set()


async def test_all_pods_of_a_named_claim_end_with_it() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.claim("shared")
        for name in ("one", "two"):
            await of.pod(name, EVE, claim="shared")
            await of.settle()
        await of.lab.book()
        await a_template(of)
        await of.pod("urgent", ADA, template="gpu")
        await of.settle()

        assert await covered_by(of) == {"urgent-gpu": "booking-ada"}
        assert await handed_over(of) == {"one", "two"}


async def test_a_part_of_a_gpu_is_taken_from_as_few_claims_as_will_do() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await a_template(of, memory=HALF)
        for name in ("one", "two"):
            await of.pod(name, EVE, template="gpu")
            await of.settle()
        await of.lab.book()
        await of.pod("urgent", ADA, template="gpu")
        await of.settle()
        assert len(await handed_over(of)) == 1
        assert (await covered_by(of))["urgent-gpu"] == "booking-ada"


async def test_nobody_loses_a_gpu_for_a_claim_whose_selector_carrel_does_not_understand() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await a_template(of)
        await of.pod("victim", EVE, template="gpu")
        await of.settle()
        await of.lab.book()
        await of.template("large", asking(selector="device.attributes['gpu.carrel.dev'].index > 3"))
        await of.pod("urgent", ADA, template="large")
        await of.settle()
        assert await handed_over(of) == set()


async def test_a_claim_may_name_the_model_for_which_gpus_are_revoked() -> None:
    async with a_claim_lab(a_node("n1", 1, model=A6000), a_node("n2", 1, model=A100)) as of:
        await a_template(of)
        await of.pod("small", EVE, template="gpu")
        await of.pod("large", EVE, template="gpu")
        await of.settle()
        await of.lab.book()
        await of.template("a100", asking(selector=f"device.attributes['gpu.carrel.dev'].model == '{A100}'"))
        await of.pod("urgent", ADA, template="a100")
        await of.follow()
        await of.schedule()
        await of.follow()
        await of.controller.round()
        kept = {name for name, record in (await records(of)).items() if record.kept_for is not None}
        assert kept == {"gpu-n2-0"}


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_at_the_end_of_its_booking_a_pod_goes_on_without_its_claim_and_its_gpu_is_free() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        await a_template(of)
        await of.pod("train", ADA, template="gpu")
        await of.settle()
        assert await covered_by(of) == {"train-gpu": "booking-ada"}

        of.lab.clock.now += 2 * DAY
        await of.settle()

        assert await covered_by(of) == {}
        assert await handed_over(of) == {"train"}
        successor = await manifest(of, "train")
        assert "resourceClaims" not in successor["spec"]
        assert "claims" not in successor["spec"]["containers"][0].get("resources", {})
        assert successor["metadata"]["annotations"]["carrel.dev/asked-for"] == '{"gpus": 1}'


# --- claims that Carrel allocates -------------------------------------------------------------------------------------


async def a_booked_pod_that_a_scheduler_could_not_place(of: ClaimLab) -> None:
    """Its claim may have the GPU of n2 only, and a scheduler tries that of n1."""
    await of.lab.book(model=A100)
    await a_template(of, memory=HALF)
    await of.pod("train", ADA, template="gpu")
    await of.follow()
    await mark_unschedulable(of.lab, "train")
    await of.follow()


def the_allocator(of: ClaimLab) -> ClaimAllocator:
    (allocator,) = of.controller.parts.after_revocation
    assert isinstance(allocator, ClaimAllocator)
    return allocator


TWO_MODELS = (a_node("n1", 1, model=A6000), a_node("n2", 1, model=A100))


async def test_carrel_allocates_the_claim_of_a_booked_pod_that_no_scheduler_could_place() -> None:
    async with a_claim_lab(*TWO_MODELS) as of:
        await a_booked_pod_that_a_scheduler_could_not_place(of)

        assert await the_allocator(of).round() == ["lab/train"]

        (claim,) = await of.claims()
        status = (await of.lab.client.get(RESOURCE_CLAIMS, "train-gpu", "lab"))["status"]
        (result,) = status["allocation"]["devices"]["results"]
        assert result.pop("shareID")
        assert result == {
            "request": "gpu",
            "driver": "gpu.carrel.dev",
            "pool": "n2",
            "device": "gpu-0",
            "consumedCapacity": {"memory": HALF},
        }
        assert status["allocation"]["allocationTimestamp"] == "2026-11-16T12:00:00Z"
        assert "resource.kubernetes.io/delete-protection" in claim.metadata.finalizers
        assert await covered_by(of) == {"train-gpu": "booking-ada"}

        await of.settle()
        assert (await pods_of(of.lab))["train"].spec.node_name == "n2"
        assert of.refusals == []


async def test_the_gate_lets_carrels_own_allocation_pass_because_the_leases_name_the_claim() -> None:
    async with a_claim_lab(*TWO_MODELS) as of:
        await a_booked_pod_that_a_scheduler_could_not_place(of)
        before = await of.lab.client.get(RESOURCE_CLAIMS, "train-gpu", "lab")
        await the_allocator(of).round()
        after = await of.lab.client.get(RESOURCE_CLAIMS, "train-gpu", "lab")
        assert await of.gate.ask(after, before) is None
        assert await covered_by(of) == {"train-gpu": "booking-ada"}


async def test_after_a_crash_between_lease_and_allocation_the_next_round_uses_what_was_taken() -> None:
    async with a_claim_lab(a_node("n1", 2)) as of:
        await of.lab.book()
        await a_template(of)
        await of.pod("train", ADA, template="gpu")
        await of.follow()
        await mark_unschedulable(of.lab, "train")
        await of.follow()
        allocator = the_allocator(of)

        async def crash(*_: Any) -> None:
            raise asyncio.CancelledError

        with pytest.MonkeyPatch.context() as until_then:
            until_then.setattr(allocator, "_write", crash)
            until_then.setattr(of.replica.lease_writer, "give_back", crash)
            with pytest.raises(asyncio.CancelledError):
                await allocator.round()
        taken = await of.lab.held()
        assert len(taken) == 1

        assert await allocator.round() == ["lab/train"]
        assert await of.lab.held() == taken


async def test_a_scheduler_that_was_faster_keeps_its_choice_and_nothing_is_left_behind() -> None:
    async with a_claim_lab(a_node("n1", 2)) as of:
        await of.lab.book()
        await a_template(of)
        await of.pod("train", ADA, template="gpu")
        await of.follow()
        await mark_unschedulable(of.lab, "train")
        await of.follow()
        claim = await of.lab.client.get(RESOURCE_CLAIMS, "train-gpu", "lab")
        after = allocated(claim, {"n1/gpu-1": ""}, await manifest(of, "train"))
        await store(of.lab, after)  # the cache does not show it yet
        await the_allocator(of).round()
        assert await of.lab.held() == {}


async def test_a_claim_that_a_scheduler_has_deallocated_is_left_to_it_for_a_minute() -> None:
    async with a_claim_lab(*TWO_MODELS) as of:
        await a_booked_pod_that_a_scheduler_could_not_place(of)
        await the_allocator(of).round()
        await deallocate(of.lab, "train-gpu")
        await of.follow()
        await of.replica.collector.collect()
        assert await the_allocator(of).round() == []
        of.lab.clock.now += timedelta(seconds=61)
        await of.follow()
        assert await the_allocator(of).round() == ["lab/train"]


async def test_the_gpu_of_a_claim_is_lent_if_no_scheduler_can_follow_the_allocation() -> None:
    """The pod lacks CPU: the scheduler gives the claim's GPU back, and Carrel allocates it again, once a minute."""
    async with a_claim_lab(a_node("n1", 1)) as of:
        await of.lab.book()
        await a_template(of)
        await of.pod("train", ADA, template="gpu")
        await of.follow()
        await mark_unschedulable(of.lab, "train", why="0/1 nodes: 1 Insufficient cpu.")
        allocations = []
        for _ in range(20):
            for _ in range(6):
                await of.follow()
                await of.controller.round()
                of.lab.clock.now += timedelta(seconds=10)
            status = (await of.lab.client.get(RESOURCE_CLAIMS, "train-gpu", "lab")).get("status", {})
            allocations.append("allocation" in status)
            if allocations[-1]:
                await deallocate(of.lab, "train-gpu")

        assert "carrel.dev/gpus-lent" in await of.lab.annotations("train")
        assert any(allocations[:8]) and not any(allocations[10:])
        assert await of.lab.held() == {}


async def test_carrel_allocates_no_claim_of_a_pod_without_a_booking() -> None:
    async with a_claim_lab(a_node("n1", 1)) as of:
        await a_template(of)
        await of.pod("eves", EVE, template="gpu")
        await of.follow()
        await mark_unschedulable(of.lab, "eves")
        await of.follow()
        assert await the_allocator(of).round() == []
