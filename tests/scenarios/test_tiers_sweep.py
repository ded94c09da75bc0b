"""Faults with two tiers, by seed: pods are created and deleted while one or two controllers crash and fail.

At every moment: no booked pod is a victim. After the faults: every pod that its user did not delete exists exactly
once, no hand-over is left and no GPU is kept, and no more pods have lost their GPU than booked pods came.

`CARREL_SWEEP=1000` tries that many seeds; a failing one is in the name of its test, and its story is printed.
"""

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta

import pytest

from carrel.dialects.gpu_lease import read_lease
from carrel.kubernetes.cluster import Json, Selection
from carrel.kubernetes.objects.resources import LEASES
from tests.kit.fault_run import TierFaultRun, TierUsers
from tests.kit.gpus import N1, N2, a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.tiers import (
    BOOKED,
    WHOLE,
    TierController,
    an_opportunistic_pod,
    end_deleted,
    hand_over_records,
    pods_of,
    settle,
)

SEEDS = int(os.environ.get("CARREL_SWEEP", "8"))
NODES = (N1, N2)


class TiersRun(TierUsers, TierFaultRun):
    """The faults of one seed."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.booked_ever = 0

    async def run(self) -> None:
        async with self.lab.replica() as calm:  # all GPUs are in use at first
            for number, node in enumerate(NODES * 2):
                await an_opportunistic_pod(self.lab, calm, f"early-{number}", node)
                self.others.add(f"early-{number}")
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(14):
                await self.users_act()
                await self.one_step(stack, NODES)
                await end_deleted(self.lab)
                await self.check_always()

    async def new_pod(self, name: str, told: Mapping[str, str]) -> Json:
        self.booked_ever += told is BOOKED
        return await self.lab.pod(name, limits=WHOLE, annotations=told)

    async def check_always(self) -> None:
        await super().check_always()
        pods = await pods_of(self.lab)
        assert sum("carrel.dev/handed-over" in pod.metadata.annotations for pod in pods.values()) <= self.booked_ever

    async def check_at_rest(self) -> None:
        await self.check_always()
        assert await self.lab.violations() == []
        pods = await pods_of(self.lab)
        assert pods.keys() == self.booked.keys() | self.others, "no workload is lost, none is doubled"
        assert await hand_over_records(self.lab) == []
        waiting = {pod.metadata.uid for pod in pods.values() if not pod.spec.node_name}
        for lease in (await self.lab.client.list(LEASES, Selection("carrel"))).items:
            record = read_lease(lease)
            assert record is not None
            assert record.kept_for is None or record.kept_for.uid in waiting, "kept for a pod that is bound"
        running = [pod for pod in pods.values() if pod.spec.node_name and pod.spec.scheduler_name == "gpu-scheduler"]
        low = [pod for pod in running if pod.metadata.name in self.others]
        starving = [name for name in self.booked if not pods[name].spec.node_name]
        assert not (low and starving), "a booked pod waits while pods without a booking have GPUs"


async def come_to_rest(lab: Lab) -> None:
    """After the faults, a healthy controller repairs everything."""
    async with lab.replica() as replica:
        controller = TierController(replica)
        for _ in range(4):
            await settle(lab, controller, NODES)
            lab.clock.now += timedelta(minutes=5)  # whatever was half done has had its time, and GPUs kept for nobody


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_faults_break_no_promise_of_the_two_tiers(seed: int) -> None:
    async with a_lab([a_node(name, gpus=2) for name in NODES]) as lab:
        run = TiersRun(lab, seed)
        try:
            await run.run()
            await come_to_rest(lab)
            await run.check_at_rest()
        except BaseException:
            print("\n".join(run.story))
            raise


async def test_every_kind_of_fault_happens_in_the_sweep() -> None:
    starts = handed_over = 0
    for seed in range(8):
        async with a_lab([a_node(name, gpus=2) for name in NODES]) as lab:
            run = TiersRun(lab, seed)
            await run.run()
            await come_to_rest(lab)
            starts += run.starts
            pods = await pods_of(lab)
            handed_over += sum("carrel.dev/handed-over" in pod.metadata.annotations for pod in pods.values())

    assert starts > 16, "two are started in every run; the others replace killed ones"
    assert handed_over >= 4
