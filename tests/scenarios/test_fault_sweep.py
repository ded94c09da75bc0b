"""Faults, by seed: crashes after every write, lost answers, stale caches, two replicas at once.

At every moment: no GPU is oversubscribed, and every bound pod has its GPUs on Leases.
After the faults: nothing is lost, leaked or duplicated, and the result is the same as without faults.

`CARREL_SWEEP=1000` tries that many seeds; a failing one is in the name of its test, and its story is printed.
"""

import asyncio
import contextlib
import os
from datetime import timedelta

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.cluster import ClusterError, DeleteOptions, Json, NotFound, Selection
from carrel.kubernetes.objects.resources import LEASES, PODS
from tests.kit.eventually import eventually
from tests.kit.fault_run import ReplicaFaultRun
from tests.kit.gpus import N1, N2, N3, a_node
from tests.kit.lab import Lab, Replica, a_lab

SEEDS = int(os.environ.get("CARREL_SWEEP", "25"))
NODES = (N1, N2, N3)
MEMORY = 1000
KINDS: list[dict[str, dict[str, str]]] = [
    {"limits": {"aliyun.com/gpu-mem": "300"}},
    {"limits": {"aliyun.com/gpu-mem": "700"}},
    {"limits": {"nvidia.com/gpu": "1"}},
    {"limits": {"nvidia.com/gpu": "2"}},
    {"annotations": {"gpu-fraction": "0.5"}},
    {"annotations": {"gpu.scheduling/claim": "pair"}},
    {"annotations": {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-memory-mib": "100"}},
]


class SchedulingRun(ReplicaFaultRun):
    """The faults of one seed: pods are created and deleted while replicas schedule, crash and are started again."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.names = 0
        self.binds = 0

    async def start(self, stack: contextlib.AsyncExitStack) -> Replica:
        faulty = self.faulty_transport(self.random.randint(1, 9), stale_list=0.2, expire_watch=0.1)
        return await stack.enter_async_context(self.lab.replica(faulty))

    async def one_step(self, replica: Replica) -> None:
        """Schedules several pods at once, deletes one, and collects."""
        for _ in range(self.random.randint(0, 2)):
            self.names += 1
            await self.lab.pod(f"p{self.names}", **self.random.choice(KINDS))
        await self._until_seen(replica)
        waiting = [pod for pod in replica.pods.store if not pod.spec.node_name]
        async with asyncio.TaskGroup() as tasks:
            for pod in waiting[:6]:
                tasks.create_task(self._schedule(replica, pod.metadata.name))
        if self.names and self.random.random() < 0.5:
            with contextlib.suppress(NotFound):
                gone = f"p{self.random.randint(1, self.names)}"
                await self.lab.client.delete(PODS, gone, "lab", how=DeleteOptions(grace_seconds=0))
        if self.random.random() < 0.5:
            with contextlib.suppress(ClusterError):
                await replica.collector.collect()

    async def _until_seen(self, replica: Replica) -> None:
        """Waits until the cache has all existing pods; other objects in it may be old, as the faults want."""
        there = {pod.metadata.uid for pod in (await self.lab.client.list(PODS, Selection("lab"))).items}
        await eventually(lambda: all(replica.pods.store.by_uid(uid) for uid in there))

    async def _schedule(self, replica: Replica, name: str) -> None:
        pod = replica.pods.store.get(name, "lab")
        if pod is None:
            return
        found = replica.filter(pod, NODES, chooses=self.seed % 2 == 1)
        if found.fitting:
            with contextlib.suppress(ClusterError):
                self.binds += await replica.scheduler.bind(pod, self.random.choice(sorted(found.fitting))) is None

    async def check(self) -> None:
        await check_always(self.lab)


async def check_always(lab: Lab, is_settled: bool = False) -> None:
    """Computed from Leases and Pods alone.

    What an interrupted bind has left on a Lease may stay there for a while, but not in the end.
    """
    held = await lab.held()
    if is_settled:
        assert await lab.violations() == []
    for name, shares in held.items():
        used = sum(MEMORY if memory is None else memory for memory in shares.values())
        assert used <= MEMORY, f"{name} has {used} MiB promised of {MEMORY}: {shares}"
    for pod in (await lab.client.list(PODS, Selection("lab"))).items:
        if pod.spec.node_name:
            told = set(pod.metadata.annotations["carrel.dev/devices"].split(","))
            on_leases = {
                f"GPU-{lease.removeprefix('gpu-')}" for lease, shares in held.items() if pod.metadata.uid in shares
            }
            assert told <= on_leases, f"{pod.metadata.name} was told {told}, the Leases say {on_leases}"
            assert told == on_leases or not is_settled, f"{pod.metadata.name} was told {told}, but holds {on_leases}"


async def settle(lab: Lab) -> None:
    """After the faults, a healthy replica repairs everything."""
    async with lab.replica() as replica:
        for _ in range(3):
            await replica.collector.collect()
            lab.clock.now += timedelta(minutes=2)  # long enough for every time-out
            await replica.collector.collect()
            for pod in [pod for pod in replica.pods.store if not pod.spec.node_name]:
                found = replica.filter(pod, NODES)
                if found.fitting:
                    assert await replica.scheduler.bind(pod, min(found.fitting)) is None
            bound = await lab.bound()
            await eventually(lambda bound=bound: all(_is_bound(replica, uid) for uid in bound))  # type: ignore[misc] # bound now
        replica.ledger.audit()
        for pod in replica.pods.store:
            if not pod.spec.node_name:
                assert not replica.filter(pod, NODES).fitting, f"{pod.metadata.name} waits without need"


def _is_bound(replica: Replica, uid: str) -> bool:
    pod = replica.pods.store.by_uid(uid)
    return pod is not None and bool(pod.spec.node_name)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_faults_lose_leak_and_duplicate_nothing(seed: int) -> None:
    async with a_lab([a_node(name, gpus=2, memory=MEMORY) for name in NODES]) as lab:
        claim: Json = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "pair"}}
        await lab.client.create(GPU_CLAIMS, {**claim, "spec": {"devices": {"count": 2}}}, "lab")
        run = SchedulingRun(lab, seed)
        try:
            await run.run()
            await settle(lab)
            await check_always(lab, is_settled=True)
            bound = await lab.bound()
            held = {uid for shares in (await lab.held()).values() for uid in shares}
            assert held == set(bound), "afterwards, the holders are exactly the bound pods"
        except BaseException:
            print("\n".join(run.story))
            raise


async def test_every_kind_of_fault_happens_in_the_sweep() -> None:
    """The sweep is worth something only if, over all seeds, there are binds, crashes and lost answers."""
    binds = starts = lost = 0
    for seed in range(5):
        async with a_lab([a_node(name, gpus=2, memory=MEMORY) for name in NODES]) as lab:
            run = SchedulingRun(lab, seed)
            await run.run()
            binds, starts = binds + run.binds, starts + run.starts
            lost += sum("answer was lost" in line for line in run.story)

    assert binds >= 20
    assert starts >= 15, "two are started in every run; the others replace killed ones"
    assert lost >= 3


async def test_the_sweep_notices_a_lease_that_is_left_over() -> None:
    async with a_lab([a_node("n1", gpus=1, memory=MEMORY)]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("p1", limits={"aliyun.com/gpu-mem": "300"}), "n1") is None
        lease = (await lab.client.list(LEASES, Selection("carrel"))).items[0]
        await lab.client.delete(LEASES, lease.metadata.name, "carrel")

        with pytest.raises(AssertionError, match="the Leases say"):
            await check_always(lab)
