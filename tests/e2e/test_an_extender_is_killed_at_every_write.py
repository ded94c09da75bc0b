"""An extender is killed at each of its writes in turn: after it was restarted nothing is lost, leaked or double."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from carrel.kubernetes.cluster import BindTarget
from tests.e2e.card_room import CardRoom, card_room, paper_cluster
from tests.e2e.carrel_cluster import a_node
from tests.e2e.replicas import Order, Replica, a_replica

NODES = [a_node("n1", [16276] * 2), a_node("n2", [16276] * 2)]
GPU_MEM = {"aliyun.com/gpu-mem": "8138"}
PAIR = {"gpu-fraction": "0.5", "pod-group-name": "pair", "carrel.dev/gang-size": "2"}

Json = dict[str, Any]
Pods = Sequence[Json]
Making = Callable[[CardRoom, Replica], Awaitable[Pods]]


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    with paper_cluster("killed-at-every-write") as kubeconfig:
        yield kubeconfig


async def one_card(room: CardRoom, replica: Replica) -> Pods:
    return [await room.pod("one", GPU_MEM)]


async def a_card_with_another_on_it(room: CardRoom, replica: Replica) -> Pods:
    first = await room.pod("first", GPU_MEM)
    assert await replica.bind(first, "n1") == ""
    return [await room.pod("second", GPU_MEM)]


async def two_cards(room: CardRoom, replica: Replica) -> Pods:
    return [await room.pod("two", notes={"carrel.dev/gpu-cards": "2"})]


async def a_pod_that_cannot_be_bound(room: CardRoom, replica: Replica) -> Pods:
    """Somebody else has bound it, so that what is taken for it must be given back."""
    pod = await room.pod("taken", notes={"carrel.dev/gpu-cards": "2"})
    meta = pod["metadata"]
    await room.client.bind(BindTarget("lab", meta["name"], meta["uid"], "elsewhere"))
    return [pod]


async def a_gang(room: CardRoom, replica: Replica) -> Pods:
    return [await room.pod(f"member-{number}", notes=PAIR) for number in range(2)]


STORIES: dict[str, tuple[Making, int]] = {
    "one card": (one_card, 2),
    "a card with another pod on it": (a_card_with_another_on_it, 2),
    "two cards": (two_cards, 3),
    "a pod that cannot be bound": (a_pod_that_cannot_be_bound, 5),
    "a gang of two": (a_gang, 6),
}
"""And how many writes the bind takes: a Lease for each card, the Binding; to give back, one more for each Lease; a gang
is woken, each member by a write."""


async def schedule(replica: Replica, pods: Pods) -> list[str]:
    """Filter one after the other, then bind all at once, as kube-scheduler does. Why not; empty: bound."""
    for pod in pods:
        await replica.fitting(pod, ["n1"])
    answers = await asyncio.gather(*(replica.bind(pod, "n1") for pod in pods), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [str(answer) for answer in answers]


async def wait_known(replica: Replica, pods: Pods) -> None:
    """A gang is refused while the extender has not heard of all its members."""
    async with asyncio.timeout(60):
        while len(pods) > 1:
            answer = await replica.ask("filter", {"Pod": pods[0], "Nodes": None, "NodeNames": ["nowhere"]})
            if "more member" not in str(answer) and "not heard of" not in str(answer):
                break
            await asyncio.sleep(0.05)


async def set_right(room: CardRoom, replica: Replica, pods: Pods) -> None:
    """The scheduler tries again at once, and again; what a kill has left and nobody uses is freed after a while."""
    async with asyncio.timeout(60):
        while not {pod["metadata"]["name"] for pod in pods} <= (await room.bound()).keys():
            bound = await room.bound()
            await schedule(replica, [pod for pod in pods if pod["metadata"]["name"] not in bound])
            await room.check(at_rest=False)
            await room.after_a_while()
    await room.after_a_while()


@pytest.mark.parametrize("story", STORIES)
async def test_whatever_was_written_when_it_died_nothing_is_lost_leaked_or_double(kubeconfig: Path, story: str) -> None:
    make, count = STORIES[story]
    async with card_room(kubeconfig, NODES) as room, contextlib.AsyncExitStack() as stack:
        replica = await stack.enter_async_context(a_replica(kubeconfig))
        for number in range(1, count + 1):
            for is_sent in (False, True):
                pods = await make(room, replica)
                await wait_known(replica, pods)
                replica.will_die(Order(number, is_sent))
                with contextlib.suppress(aiohttp.ClientError):
                    await schedule(replica, pods)
                await replica.wait_dead()

                replica = await stack.enter_async_context(a_replica(kubeconfig))  # rebuilt from the cluster
                await set_right(room, replica, pods)
                await room.check()
                await room.empty()
                assert not await room.held(), "nothing is left on any card"


async def test_the_stories_have_as_many_writes_as_they_say(kubeconfig: Path) -> None:
    """Else some write would never be the last."""
    async with card_room(kubeconfig, NODES) as room, a_replica(kubeconfig) as replica:
        counted = {}
        for story, (make, _) in STORIES.items():
            pods = await make(room, replica)
            await wait_known(replica, pods)
            await replica.writes()
            await schedule(replica, pods)
            counted[story] = await replica.writes()
            await room.empty()

        assert counted == {story: count for story, (_, count) in STORIES.items()}
