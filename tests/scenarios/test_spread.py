"""`--placement spread`, KAI's gpuspread: parts of GPUs go to the emptiest GPU of the emptiest node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.scheduling.assembly import SchedulerOptions, scheduler_on
from tests.kit.eventually import eventually
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import Lab, Replica, a_lab

QUARTER = {"gpu-fraction": "0.25"}


@contextlib.asynccontextmanager
async def spreading(nodes: Sequence[Node]) -> AsyncIterator[tuple[Lab, Replica]]:
    async with a_lab(nodes) as lab, lab.replica() as replica:
        replica.scheduler = scheduler_on(replica, SchedulerOptions(spread=True))
        yield lab, replica


async def placed(lab: Lab, replica: Replica, name: str, **spec: Any) -> str:
    """The GPUs that the pod gets on the node that the extender ranks first."""
    pod = await replica.sees(await lab.pod(name, **spec))
    fitting = replica.filter(pod, sorted(replica.ledger.nodes)).fitting
    node = next(iter(replica.scheduler.rank(pod, sorted(fitting))))
    assert await replica.scheduler.bind(pod, node) is None
    return (await lab.annotations(name))["carrel.dev/devices"]


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        pytest.param(True, ["GPU-n1-0", "GPU-n1-1", "GPU-n1-2", "GPU-n1-0"], id="spread"),
        pytest.param(False, ["GPU-n1-0"] * 4, id="packed, as it is without the setting"),
    ],
)
async def test_parts_are_spread_over_the_gpus_of_a_node(spread: bool, expected: list[str]) -> None:
    async with a_lab([a_node("n1", 3)]) as lab, lab.replica() as replica:
        replica.scheduler = scheduler_on(replica, SchedulerOptions(spread=spread))

        assert [await placed(lab, replica, f"p{i}", annotations=QUARTER) for i in range(4)] == expected


async def test_pods_are_spread_over_nodes_and_then_over_their_gpus() -> None:
    async with spreading([a_node("n1"), a_node("n2")]) as (lab, replica):
        got = [await placed(lab, replica, f"p{i}", annotations=QUARTER) for i in range(5)]

    assert got == ["GPU-n1-0", "GPU-n2-0", "GPU-n1-1", "GPU-n2-1", "GPU-n1-0"]


async def test_a_filter_that_names_one_node_spreads_over_nodes_too() -> None:
    async with spreading([a_node("n1"), a_node("n2")]) as (lab, replica):
        named: list[str] = []
        for number in range(4):  # none of them is bound yet: what was named counts
            pod = await replica.sees(await lab.pod(f"p{number}", annotations=QUARTER))
            found = replica.scheduler.filter(pod, [N1, N2], chooses=True)
            assert not isinstance(found, Refusal)
            named += found.fitting

    assert named == ["n1", "n2", "n1", "n2"]


async def test_whole_gpus_are_spread_over_nodes() -> None:
    async with spreading([a_node("n1"), a_node("n2")]) as (lab, replica):
        got = [await placed(lab, replica, f"p{i}", limits={"nvidia.com/gpu": "1"}) for i in range(4)]

    assert got == ["GPU-n1-0", "GPU-n2-0", "GPU-n1-1", "GPU-n2-1"]


async def test_parts_of_several_gpus_stay_on_one_island() -> None:
    async with spreading([a_node("n1", islands="aabb")]) as (lab, replica):
        pair = {**QUARTER, "gpu-fraction-num-devices": "2"}
        got = [await placed(lab, replica, f"p{i}", annotations=pair) for i in range(2)]

    assert got == ["GPU-n1-0,GPU-n1-1", "GPU-n1-2,GPU-n1-3"]


async def test_a_pod_that_says_how_it_wants_its_gpus_gets_them_so() -> None:
    async with spreading([a_node("n1", 3)]) as (lab, replica):
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "second"}}
        devices = {"count": 1, "exclusivity": "Shared", "policy": "preferIds", "preferIds": [1]}
        await lab.client.create(GPU_CLAIMS, {**body, "spec": {"devices": devices}}, "lab")
        await eventually(lambda: replica.claims.store.get("second", "lab"))
        claims = {"gpu.scheduling/claim": "second"}

        assert [await placed(lab, replica, f"p{i}", annotations=claims) for i in range(2)] == ["GPU-n1-1"] * 2


async def test_the_members_of_a_gang_are_spread_over_gpus_too() -> None:
    async with spreading([a_node("n1", 3)]) as (lab, replica):
        gang = {**QUARTER, "pod-group-name": "team", "carrel.dev/gang-size": "3"}
        pods = [await replica.sees(await lab.pod(f"m{i}", annotations=gang)) for i in range(3)]
        for pod in pods:
            assert replica.filter(pod, [N1]).fitting
        assert await asyncio.gather(*(replica.scheduler.bind(pod, N1) for pod in pods)) == [None] * 3

        told = sorted([(await lab.annotations(f"m{i}"))["carrel.dev/devices"] for i in range(3)])
        assert told == ["GPU-n1-0", "GPU-n1-1", "GPU-n1-2"]
