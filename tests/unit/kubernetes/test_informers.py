"""How the first lists come: some after others, with pauses, and without a garbage collector that gets in the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from carrel.kubernetes.cluster import ListPage, Selection
from carrel.kubernetes.isolation import title
from carrel.kubernetes.objects.resources import NODES, PODS, Resource
from carrel.kubernetes.reflector import Informers
from tests.kit.eventually import LIMIT_S
from tests.unit.kubernetes.scripted_cluster import ScriptedCluster, page, pod

MANY = 1_700


class TwoKinds(ScriptedCluster):
    """Each list waits until the test lets it pass."""

    def __init__(self) -> None:
        super().__init__([page(10)])
        self.asked: list[str] = []
        self.passes = {"pods": asyncio.Event(), "nodes": asyncio.Event()}

    async def list(self, resource: Resource[Any], selection: Selection = Selection(), **_: Any) -> ListPage[Any]:  # type: ignore[override] # noqa: B008 # never changed
        self.asked.append(resource.plural)
        await self.passes[resource.plural].wait()
        return page(10, *(pod(f"{resource.plural}-{number}", 1 + number) for number in range(MANY)))


@asynccontextmanager
async def running(informers: Informers) -> AsyncIterator[None]:
    task = asyncio.create_task(informers.run())
    await settle()
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_kind_that_comes_after_another_is_read_meanwhile_and_told_afterwards() -> None:
    cluster, told = TwoKinds(), list[str]()
    informers = Informers(cluster)  # type: ignore[arg-type] # only lists and watches are asked for
    pods = informers.watch(PODS)
    informers.watch(NODES, after=(pods,))
    for reflector in informers.reflectors:
        reflector.on_change(lambda old, new: told.append(title(new)))

    async with running(informers):
        assert cluster.asked == ["pods"]
        cluster.passes["nodes"].set()
        cluster.passes["pods"].set()
        await informers.wait_synced()

    assert cluster.asked == ["pods", "nodes"]
    assert told == [f"lab/{kind}-{number}" for kind in ("pods", "nodes") for number in range(MANY)]


async def test_a_kind_that_comes_after_another_waits_until_that_is_there() -> None:
    cluster = TwoKinds()
    informers = Informers(cluster)  # type: ignore[arg-type] # only lists and watches are asked for
    nodes = informers.watch(NODES, after=(informers.watch(PODS),))
    cluster.passes["nodes"].set()
    async with running(informers):
        assert not nodes.is_synced
        assert len(nodes.store) == 0


async def test_others_have_their_turn_while_the_first_list_is_taken_over() -> None:
    cluster, turns, told = TwoKinds(), list[int](), list[str]()
    informers = Informers(cluster)  # type: ignore[arg-type] # only lists and watches are asked for
    pods = informers.watch(PODS)
    informers.reflectors[0].on_change(lambda old, new: told.append(title(new)))

    async def probe() -> None:
        cluster.passes["pods"].set()
        while not pods.is_synced:
            turns.append(len(told))
            await asyncio.sleep(0)

    async with running(informers), asyncio.timeout(LIMIT_S):
        await asyncio.gather(probe(), informers.wait_synced())
    most = max(after - before for before, after in zip([0, *turns], [*turns, MANY], strict=True))
    assert most <= 500
