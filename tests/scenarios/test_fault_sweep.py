"""Bad days, by seed: crashes after every write, lost answers, stale caches, two replicas at once.

At every moment: no card has more promised than it has, and every bound pod has its GPUs on Leases.
When the faults stop: nothing is lost, leaked or double, and the end is the one that a good day would have had.

`CARREL_SWEEP=1000` tries that many seeds; a failing one is in the name of its test, and its story is printed.
"""

import asyncio
import contextlib
import os
from datetime import timedelta
from random import Random

import pytest

from carrel.kubernetes.cluster import ClusterError, Deletion, Json, NotFound, Selection
from carrel.kubernetes.objects.resources import GPU_CLAIMS, LEASES, PODS
from kubernetes_in_memory.faults import Crashed, FaultPlan, Faulty
from tests.kit.eventually import eventually
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

SEEDS = int(os.environ.get("CARREL_SWEEP", "25"))
NODES = ("n1", "n2", "n3")
MEMORY = 1000
KINDS: list[dict[str, dict[str, str]]] = [
    {"limits": {"aliyun.com/gpu-mem": "300"}},
    {"limits": {"aliyun.com/gpu-mem": "700"}},
    {"limits": {"nvidia.com/gpu": "1"}},
    {"limits": {"nvidia.com/gpu": "2"}},
    {"annotations": {"gpu-fraction": "0.5"}},
    {"annotations": {"gpu.scheduling/claim": "pair"}},
    {"annotations": {"carrel.dev/gpu-cards": "2", "carrel.dev/gpu-memory-mib": "100"}},
]


class BadDay:
    """One seed's story: pods come and go while replicas schedule, crash and are started again."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.seed = seed
        self.chance = Random(seed)
        self.names = 0
        self.lives = 0
        self.binds = 0
        self.stories: list[str] = []

    async def play(self) -> None:
        async with contextlib.AsyncExitStack() as options:
            replicas = [await self._start(options), await self._start(options)]
            for _ in range(12):
                number = self.chance.randrange(2)
                try:
                    await self._one_step(replicas[number])
                except* Crashed:
                    replicas[number] = await self._start(options)
                await check_always(self.lab)

    async def _start(self, options: contextlib.AsyncExitStack) -> Replica:
        self.lives += 1
        plan = FaultPlan(
            seed=self.seed * 1000 + self.lives,
            crash_after_write=self.chance.randint(1, 9),
            refuse=0.1,
            lose_answer=0.1,
            stale_list=0.2,
            drop_watch=0.05,
            double_event=0.1,
            delay_event=0.2,
            longest_delay_s=0.002,
            expire_watch=0.1,
        )
        faulty = Faulty(self.lab.api, plan)
        self.stories.append(f"--- life {self.lives}: {plan}")
        self.stories = faulty.story = self.stories
        return await options.enter_async_context(self.lab.replica(faulty))

    async def _one_step(self, replica: Replica) -> None:
        """Several pods are scheduled at once, one goes, and what is over is collected."""
        for _ in range(self.chance.randint(0, 2)):
            self.names += 1
            await self.lab.pod(f"p{self.names}", **self.chance.choice(KINDS))
        await self._until_seen(replica)
        waiting = [pod for pod in replica.pods.store if not pod.spec.node_name]
        async with asyncio.TaskGroup() as tasks:
            for pod in waiting[:6]:
                tasks.create_task(self._schedule(replica, pod.metadata.name))
        if self.names and self.chance.random() < 0.5:
            with contextlib.suppress(NotFound):
                gone = f"p{self.chance.randint(1, self.names)}"
                await self.lab.client.delete(PODS, gone, "lab", how=Deletion(grace_seconds=0))
        if self.chance.random() < 0.5:
            with contextlib.suppress(ClusterError):
                await replica.collector.collect()

    async def _until_seen(self, replica: Replica) -> None:
        """The pods that exist are in the cache; what else it has, and how old that is, is up to the faults."""
        there = {pod.metadata.uid for pod in (await self.lab.client.list(PODS, Selection("lab"))).items}
        await eventually(lambda: all(replica.pods.store.by_uid(uid) for uid in there))

    async def _schedule(self, replica: Replica, name: str) -> None:
        pod = replica.pods.store.get(name, "lab")
        if pod is None:
            return
        found = replica.filter(pod, NODES)
        if found.fitting:
            with contextlib.suppress(ClusterError):
                self.binds += await replica.scheduler.bind(pod, self.chance.choice(sorted(found.fitting))) is None


async def check_always(lab: Lab, at_rest: bool = False) -> None:
    """Recomputed from nothing but Leases and Pods.

    What a bind that was cut short has left on a Lease may stay there for a while, but only until the end.
    """
    held = await lab.held()
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
            assert told == on_leases or not at_rest, f"{pod.metadata.name} was told {told}, but holds {on_leases}"


async def come_to_rest(lab: Lab) -> None:
    """The faults have stopped: a healthy replica puts everything in order."""
    async with lab.replica() as replica:
        for _ in range(3):
            await replica.collector.collect()
            lab.clock.now += timedelta(minutes=2)  # whatever was half done has had its time
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
    async with a_lab([a_node(name, cards=2, memory=MEMORY) for name in NODES]) as lab:
        claim: Json = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": {"name": "pair"}}
        await lab.client.create(GPU_CLAIMS, {**claim, "spec": {"devices": {"count": 2}}}, "lab")
        day = BadDay(lab, seed)
        try:
            await day.play()
            await come_to_rest(lab)
            await check_always(lab, at_rest=True)
            bound = await lab.bound()
            held = {uid for shares in (await lab.held()).values() for uid in shares}
            assert held == set(bound), "at rest, the holders are the bound pods and nobody else"
        except BaseException:
            print("\n".join(day.stories))
            raise


async def test_every_kind_of_fault_happens_in_the_sweep() -> None:
    """A fault run counts only if enough went right and wrong: over all seeds, binds, crashes and lost answers."""
    binds = lives = lost = 0
    for seed in range(5):
        async with a_lab([a_node(name, cards=2, memory=MEMORY) for name in NODES]) as lab:
            day = BadDay(lab, seed)
            await day.play()
            binds, lives = binds + day.binds, lives + day.lives
            lost += sum("answer was lost" in line for line in day.stories)

    assert binds >= 20
    assert lives >= 15, "two are started on every day; the rest were killed"
    assert lost >= 3


async def test_the_sweep_notices_a_lease_that_is_left_over() -> None:
    async with a_lab([a_node("n1", cards=1, memory=MEMORY)]) as lab, lab.replica() as replica:
        assert await replica.bind(await lab.pod("p1", limits={"aliyun.com/gpu-mem": "300"}), "n1") is None
        lease = (await lab.client.list(LEASES, Selection("carrel"))).items[0]
        await lab.client.delete(LEASES, lease.metadata.name, "carrel")

        with pytest.raises(AssertionError, match="the Leases say"):
            await check_always(lab)
