"""Whose GPU a booking takes back: not a newcomer's only one while somebody else holds many."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from carrel.kubernetes.cluster import Json
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    an_opportunistic_pod,
    mark_unschedulable,
    pods_of,
    settle,
)

TEN_MINUTES = timedelta(minutes=10)


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    async with a_lab([a_node("n1", 4)]) as lab:
        yield lab


def of(person: str) -> dict[str, str]:
    return {**OPPORTUNISTIC, "carrel.dev/user": f"{person}@lab.example"}


async def ada_has_three_gpus_and_bob_has_one(lab: Lab, replica: Replica, **of_bob: Any) -> None:
    """Ada for a week, Bob for an hour."""
    end = lab.clock.now
    lab.clock.now = end - timedelta(days=7)
    for number in range(3):
        await an_opportunistic_pod(lab, replica, f"ada-{number}", annotations=of("ada"))
    lab.clock.now = end - timedelta(hours=1)
    await an_opportunistic_pod(lab, replica, "bob", **{"annotations": of("bob"), **of_bob})
    lab.clock.now = end


async def a_covered_pod(lab: Lab, name: str = "eve") -> Json:
    """Its booking runs, and kube-scheduler has found no node for it."""
    await lab.book("eve@lab.example", gpus=1, name=f"booking-{name}")
    pod = await lab.pod(name, limits=WHOLE, annotations={**of("eve"), "carrel.dev/tier": "booked"})
    await mark_unschedulable(lab, name)
    return pod


async def without_gpu(lab: Lab) -> list[str]:
    """The pods that were handed over."""
    found = (await pods_of(lab)).items()
    return sorted(name for name, pod in found if "carrel.dev/handed-over" in pod.metadata.annotations)


async def test_one_of_three_gpus_is_taken_and_a_newcomer_keeps_the_only_one(lab: Lab) -> None:
    async with lab.replica() as replica:
        await ada_has_three_gpus_and_bob_has_one(lab, replica)
        eve = await a_covered_pod(lab)

        await settle(lab, TierController(replica))

        [loser] = await without_gpu(lab)
        assert loser.startswith("ada-")
        assert (await lab.bound()).get(eve["metadata"]["uid"]) == "n1"


async def test_a_person_gives_back_until_both_have_the_same(lab: Lab) -> None:
    async with lab.replica() as replica:
        await ada_has_three_gpus_and_bob_has_one(lab, replica)
        controller = TierController(replica)
        for name in ("eve", "eve-2"):
            await a_covered_pod(lab, name)
            await settle(lab, controller)

        assert [name.partition("-")[0] for name in await without_gpu(lab)] == ["ada", "ada"]


async def test_pods_without_an_owner_are_those_of_one_person(lab: Lab) -> None:
    async with lab.replica() as replica:
        end = lab.clock.now
        lab.clock.now = end - timedelta(days=7)
        for number in range(3):
            await an_opportunistic_pod(lab, replica, f"nobodys-{number}", annotations=OPPORTUNISTIC)
        lab.clock.now = end - timedelta(hours=1)
        await an_opportunistic_pod(lab, replica, "bob", annotations=of("bob"))
        lab.clock.now = end
        await a_covered_pod(lab)

        await settle(lab, TierController(replica))

        [loser] = await without_gpu(lab)
        assert loser.startswith("nobodys-")


@pytest.mark.parametrize(
    ("minutes", "loser"),
    [
        pytest.param(5, "bob", id="Ada's pods are younger than the minimum time, and Bob's will do"),
        pytest.param(15, "ada", id="Ada's pods are older"),
    ],
)
async def test_a_pod_keeps_its_gpu_for_the_minimum_time_if_another_will_do(lab: Lab, minutes: int, loser: str) -> None:
    async with lab.replica() as replica:
        end = lab.clock.now
        lab.clock.now = end - timedelta(hours=1)
        await an_opportunistic_pod(lab, replica, "bob", annotations=of("bob"))
        lab.clock.now = end - timedelta(minutes=minutes)
        for number in range(3):
            await an_opportunistic_pod(lab, replica, f"ada-{number}", annotations=of("ada"))
        lab.clock.now = end
        await a_covered_pod(lab)

        await settle(lab, TierController(replica, minimum_time=TEN_MINUTES))

        assert [name.partition("-")[0] for name in await without_gpu(lab)] == [loser]
