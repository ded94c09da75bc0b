"""Faults with two tiers and ResourceClaims, by seed: pods with claims and without come and go, while controllers and
gates crash and fail.

At every moment: no booked pod is a victim. After the faults: no workload is lost or doubled, a claim that is allocated
has its GPUs on Leases, no GPU is held for nobody, and no booked pod waits that could have a GPU by a revocation.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta

import pytest

from carrel.kubernetes.cluster import ClusterError, Json
from kubernetes_in_memory.faults import Crashed
from tests.kit.claimed_pods import ClaimLab, a_lab_with_slices, asking
from tests.kit.fault_run import TierUsers
from tests.kit.gpus import a_node
from tests.kit.tiers import WHOLE, end_deleted, hand_over_records, pods_of, schedule

SEEDS = int(os.environ.get("CARREL_SWEEP", "6"))
NODES = tuple(a_node(name, gpus=2) for name in ("n1", "n2"))
NAMES = tuple(node.name for node in NODES)


async def _no_wait() -> None:
    """The caches follow when they follow."""


class ClaimTiersRun(TierUsers):
    NEW = 0.75
    of: ClaimLab

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            processes = [await self._start(stack), await self._start(stack)]
            await processes[0].template("whole", asking())
            await processes[0].template("half", asking("8138Mi"))
            for _ in range(12):
                self.of = processes[0]
                await self.users_act()
                number = self.random.randrange(2)
                await processes[0].keep_claims()
                await asyncio.sleep(0.005)  # the watches have their turn, or have not
                try:
                    await self._one_step(processes[number])
                except* Crashed:
                    processes[number] = await self._start(stack)
                await end_deleted(self.lab)
                await self.check_always()

    async def _start(self, stack: contextlib.AsyncExitStack) -> ClaimLab:
        faulty = self.faulty_transport(self.random.randint(2, 12), refuse=0.08, lose_answer=0.08)
        replica = await stack.enter_async_context(self.lab.replica(faulty, dra=True))
        return ClaimLab(self.lab, replica, NODES, grace_s=self.random.choice([0, 0, 60]))

    async def _one_step(self, process: ClaimLab) -> None:
        with contextlib.suppress(ClusterError):
            await schedule(self.lab, process.replica, NAMES)
        with contextlib.suppress(ClusterError):
            await process.place_pods(_no_wait)
        with contextlib.suppress(ClusterError):
            await process.controller.round()

    async def new_pod(self, name: str, told: Mapping[str, str]) -> Json:
        if asked := self.random.choice(["", "whole", "half"]):
            return await self.of.pod(name, told, template=asked)
        return await self.lab.pod(name, limits=WHOLE, annotations=told)

    async def check_at_rest(self, of: ClaimLab) -> None:
        await self.check_always()
        assert await self.lab.violations() == []
        pods = await pods_of(self.lab)
        assert pods.keys() == self.booked.keys() | self.others, "no workload is lost, none is doubled"
        assert await hand_over_records(self.lab) == []
        held = {uid for shares in (await self.lab.held()).values() for uid in shares}
        claims = {claim.metadata.uid for claim in await of.claims() if claim.status.allocation is not None}
        bound = {pod.metadata.uid for pod in pods.values() if pod.spec.node_name}
        assert claims <= held, "an allocated claim has its GPUs on Leases"
        assert held <= claims | bound, "no GPU is held for nobody"
        waiting = [each.holder.name for each in of.replica.booked_waiting()]
        assert waiting == [], "pods that a booking covers wait only if no revocation would help"


async def at_rest(run: ClaimTiersRun) -> None:
    """After the faults, a healthy controller repairs everything."""
    async with run.lab.replica(dra=True) as replica:
        of = ClaimLab(run.lab, replica, NODES)
        for _ in range(4):
            await of.settle()
            run.lab.clock.now += timedelta(minutes=5)
        await run.check_at_rest(of)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_faults_break_no_promise_to_pods_with_claims(seed: int) -> None:
    async with a_lab_with_slices(*NODES, has_booker=True) as lab:
        run = ClaimTiersRun(lab, seed)
        try:
            await run.run()
            await at_rest(run)
        except BaseException:
            print("\n".join(run.story))
            raise
