"""Faults, by seed, with claims and pods on the same GPUs: crashes after every write, lost answers, stale caches.

At every moment: no GPU is oversubscribed, and every claim that is allocated has its GPUs on Leases.
After the faults: nothing is lost and nothing is leaked.
"""

import asyncio
import contextlib
import os
from datetime import timedelta

import pytest

from carrel.kubernetes.cluster import ClusterError, Conflict, DeleteOptions, NotFound, Selection
from carrel.kubernetes.objects.resource_claims import ResourceClaim
from carrel.kubernetes.objects.resources import PODS, RESOURCE_CLAIMS
from kubernetes_in_memory.faults import Crashed
from tests.kit.dra import Gate, allocated, deallocate, new_claim, publish
from tests.kit.eventually import eventually
from tests.kit.fault_run import FaultRun
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab

SEEDS = int(os.environ.get("CARREL_SWEEP", "15"))
MEMORY = 1000
GPUS = ("n1/gpu-0", "n1/gpu-1", "n2/gpu-0")
AMOUNTS = ("300Mi", "500Mi", "1000Mi", "")


class ClaimRun(FaultRun):
    """Schedulers allocate claims through two gates, pods are bound beside them, and both come and go."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.names = 0
        self.allocated = 0

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            replicas = [await self._start(stack), await self._start(stack)]
            for _ in range(14):
                number = self.random.randrange(2)
                try:
                    await self._one_step(replicas[number])
                except* Crashed:
                    replicas[number] = await self._start(stack)
                await check_always(self.lab)
                self.lab.clock.now += timedelta(seconds=self.random.choice([0, 10, 40]))

    async def _start(self, stack: contextlib.AsyncExitStack) -> Replica:
        faulty = self.faulty_transport(self.random.randint(2, 9), stale_list=0.2)
        return await stack.enter_async_context(self.lab.replica(faulty, dra=True))

    async def _one_step(self, replica: Replica) -> None:
        self.names += 1
        await new_claim(self.lab, f"c{self.names}")
        await self.lab.pod(f"p{self.names}", limits={"aliyun.com/gpu-mem": self.random.choice(["300", "600"])})
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(self._allocate(Gate(replica), f"c{self.random.randint(1, self.names)}"))
            tasks.create_task(self._bind(replica, f"p{self.names}"))
        await self._end_something()
        with contextlib.suppress(ClusterError):
            await replica.collector.collect()

    async def _allocate(self, gate: Gate, name: str) -> None:
        """As a scheduler; its write may be lost after the gate's yes."""
        wanted = self.random.sample(GPUS[:2], 2) if self.random.random() < 0.2 else [self.random.choice(GPUS)]
        given = {place: self.random.choice(AMOUNTS) for place in wanted}
        is_lost = self.random.random() < 0.2
        with contextlib.suppress(ClusterError):
            claim = await self.lab.client.get(RESOURCE_CLAIMS, name, "lab")
            if claim.get("status", {}).get("allocation"):
                return
            if is_lost:
                await gate.ask(allocated(claim, given), claim)
            elif await gate.allocate(self.lab, claim, given) is None:
                self.allocated += 1

    async def _bind(self, replica: Replica, name: str) -> None:
        with contextlib.suppress(ClusterError):
            pod = await eventually(lambda: replica.pods.store.get(name, "lab"))
            assert pod is not None
            await replica.scheduler.bind(pod, self.random.choice(["n1", "n2"]))

    async def _end_something(self) -> None:
        number, now = self.random.randint(1, self.names), DeleteOptions(grace_seconds=0)
        with contextlib.suppress(NotFound, Conflict):
            match self.random.randrange(4):
                case 0:
                    await deallocate(self.lab, f"c{number}")
                case 1:
                    await self.lab.client.delete(RESOURCE_CLAIMS, f"c{number}", "lab", how=now)
                case 2:
                    await self.lab.client.delete(PODS, f"p{number}", "lab", how=now)


def gpus_of(claim: ResourceClaim) -> set[str]:
    results = claim.status.allocation.devices.results if claim.status.allocation else ()
    return {f"gpu-{each.pool}-{each.device.removeprefix('gpu-')}" for each in results}


async def check_always(lab: Lab) -> None:
    held = await lab.held()
    for name, shares in held.items():
        assert None not in shares.values() or len(shares) == 1, f"{name}: {shares}"
        assert sum(memory or 0 for memory in shares.values()) <= MEMORY, f"{name}: {shares}"
    for claim in (await lab.client.list(RESOURCE_CLAIMS, Selection("lab"))).items:
        for name in gpus_of(claim):
            assert claim.metadata.uid in held.get(name, {}), f"{claim.metadata.name} has {name} without a Lease"


async def check_at_rest(lab: Lab) -> None:
    async with lab.replica(dra=True) as replica:
        for _ in range(3):
            await replica.collector.collect()
            lab.clock.now += timedelta(seconds=100)
        claims = (await lab.client.list(RESOURCE_CLAIMS, Selection("lab"))).items
        wanted = {(name, claim.metadata.uid) for claim in claims for name in gpus_of(claim)}
        bound = await lab.bound()
        held = {(name, uid) for name, shares in (await lab.held()).items() for uid in shares}
        assert {each for each in held if each[1] not in bound} == wanted
        replica.ledger.audit()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_claims_and_pods_never_share_what_only_one_can_have(seed: int) -> None:
    nodes = [a_node("n1", 2, MEMORY), a_node("n2", 1, MEMORY)]
    async with a_lab(nodes) as lab:
        await publish(lab, *nodes)
        run = ClaimRun(lab, seed)
        try:
            await run.run()
            await check_at_rest(lab)
        except BaseException:
            print("\n".join(run.story))
            raise
        assert run.allocated, "the seed tries something"
