"""Opportunistic pods do not take a GPU that a booked pod waits for."""

import asyncio
from typing import Any

import pytest

from carrel.ids import NodeName
from carrel.kubernetes.cluster import DeleteOptions, Json
from carrel.kubernetes.objects.resources import PODS
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import BOOKED, WHOLE

TIERS: dict[str, dict[str, str]] = {
    "booked": BOOKED,
    "opportunistic": {"carrel.dev/tier": "opportunistic"},
    "of MAIA": {"terminate-at": "1900-01-01T08:00:00Z"},
    "of no tier": {},
}
WAITED_FOR = "room, but a booked pod waits for it"


async def a_pod(lab: Lab, replica: Replica, name: str, tier: str, **notes: str) -> Json:
    pod = await lab.pod(name, limits=WHOLE, annotations={**TIERS[tier], **notes})
    await replica.sees(pod)
    return pod


async def refused(replica: Replica, pod: Json, *nodes: NodeName) -> dict[NodeName, str]:
    return dict(replica.filter(await replica.sees(pod), nodes).refused)


@pytest.mark.parametrize("tier", ["opportunistic", "of MAIA"])
async def test_the_last_gpu_is_left_to_the_booked_pod_that_waits_for_it(tier: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        booked = await a_pod(lab, replica, "urgent", "booked")
        pod = await a_pod(lab, replica, "greedy", tier)

        assert await refused(replica, pod, N1) == {"n1": WAITED_FOR}
        why = replica.waiting_reason.why(await replica.sees(pod))
        assert why is not None and why.reason == f"1 whole GPU: there is {WAITED_FOR}"
        refusal = await replica.bind(pod, "n1")
        assert refusal is not None and refusal.reason == f"n1 has {WAITED_FOR}"
        assert await lab.held() == {}

        assert await refused(replica, booked, N1) == {}
        assert await replica.bind(booked, "n1") is None


@pytest.mark.parametrize("tier", ["booked", "of no tier"])
async def test_pods_that_are_not_opportunistic_leave_no_gpu_to_booked_pods(tier: str) -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_pod(lab, replica, "urgent", "booked")

        assert await replica.bind(await a_pod(lab, replica, "other", tier), "n1") is None


async def test_an_opportunistic_pod_gets_the_gpu_that_no_booked_pod_waits_for() -> None:
    async with a_lab([a_node("n1", gpus=2)]) as lab, lab.replica() as replica:
        booked = await a_pod(lab, replica, "urgent", "booked")
        pods = [await a_pod(lab, replica, f"greedy-{number}", "opportunistic") for number in range(2)]

        answers = await asyncio.gather(*(replica.bind(pod, "n1") for pod in pods))

        assert sorted(answer is None for answer in answers) == [False, True]
        assert await replica.bind(booked, "n1") is None


async def test_a_gpu_is_not_left_free_if_the_booked_pod_fits_elsewhere() -> None:
    async with a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)]) as lab, lab.replica() as replica:
        pinned: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "n2"}}
        container = {"name": "main", "image": "work", "resources": {"limits": WHOLE}}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "urgent", "namespace": "lab", "annotations": TIERS["booked"]},
            "spec": {"schedulerName": "gpu-scheduler", "containers": [container], **pinned},
        }
        await replica.sees(await lab.client.create(PODS, body, "lab"))
        pod = await a_pod(lab, replica, "greedy", "opportunistic")

        assert await refused(replica, pod, N1, N2) == {"n2": WAITED_FOR}


async def test_when_the_booked_pod_is_gone_every_pod_may_have_the_gpu() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await a_pod(lab, replica, "urgent", "booked")
        pod = await a_pod(lab, replica, "greedy", "opportunistic")
        assert await refused(replica, pod, N1) == {"n1": WAITED_FOR}

        await lab.client.delete(PODS, "urgent", "lab", how=DeleteOptions(grace_seconds=0))
        await eventually(lambda: replica.pods.store.get("urgent", "lab") is None)

        assert await replica.bind(pod, "n1") is None


async def test_no_gpu_is_left_free_for_a_booked_pod_that_does_not_fit_anyway() -> None:
    async with a_lab([a_node("n1", gpus=1)]) as lab, lab.replica() as replica:
        await lab.pod("large", limits={"nvidia.com/gpu": "2"}, annotations=TIERS["booked"])
        pod = await a_pod(lab, replica, "greedy", "opportunistic")
        await eventually(lambda: replica.pods.store.get("large", "lab"))

        assert await replica.bind(pod, "n1") is None


@pytest.mark.parametrize(("gpus", "is_placed"), [(2, False), (3, True)], ids=["too few", "enough"])
async def test_an_opportunistic_gang_leaves_gpus_to_booked_pods_as_a_whole(gpus: int, is_placed: bool) -> None:
    async with a_lab([a_node("n1", gpus=gpus)]) as lab, lab.replica() as replica:
        await a_pod(lab, replica, "urgent", "booked")
        gang = {"pod-group-name": "job", "carrel.dev/gang-size": "2"}
        pods = [await a_pod(lab, replica, f"member-{number}", "opportunistic", **gang) for number in range(2)]

        found = [replica.filter(await replica.sees(pod), [N1]) for pod in pods]

        assert [bool(each.fitting) for each in found] == [is_placed] * 2
        if is_placed:
            assert await asyncio.gather(*(replica.bind(pod, "n1") for pod in pods)) == [None, None]
            assert len(await lab.bound()) == 2
