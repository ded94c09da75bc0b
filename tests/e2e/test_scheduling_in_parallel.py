"""Extenders on a real API server, called in parallel as kube-scheduler calls them: no GPU is promised twice."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from carrel.ids import NodeName
from tests.e2e.bare_cluster import bare_api_server, bare_cluster
from tests.e2e.carrel_cluster import a_node
from tests.e2e.replicas import Replica, a_replica
from tests.kit.eventually import LIMIT_S

Json = dict[str, Any]

FULL = [a_node(f"full-{number}", [16276] * 4) for number in range(8)]
PODS, CAPACITY = 256, 8 * 4 * 4
"""So many pods that want a quarter of a GPU each, and so many quarters."""
GANG = [a_node(f"gang-{number}", [40960] * 4, "aaaa") for number in range(4)]


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    with bare_api_server("under-fire") as kubeconfig:
        yield kubeconfig


async def try_everywhere(replicas: Sequence[Replica], pod: Json, nodes: list[NodeName], chance: Random) -> None:
    """As schedulers do that know nothing of each other: the same pod may be bound by both at once."""
    asked = replicas if chance.random() < 0.25 else [chance.choice(replicas)]

    async def attempt(replica: Replica) -> None:
        for _ in range(6):
            fitting = await replica.fitting(pod, nodes)
            if not fitting or await replica.bind(pod, chance.choice(fitting)) == "":
                return

    await asyncio.gather(*(attempt(replica) for replica in asked))


async def test_two_replicas_with_256_parallel_binds_oversubscribe_no_gpu(kubeconfig: Path) -> None:
    nodes = [node.name for node in FULL]
    async with (
        bare_cluster(kubeconfig, FULL) as bare,
        a_replica(kubeconfig) as first,
        a_replica(kubeconfig) as second,
    ):
        pods = await asyncio.gather(*(bare.pod(f"p{n}", {"aliyun.com/gpu-mem": "4069"}) for n in range(PODS)))
        chance = Random(7)

        await asyncio.gather(*(try_everywhere([first, second], pod, nodes, chance) for pod in pods))

        await bare.collect_later()
        await bare.check()
        early = len(await bare.bound())
        assert 0 < early <= CAPACITY
        # Whoever lost a race finds a place now, until every GPU is full to the last MiB.
        for pod in pods:
            if pod["metadata"]["name"] not in await bare.bound():
                await try_everywhere([first], pod, nodes, chance)
        await bare.check()
        assert len(await bare.bound()) == CAPACITY


async def every_member(replica: Replica, pods: Sequence[Json], nodes: list[NodeName]) -> list[NodeName]:
    """Return where the gang's plan puts each of them.

    A member that has its node is not asked about again before it is bound: that would mean that its bind failed.
    """
    plan: list[NodeName] = []
    async with asyncio.timeout(120):
        while len(plan) < len(pods):
            fitting = await replica.fitting(pods[len(plan)], nodes)
            plan += fitting[:1]
            await asyncio.sleep(0 if fitting else 0.1)
    return plan


async def test_a_gang_of_eight_that_loses_a_node_is_placed_when_the_node_returns(
    kubeconfig: Path,
) -> None:
    nodes = [node.name for node in GANG]
    gang = {"carrel.dev/gpu-count": "2", "pod-group-name": "job", "carrel.dev/gang-size": "8"}
    async with bare_cluster(kubeconfig, GANG) as bare, a_replica(kubeconfig) as replica:
        pods = [await bare.pod(f"member-{number}", notes=gang) for number in range(8)]
        plan = await every_member(replica, pods, nodes)
        assert sorted(plan) == sorted(nodes * 2)
        waiting = [asyncio.ensure_future(replica.bind(pod, node)) for pod, node in zip(pods[:7], plan[:7], strict=True)]

        lost = plan[0]
        await bare.remove_report(lost)
        async with asyncio.timeout(LIMIT_S):
            while True:
                if not await replica.knows(lost):
                    break
                await asyncio.sleep(0.1)
        answers = [await replica.bind(pods[7], plan[7]), *await asyncio.gather(*waiting)]

        assert "" not in answers, "there is no room for eight without that node"
        assert any("is no longer in use" in why for why in answers), answers
        assert await bare.bound() == {}
        assert await bare.held() == {}, "everything was given back"

        await bare.announce(lost)
        plan = await every_member(replica, pods, nodes)
        answers = await asyncio.gather(*(replica.bind(pod, node) for pod, node in zip(pods, plan, strict=True)))
        assert answers == [""] * 8
        await bare.check()
