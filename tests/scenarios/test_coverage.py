"""A booking covers so many GPUs as were booked, on a small cluster with one replica of Carrel."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpu_lease import read_lease
from carrel.ids import BookingId
from carrel.kubernetes.cluster import DeleteOptions, MergePatch, Selection
from carrel.kubernetes.objects.resources import LEASES, NAMESPACES, PODS
from carrel.ledger.tiers import Tier, TierPolicy
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, a_node
from tests.kit.lab import NOON, Lab, a_lab
from tests.kit.tiers import (
    WHOLE,
    TierController,
    an_opportunistic_pod,
    an_unschedulable_booked_pod,
    catch_up,
    end_deleted,
    event_reasons,
    mark_unschedulable,
    pods_of,
    remove_gates,
    settle,
)

ADA = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with a_lab([a_node("n1", 4)]) as lab:
        yield lab


async def test_a_booking_of_one_gpu_covers_one_of_three_pods(lab: Lab) -> None:
    await lab.book(gpus=1)
    async with lab.replica() as replica:
        pods = [await lab.pod(f"p{i}", limits=WHOLE, annotations=ADA) for i in range(3)]
        for pod in pods:
            assert await replica.bind(pod, "n1") is None
        seen = [replica.covered_pods.tier(await replica.sees(pod)) for pod in pods]
        assert seen == [Tier.BOOKED, Tier.OPPORTUNISTIC, Tier.OPPORTUNISTIC]
        told = [(await lab.annotations(f"p{i}"))["carrel.dev/tier"] for i in range(3)]
        assert told == ["booked", "opportunistic", "opportunistic"]
    leases = [read_lease(each) for each in (await lab.client.list(LEASES, Selection("carrel"))).items]
    recorded = [share.coverage for lease in leases if lease for share in lease.shares if share.coverage]
    assert [each.booking for each in recorded] == ["booking-ada"]


async def test_two_halves_on_one_gpu_use_up_one_booked_gpu(lab: Lab) -> None:
    await lab.book(gpus=1)
    async with lab.replica() as replica:
        half = {"gpu-fraction": "0.5"}
        pods = [await lab.pod(f"h{i}", annotations={**ADA, **half}) for i in range(3)]
        for pod in pods:
            assert await replica.bind(pod, "n1") is None
        seen = [replica.covered_pods.tier(await replica.sees(pod)) for pod in pods]
        assert seen == [Tier.BOOKED, Tier.BOOKED, Tier.OPPORTUNISTIC]
        held = await lab.held()
        assert {pods[0]["metadata"]["uid"], pods[1]["metadata"]["uid"]} in map(set, held.values())


async def test_a_cancelled_booking_covers_nobody_and_the_next_pod_follows_one_that_ended(lab: Lab) -> None:
    booking = await lab.book(gpus=1)
    async with lab.replica() as replica:
        pods = [await lab.pod(f"p{i}", limits=WHOLE, annotations=ADA) for i in range(2)]
        for pod in pods:
            assert await replica.bind(pod, "n1") is None
        assert replica.covered_pods.tier(await replica.sees(pods[0])) is Tier.BOOKED
        await lab.client.delete(BOOKINGS, booking["metadata"]["name"])
        await eventually(lambda: replica.covered_pods.booking(BookingId("booking-ada")) is None, "the booking is gone")
        assert [replica.covered_pods.tier(await replica.sees(pod)) for pod in pods] == [
            Tier.OPPORTUNISTIC,
            Tier.OPPORTUNISTIC,
        ]


# --- it follows the booking ------------------------------------------------------------------------------------------

EVE = {"carrel.dev/user": "eve@lab.example", "carrel.dev/tier": "opportunistic"}
NOBODY = {"carrel.dev/tier": "opportunistic"}


async def told(lab: Lab, name: str) -> str:
    return (await lab.annotations(name))["carrel.dev/tier"]


async def test_a_pod_that_runs_already_is_covered_when_the_booking_starts(lab: Lab) -> None:
    async with lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "early", annotations=ADA)
        await lab.book(start=NOON + timedelta(hours=1), end=NOON + timedelta(days=1))
        controller = TierController(replica)
        await settle(lab, controller)
        assert await told(lab, "early") == "opportunistic"

        lab.clock.now = NOON + timedelta(hours=1)
        await settle(lab, controller)

        assert await told(lab, "early") == "booked"
        assert (await lab.annotations("early"))["terminate-at"] == "2026-11-17T12:00:00Z"
        assert "CoveredByBooking early" in await event_reasons(lab)
        used = await lab.client.get(BOOKINGS, "booking-ada")
        assert used["status"] == {"used": 1, "pods": ["lab/early"]}


async def test_when_a_covered_pod_ends_the_next_one_is_covered(lab: Lab) -> None:
    await lab.book(gpus=1)
    async with lab.replica() as replica:
        for name in ("first", "second"):
            await an_opportunistic_pod(lab, replica, name, annotations=ADA)
        controller = TierController(replica)
        await settle(lab, controller)
        assert [await told(lab, name) for name in ("first", "second")] == ["booked", "opportunistic"]

        await lab.client.delete(PODS, "first", "lab", how=DeleteOptions(grace_seconds=0))
        await settle(lab, controller)

        assert await told(lab, "second") == "booked"


async def test_two_replicas_that_bind_for_the_last_booked_gpu_cover_one_pod(lab: Lab) -> None:
    """Each has bound before it saw the other's Lease: both have recorded the coverage."""
    await lab.book(gpus=1)
    async with lab.replica() as one, lab.replica() as other:
        pods = [await lab.pod(f"p{number}", limits=WHOLE, annotations=ADA) for number in range(2)]
        for replica in (one, other):
            for pod in pods:
                await replica.sees(pod)
        bound = await asyncio.gather(one.bind(pods[0], "n1"), other.bind(pods[1], "n1"))
        assert [each for each in bound if each is not None] == []

        await settle(lab, TierController(one))

        assert sorted([await told(lab, "p0"), await told(lab, "p1")]) == ["booked", "opportunistic"]
        leases = [read_lease(each) for each in (await lab.client.list(LEASES, Selection("carrel"))).items]
        recorded = [share for lease in leases if lease for share in lease.shares if share.coverage]
        assert len(recorded) == 1


async def test_a_victim_that_a_booking_covers_before_its_time_is_over_stays(lab: Lab) -> None:
    async with lab.replica() as replica:
        for number in range(4):
            await an_opportunistic_pod(lab, replica, f"low-{number}", annotations=EVE)
        await an_unschedulable_booked_pod(lab, "urgent")
        controller = TierController(replica, grace_s=60)
        await catch_up(lab, replica)
        await controller.round()
        (victim,) = [name for name in await pods_of(lab) if "carrel.dev/leave-by" in await lab.annotations(name)]

        await lab.book("eve@lab.example", gpus=4, name="all-of-them")
        await settle(lab, controller)
        lab.clock.now += timedelta(minutes=2)
        await settle(lab, controller)

        assert await told(lab, victim) == "booked"
        assert "carrel.dev/leave-by" not in await lab.annotations(victim)
        assert not [
            pod for pod in (await pods_of(lab)).values() if "carrel.dev/handed-over" in pod.metadata.annotations
        ]


# --- a GPU is taken back for a booking, not for a pod -----------------------------------------------------------------


@pytest.mark.parametrize(("minutes", "is_kept"), [(14, True), (16, False)])
async def test_a_gpu_that_was_taken_back_is_kept_for_the_next_pod_of_the_booking(minutes: int, is_kept: bool) -> None:
    """A notebook hub gives up on its pod, and its user tries again."""
    async with a_lab([a_node("n1", 1)]) as lab, lab.replica() as replica:
        await lab.book(gpus=1)
        await an_opportunistic_pod(lab, replica, "low", annotations=EVE)
        await lab.pod("notebook", limits=WHOLE, annotations=ADA)
        await mark_unschedulable(lab, "notebook")
        controller = TierController(replica)
        await catch_up(lab, replica)
        await controller.round()  # the GPU is kept for the notebook, and the other pod has to go
        await lab.client.delete(PODS, "notebook", "lab", how=DeleteOptions(grace_seconds=0))
        for _ in range(4):
            await end_deleted(lab)
            await catch_up(lab, replica)
            await controller.round()

        lab.clock.now += timedelta(minutes=minutes)
        await catch_up(lab, replica)
        await controller.round()
        greedy = await lab.pod("greedy", limits=WHOLE, annotations=EVE)
        refusal = await replica.bind(greedy, "n1")
        assert (refusal is not None) is is_kept
        if refusal is not None:
            assert "kept for the next pod of a booking" in f"{refusal.reason} {refusal.details}"
            again = await lab.pod("notebook", limits=WHOLE, annotations=ADA)
            assert await replica.bind(again, "n1") is None
            await settle(lab, controller)
            assert await told(lab, "notebook") == "booked"
            (lease,) = (await lab.client.list(LEASES, Selection("carrel"))).items
            record = read_lease(lease)
            assert record is not None and record.kept_for is None


# --- a pod for a booking that starts later ----------------------------------------------------------------------------

GATE = "carrel.dev/booking"


async def test_a_pod_for_a_later_booking_is_held_until_it_starts(lab: Lab) -> None:
    async with lab.replica() as replica:
        start = NOON + timedelta(hours=1)
        await lab.book(start=start, end=NOON + timedelta(days=1))
        await lab.pod("later", limits=WHOLE, annotations={**ADA, GATE: "booking-ada"}, gates=[GATE, "a.example/b"])
        controller = TierController(replica)
        await settle(lab, controller)
        assert (await lab.annotations("later"))["carrel.dev/waits-until"] == "2026-11-16T13:00:00Z"

        lab.clock.now = start
        await settle(lab, controller)

        pod = (await pods_of(lab))["later"]
        assert [gate.name for gate in pod.spec.scheduling_gates] == ["a.example/b"], "only our own is removed"
        assert "carrel.dev/waits-until" not in pod.metadata.annotations
        await remove_gates(lab, "later")
        await settle(lab, controller)
        assert await told(lab, "later") == "booked"


@pytest.mark.parametrize("how", ["cancelled", "for another person"])
async def test_a_pod_whose_later_booking_is_gone_continues_without_it(lab: Lab, how: str) -> None:
    async with lab.replica() as replica:
        await lab.book(start=NOON + timedelta(hours=1), end=NOON + timedelta(days=1))
        await lab.pod("later", limits=WHOLE, annotations={**ADA, GATE: "booking-ada"}, gates=[GATE])
        controller = TierController(replica)
        await settle(lab, controller)
        assert (await pods_of(lab))["later"].spec.scheduling_gates

        if how == "cancelled":
            await lab.client.delete(BOOKINGS, "booking-ada")
        else:
            await lab.client.patch(BOOKINGS, "booking-ada", MergePatch({"spec": {"user": "eve@lab.example"}}))
        await settle(lab, controller)

        pod = (await pods_of(lab))["later"]
        assert pod.spec.node_name == "n1"
        assert await told(lab, "later") == "opportunistic"
        assert "BookingCancelled later" in await event_reasons(lab)


async def test_a_gate_that_names_no_booking_is_removed(lab: Lab) -> None:
    """Only who writes past the webhook can make such a pod: it must not wait for ever."""
    async with lab.replica() as replica:
        await lab.pod("lost", limits=WHOLE, annotations=ADA, gates=[GATE])

        await settle(lab, TierController(replica))

        assert (await pods_of(lab))["lost"].spec.node_name == "n1"


async def test_an_opportunistic_part_may_share_a_booked_gpu_until_that_booking_needs_the_rest() -> None:
    """Although another GPU is free: the covered pod may touch no further one."""
    half = {"gpu-fraction": "0.5"}
    async with a_lab([a_node("n1", 2)]) as lab, lab.replica() as replica:
        await lab.book(gpus=1)
        first = await lab.pod("first", annotations={**ADA, **half})
        beside = await lab.pod("beside", annotations={**EVE, **half})
        for pod in (first, beside):
            assert await replica.bind(pod, "n1") is None
        assert {first["metadata"]["uid"], beside["metadata"]["uid"]} in map(set, (await lab.held()).values())
        assert await told(lab, "beside") == "opportunistic"

        await an_unschedulable_booked_pod(lab, "second", annotations={**ADA, **half}, limits={})
        await settle(lab, TierController(replica))

        assert "carrel.dev/handed-over" in await lab.annotations("beside")
        assert "carrel.dev/handed-over" not in await lab.annotations("first")


# --- who is never a victim, and who waits -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "is_exempt", "is_victim"),
    [
        pytest.param(EVE, False, True, id="without a booking"),
        pytest.param({"carrel.dev/tier": "opportunistic"}, False, True, id="of nobody"),
        pytest.param(EVE, True, False, id="in an exempt namespace"),
        pytest.param({}, False, False, id="older than Carrel"),
    ],
)
async def test_who_may_lose_a_gpu_to_a_booked_pod(
    annotations: dict[str, str], is_exempt: bool, is_victim: bool
) -> None:
    async with a_lab([a_node("n1", 1)]) as lab, lab.replica() as replica:
        await an_opportunistic_pod(lab, replica, "other", annotations=annotations)
        if is_exempt:
            exempt = MergePatch({"metadata": {"annotations": {"carrel.dev/exempt": "true"}}})
            await lab.client.patch(NAMESPACES, "lab", exempt)
            await eventually(lambda: replica.covered_pods.tier(next(iter(replica.pods.store))) is None, "it is exempt")
        await an_unschedulable_booked_pod(lab, "urgent", namespace="elsewhere")

        await settle(lab, TierController(replica))

        assert ("carrel.dev/handed-over" in await lab.annotations("other")) is is_victim


async def test_who_holds_too_much_without_a_booking_waits_with_that_reason(lab: Lab) -> None:
    policy = TierPolicy(opportunistic_gpus=1)
    async with lab.replica(tier_policy=policy) as replica:
        await an_opportunistic_pod(lab, replica, "first", annotations=EVE)
        second = await lab.pod("second", limits=WHOLE, annotations=EVE)
        refused = replica.filter(await replica.sees(second), [N1]).refused
        assert refused == {
            "n1": "eve@lab.example holds 1 GPU without a booking; more than 1 are not given to one person"
        }
        why = replica.waiting_reason.why(await replica.sees(second))
        assert why is not None and why.reason == refused[N1]

        await lab.book("eve@lab.example", gpus=1)
        await eventually(lambda: replica.covered_pods.booking(BookingId("booking-eve")), "the booking is seen")
        assert replica.filter(await replica.sees(second), [N1]).fitting, "a booking covers the first, and this counts"


@pytest.mark.parametrize(("annotations", "who"), [(EVE, "eve@lab.example"), (NOBODY, "namespace lab")])
async def test_a_pod_that_was_deleted_by_force_counts_until_its_end_is_confirmed(
    lab: Lab, annotations: dict[str, str], who: str
) -> None:
    async with lab.replica(tier_policy=TierPolicy(opportunistic_gpus=1)) as replica:
        uid = (await an_opportunistic_pod(lab, replica, "first", annotations=annotations))["metadata"]["uid"]
        await lab.client.delete(PODS, "first", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: replica.pods.store.by_uid(uid) is None)
        second = await replica.sees(await lab.pod("second", limits=WHOLE, annotations=annotations))
        assert f"{who} holds 1 GPU without a booking" in replica.filter(second, [N1]).refused[N1]

        await replica.collector.collect()  # the agent of this lab does not see containers: the API server's word counts
        assert replica.filter(second, [N1]).fitting


async def test_pods_of_nobody_in_a_namespace_hold_together_no_more_than_one_person_may(lab: Lab) -> None:
    async with lab.replica(tier_policy=TierPolicy(opportunistic_gpus=1)) as replica:
        await an_opportunistic_pod(lab, replica, "first", annotations=NOBODY)
        second = await lab.pod("second", limits=WHOLE, annotations=NOBODY)
        elsewhere = await lab.pod("third", namespace="elsewhere", limits=WHOLE, annotations=NOBODY)
        of_eve = await lab.pod("fourth", limits=WHOLE, annotations=EVE)

        assert replica.filter(await replica.sees(second), [N1]).refused == {
            "n1": "namespace lab holds 1 GPU without a booking; more than 1 are not given to one person"
        }
        assert replica.filter(await replica.sees(elsewhere), [N1]).fitting
        assert replica.filter(await replica.sees(of_eve), [N1]).fitting


@pytest.mark.parametrize(("limit", "is_placed"), [(2, True), (1, False)])
async def test_a_gang_counts_as_a_whole_against_what_a_person_may_hold(lab: Lab, limit: int, is_placed: bool) -> None:
    async with lab.replica(tier_policy=TierPolicy(opportunistic_gpus=limit)) as replica:
        gang = {"pod-group-name": "pair", "carrel.dev/gang-size": "2"}
        pods = [await lab.pod(f"member-{number}", limits=WHOLE, annotations={**EVE, **gang}) for number in range(2)]
        for pod in pods:
            await replica.sees(pod)

        found = [replica.filter(await replica.sees(pod), [N1]) for pod in pods]
        assert [bool(each.fitting) for each in found] == [is_placed] * 2
        if is_placed:
            assert await asyncio.gather(*(replica.bind(pod, "n1") for pod in pods)) == [None, None]
