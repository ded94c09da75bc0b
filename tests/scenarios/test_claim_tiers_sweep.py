"""Faults with two tiers and ResourceClaims, by seed: pods with claims and without come and go, while controllers and
gates crash and fail.

At every moment: no booked pod is a victim. After the faults: no workload is lost or doubled, a claim that is allocated
has its GPUs on Leases, no GPU is held for nobody, and no booked pod waits that could have a GPU by a revocation.
"""

import asyncio
import contextlib
import os
from datetime import timedelta

import pytest

from carrel.kubernetes.cluster import ClusterError, DeleteOptions
from carrel.kubernetes.objects.resources import PODS
from kubernetes_in_memory.faults import Crashed
from tests.kit.claimed_pods import ClaimLab, a_lab_with_slices, asking
from tests.kit.fault_run import FaultRun
from tests.kit.gpus import a_node
from tests.kit.lab import Lab
from tests.kit.tiers import BOOKED, OPPORTUNISTIC, WHOLE, end_deleted, hand_over_records, pods_of, schedule

SEEDS = int(os.environ.get("CARREL_SWEEP", "6"))
NODES = tuple(a_node(name, cards=2) for name in ("n1", "n2"))
NAMES = tuple(node.name for node in NODES)


async def _no_wait() -> None:
    """The caches follow when they follow."""


class ClaimTiersRun(FaultRun):
    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.booked: dict[str, str] = {}
        self.others: set[str] = set()

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            processes = [await self._start(stack), await self._start(stack)]
            await processes[0].template("whole", asking())
            await processes[0].template("half", asking("8138Mi"))
            for _ in range(12):
                await self._users(processes[0])
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

    async def _users(self, of: ClaimLab) -> None:
        self.lab.clock.now += timedelta(seconds=self.random.randint(1, 30))
        if self.random.random() < 0.75:
            name = f"p{len(self.booked) + len(self.others)}-{self.random.randrange(10**6)}"
            is_booked = self.random.random() < 0.4
            told = BOOKED if is_booked else OPPORTUNISTIC
            asked = self.random.choice(["", "whole", "half"])
            if asked:
                pod = await of.pod(name, told, template=asked)
            else:
                pod = await self.lab.pod(name, limits=WHOLE, annotations=told)
            if is_booked:
                self.booked[name] = pod["metadata"]["uid"]
            else:
                self.others.add(name)
        elif self.booked and self.random.random() < 0.5:
            name = self.random.choice(sorted(self.booked))
            del self.booked[name]
            await self.lab.client.delete(PODS, name, "lab", how=DeleteOptions(grace_seconds=0))

    async def check_always(self) -> None:
        pods = await pods_of(self.lab)
        for name, uid in self.booked.items():
            assert pods[name].metadata.uid == uid, f"{name} has a booking, and was ended"
            assert not pods[name].metadata.deletion_timestamp

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
