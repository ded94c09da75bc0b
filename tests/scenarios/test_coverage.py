"""A booking covers so many GPUs as were booked, on a small cluster with one replica of Carrel."""

from collections.abc import AsyncIterator

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.carrel import read_lease
from carrel.kubernetes.cluster import Selection
from carrel.kubernetes.objects.resources import LEASES
from carrel.ledger.tiers import Tier
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab

ADA = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}
WHOLE = {"nvidia.com/gpu": "1"}


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
        seen = [replica.tier(await replica.sees(pod)) for pod in pods]
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
        seen = [replica.tier(await replica.sees(pod)) for pod in pods]
        assert seen == [Tier.BOOKED, Tier.BOOKED, Tier.OPPORTUNISTIC]
        held = await lab.held()
        assert {pods[0]["metadata"]["uid"], pods[1]["metadata"]["uid"]} in map(set, held.values())


async def test_a_cancelled_booking_covers_nobody_and_the_next_pod_follows_one_that_ended(lab: Lab) -> None:
    booking = await lab.book(gpus=1)
    async with lab.replica() as replica:
        pods = [await lab.pod(f"p{i}", limits=WHOLE, annotations=ADA) for i in range(2)]
        for pod in pods:
            assert await replica.bind(pod, "n1") is None
        assert replica.tier(await replica.sees(pods[0])) is Tier.BOOKED
        await lab.client.delete(BOOKINGS, booking["metadata"]["name"])
        await eventually(lambda: replica.covered_pods.booking("booking-ada") is None, "the booking is gone")
        assert [replica.tier(await replica.sees(pod)) for pod in pods] == [Tier.OPPORTUNISTIC, Tier.OPPORTUNISTIC]
