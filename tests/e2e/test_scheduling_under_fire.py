"""Extenders on a real API server, called as kube-scheduler calls them, all at once: no card is promised twice."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.e2e.card_room import card_room, paper_cluster
from tests.e2e.carrel_cluster import a_node
from tests.e2e.replicas import Replica, a_replica

Json = dict[str, Any]

FULL = [a_node(f"full-{number}", [16276] * 4) for number in range(8)]
PODS, ROOM = 256, 8 * 4 * 4
"""So many pods that want a quarter of a card each, and so many quarters."""
GANG = [a_node(f"gang-{number}", [40960] * 4, "aaaa") for number in range(4)]


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    with paper_cluster("under-fire") as kubeconfig:
        yield kubeconfig


async def try_everywhere(replicas: Sequence[Replica], pod: Json, nodes: list[str], chance: Random) -> None:
    """As schedulers do that know nothing of each other: the same pod may be bound by both at once."""
    asked = replicas if chance.random() < 0.25 else [chance.choice(replicas)]

    async def attempt(replica: Replica) -> None:
        for _ in range(6):
            fitting = await replica.fitting(pod, nodes)
            if not fitting or await replica.bind(pod, chance.choice(fitting)) == "":
                return

    await asyncio.gather(*(attempt(replica) for replica in asked))


async def test_two_replicas_with_256_parallel_binds_oversubscribe_no_card(kubeconfig: Path) -> None:
    nodes = [node.name for node in FULL]
    async with (
        card_room(kubeconfig, FULL) as room,
        a_replica(kubeconfig) as first,
        a_replica(kubeconfig) as second,
    ):
        pods = await asyncio.gather(*(room.pod(f"p{n}", {"aliyun.com/gpu-mem": "4069"}) for n in range(PODS)))
        chance = Random(7)

        await asyncio.gather(*(try_everywhere([first, second], pod, nodes, chance) for pod in pods))

        await room.after_a_while()
        await room.check()
        early = len(await room.bound())
        assert 0 < early <= ROOM
        # Whoever lost a race finds a place now, until every card is full to the last MiB.
        for pod in pods:
            if pod["metadata"]["name"] not in await room.bound():
                await try_everywhere([first], pod, nodes, chance)
        await room.check()
        assert len(await room.bound()) == ROOM


async def every_member(replica: Replica, pods: Sequence[Json], nodes: list[str]) -> list[str]:
    """Where the gang's plan puts each of them."""
    async with asyncio.timeout(60):
        while True:
            found = [await replica.fitting(pod, nodes) for pod in pods]
            if all(found):
                return [names[0] for names in found]
            await asyncio.sleep(0.1)


async def test_a_gang_of_eight_loses_a_node_half_way_and_is_placed_when_it_is_back(kubeconfig: Path) -> None:
    nodes = [node.name for node in GANG]
    gang = {"carrel.dev/gpu-cards": "2", "pod-group-name": "job", "carrel.dev/gang-size": "8"}
    async with card_room(kubeconfig, GANG) as room, a_replica(kubeconfig) as replica:
        pods = [await room.pod(f"member-{number}", notes=gang) for number in range(8)]
        plan = await every_member(replica, pods, nodes)
        assert sorted(plan) == sorted(nodes * 2)
        waiting = [asyncio.ensure_future(replica.bind(pod, node)) for pod, node in zip(pods[:7], plan[:7], strict=True)]

        lost = plan[0]
        await room.lose(lost)
        async with asyncio.timeout(60):
            while True:
                if not await replica.knows(lost):
                    break
                await asyncio.sleep(0.1)
        answers = [await replica.bind(pods[7], plan[7]), *await asyncio.gather(*waiting)]

        assert "" not in answers, "there is no room for eight without that node"
        assert any("is no longer in use" in why for why in answers), answers
        assert await room.bound() == {}
        assert await room.held() == {}, "everything was given back"

        await room.announce(lost)
        plan = await every_member(replica, pods, nodes)
        answers = await asyncio.gather(*(replica.bind(pod, node) for pod, node in zip(pods, plan, strict=True)))
        assert answers == [""] * 8
        await room.check()
