"""An extender is killed at each of its writes in turn: after its restart nothing is lost, leaked or doubled."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from carrel.kubernetes.cluster import BindTarget
from tests.e2e.bare_cluster import BareCluster, bare_api_server, bare_cluster
from tests.e2e.carrel_cluster import a_node
from tests.e2e.replicas import DeathOrder, Replica, a_replica
from tests.kit.eventually import LIMIT_S
from tests.kit.gpus import N1

NODES = [a_node("n1", [16276] * 2), a_node("n2", [16276] * 2)]
GPU_MEM = {"aliyun.com/gpu-mem": "8138"}
PAIR = {"gpu-fraction": "0.5", "pod-group-name": "pair", "carrel.dev/gang-size": "2"}

Json = dict[str, Any]
Pods = Sequence[Json]
Making = Callable[[BareCluster, Replica], Awaitable[Pods]]


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    with bare_api_server("killed-at-every-write") as kubeconfig:
        yield kubeconfig


async def one_gpu(bare: BareCluster, replica: Replica) -> Pods:
    return [await bare.pod("one", GPU_MEM)]


async def a_gpu_with_another_pod_on_it(bare: BareCluster, replica: Replica) -> Pods:
    first = await bare.pod("first", GPU_MEM)
    assert await replica.bind(first, "n1") == ""
    return [await bare.pod("second", GPU_MEM)]


async def two_gpus(bare: BareCluster, replica: Replica) -> Pods:
    return [await bare.pod("two", notes={"carrel.dev/gpu-count": "2"})]


async def a_pod_that_cannot_be_bound(bare: BareCluster, replica: Replica) -> Pods:
    """It is already bound elsewhere, so what is taken for it must be released."""
    pod = await bare.pod("taken", notes={"carrel.dev/gpu-count": "2"})
    meta = pod["metadata"]
    await bare.client.bind(BindTarget("lab", meta["name"], meta["uid"], "elsewhere"))
    return [pod]


async def a_gang(bare: BareCluster, replica: Replica) -> Pods:
    return [await bare.pod(f"member-{number}", notes=PAIR) for number in range(2)]


SCENARIOS: dict[str, tuple[Making, int]] = {
    "one GPU": (one_gpu, 2),
    "a GPU with another pod on it": (a_gpu_with_another_pod_on_it, 2),
    "two GPUs": (two_gpus, 3),
    "a pod that cannot be bound": (a_pod_that_cannot_be_bound, 5),
    "a gang of two": (a_gang, 6),
}
"""And how many writes the bind takes: a Lease for each GPU, the Binding; to give back, one more for each Lease; a gang
is woken, each member by a write."""


async def schedule(replica: Replica, pods: Pods) -> list[str]:
    """Filter one after the other, then bind all at once, as kube-scheduler does. Why not; empty: bound."""
    for pod in pods:
        await replica.fitting(pod, [N1])
    answers = await asyncio.gather(*(replica.bind(pod, "n1") for pod in pods), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [str(answer) for answer in answers]


async def wait_known(replica: Replica, pods: Pods) -> None:
    """A gang is refused while not all its members are in the extender's cache."""
    async with asyncio.timeout(LIMIT_S):
        while len(pods) > 1:
            answer = await replica.ask("filter", {"Pod": pods[0], "Nodes": None, "NodeNames": ["nowhere"]})
            if "more member" not in str(answer) and "not heard of" not in str(answer):
                break
            await asyncio.sleep(0.05)


async def retry_until_bound(bare: BareCluster, replica: Replica, pods: Pods) -> None:
    """The scheduler tries again and again; unused leftovers of a kill are freed after a while."""
    async with asyncio.timeout(LIMIT_S):
        while not {pod["metadata"]["name"] for pod in pods} <= (await bare.bound()).keys():
            bound = await bare.bound()
            await schedule(replica, [pod for pod in pods if pod["metadata"]["name"] not in bound])
            await bare.check(at_rest=False)
            await bare.collect_later()
    await bare.collect_later()


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_nothing_is_lost_leaked_or_doubled_whichever_write_was_the_last(kubeconfig: Path, scenario: str) -> None:
    make, count = SCENARIOS[scenario]
    async with bare_cluster(kubeconfig, NODES) as bare, contextlib.AsyncExitStack() as stack:
        replica = await stack.enter_async_context(a_replica(kubeconfig))
        for number in range(1, count + 1):
            for is_sent in (False, True):
                pods = await make(bare, replica)
                await wait_known(replica, pods)
                replica.die_at(DeathOrder(number, is_sent))
                with contextlib.suppress(aiohttp.ClientError):
                    await schedule(replica, pods)
                await replica.wait_killed()

                replica = await stack.enter_async_context(a_replica(kubeconfig))  # rebuilt from the cluster
                await retry_until_bound(bare, replica, pods)
                await bare.check()
                await bare.empty()
                assert not await bare.held(), "nothing is left on any GPU"


async def test_the_scenarios_have_as_many_writes_as_they_say(kubeconfig: Path) -> None:
    """Otherwise some write would never be the last one."""
    async with bare_cluster(kubeconfig, NODES) as bare, a_replica(kubeconfig) as replica:
        counted = {}
        for scenario, (make, _) in SCENARIOS.items():
            pods = await make(bare, replica)
            await wait_known(replica, pods)
            await replica.writes()
            await schedule(replica, pods)
            counted[scenario] = await replica.writes()
            await bare.empty()

        assert counted == {scenario: count for scenario, (_, count) in SCENARIOS.items()}
