"""Opportunistic pods do not take what a booked pod is waiting for."""

import asyncio
from typing import Any

import pytest

from carrel.kubernetes.cluster import Deletion, Json
from carrel.kubernetes.objects.resources import PODS
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

WHOLE = {"nvidia.com/gpu": "1"}
TIERS: dict[str, dict[str, str]] = {
    "booked": {"carrel.dev/tier": "booked"},
    "opportunistic": {"carrel.dev/tier": "opportunistic"},
    "of MAIA": {"terminate-at": "1900-01-01T08:00:00Z"},
    "of no tier": {},
}
WAITED_FOR = "room, but a booked pod waits for it"


async def a_pod(lab: Lab, carrel: Replica, name: str, tier: str, **notes: str) -> Json:
    pod = await lab.pod(name, limits=WHOLE, annotations={**TIERS[tier], **notes})
    await carrel.sees(pod)
    return pod


async def refused(carrel: Replica, pod: Json, *nodes: str) -> dict[str, str]:
    return carrel.filter(await carrel.sees(pod), nodes).why_not()


@pytest.mark.parametrize("tier", ["opportunistic", "of MAIA"])
async def test_the_last_card_is_left_to_the_booked_pod_that_waits_for_it(tier: str) -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        booked = await a_pod(lab, carrel, "urgent", "booked")
        pod = await a_pod(lab, carrel, "greedy", tier)

        assert await refused(carrel, pod, "n1") == {"n1": WAITED_FOR}
        why = carrel.why(await carrel.sees(pod))
        assert why is not None and why.reason == f"1 whole GPU: there is {WAITED_FOR}"
        refusal = await carrel.bind(pod, "n1")
        assert refusal is not None and refusal.reason == f"n1 has {WAITED_FOR}"
        assert await lab.held() == {}

        assert await refused(carrel, booked, "n1") == {}
        assert await carrel.bind(booked, "n1") is None


@pytest.mark.parametrize("tier", ["booked", "of no tier"])
async def test_other_pods_do_not_stand_back(tier: str) -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        await a_pod(lab, carrel, "urgent", "booked")

        assert await carrel.bind(await a_pod(lab, carrel, "other", tier), "n1") is None


async def test_a_card_that_is_left_over_is_given_and_not_the_one_that_is_waited_for() -> None:
    async with a_lab([a_node("n1", cards=2)]) as lab, lab.replica() as carrel:
        booked = await a_pod(lab, carrel, "urgent", "booked")
        pods = [await a_pod(lab, carrel, f"greedy-{number}", "opportunistic") for number in range(2)]

        answers = await asyncio.gather(*(carrel.bind(pod, "n1") for pod in pods))

        assert sorted(answer is None for answer in answers) == [False, True]
        assert await carrel.bind(booked, "n1") is None


async def test_who_is_booked_may_go_elsewhere_so_others_may_come_here() -> None:
    async with a_lab([a_node("n1", cards=1), a_node("n2", cards=1)]) as lab, lab.replica() as carrel:
        pinned: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "n2"}}
        container = {"name": "main", "image": "work", "resources": {"limits": WHOLE}}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "urgent", "namespace": "lab", "annotations": TIERS["booked"]},
            "spec": {"schedulerName": "gpu-scheduler", "containers": [container], **pinned},
        }
        await carrel.sees(await lab.client.create(PODS, body, "lab"))
        pod = await a_pod(lab, carrel, "greedy", "opportunistic")

        assert await refused(carrel, pod, "n1", "n2") == {"n2": WAITED_FOR}


async def test_when_the_booked_pod_is_gone_the_card_is_for_everybody() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        await a_pod(lab, carrel, "urgent", "booked")
        pod = await a_pod(lab, carrel, "greedy", "opportunistic")
        assert await refused(carrel, pod, "n1") == {"n1": WAITED_FOR}

        await lab.client.delete(PODS, "urgent", "lab", how=Deletion(grace_seconds=0))
        await eventually(lambda: carrel.pods.store.get("urgent", "lab") is None)

        assert await carrel.bind(pod, "n1") is None


async def test_a_booked_pod_that_has_no_room_anyway_keeps_nobody_waiting() -> None:
    async with a_lab([a_node("n1", cards=1)]) as lab, lab.replica() as carrel:
        await lab.pod("large", limits={"nvidia.com/gpu": "2"}, annotations=TIERS["booked"])
        pod = await a_pod(lab, carrel, "greedy", "opportunistic")
        await eventually(lambda: carrel.pods.store.get("large", "lab"))

        assert await carrel.bind(pod, "n1") is None


@pytest.mark.parametrize(("cards", "comes_together"), [(2, False), (3, True)], ids=["too few", "enough"])
async def test_a_gang_without_a_booking_stands_back_as_a_whole(cards: int, comes_together: bool) -> None:
    async with a_lab([a_node("n1", cards=cards)]) as lab, lab.replica() as carrel:
        await a_pod(lab, carrel, "urgent", "booked")
        gang = {"pod-group-name": "job", "carrel.dev/gang-size": "2"}
        pods = [await a_pod(lab, carrel, f"member-{number}", "opportunistic", **gang) for number in range(2)]

        found = [carrel.filter(await carrel.sees(pod), ["n1"]) for pod in pods]

        assert [bool(each.fitting) for each in found] == [comes_together] * 2
        if comes_together:
            assert await asyncio.gather(*(carrel.bind(pod, "n1") for pod in pods)) == [None, None]
            assert len(await lab.bound()) == 2
