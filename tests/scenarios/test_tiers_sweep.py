"""Faults with two tiers, by seed: pods are created and deleted while one or two controllers crash and fail.

At every moment: no booked pod is a victim. After the faults: every pod that its user did not delete exists exactly
once, no hand-over is left and no GPU is kept, and no more pods have lost their GPU than booked pods came.

`CARREL_SWEEP=1000` tries that many seeds; a failing one is in the name of its test, and its story is printed.
"""

import contextlib
import os
from datetime import timedelta

import pytest

from carrel.dialects.carrel import read_lease
from carrel.kubernetes.cluster import DeleteOptions, Selection
from carrel.kubernetes.objects.resources import LEASES, PODS
from tests.kit.fault_run import TierFaultRun
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, a_lab
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    an_opportunistic_pod,
    end_deleted,
    hand_over_records,
    pods_of,
    settle,
)

SEEDS = int(os.environ.get("CARREL_SWEEP", "8"))
NODES = ("n1", "n2")


class TiersRun(TierFaultRun):
    """The faults of one seed."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.booked: dict[str, str] = {}
        """Name → uid of all pods with a booking that their user did not delete."""
        self.others: set[str] = set()
        self.booked_ever = 0

    async def run(self) -> None:
        async with self.lab.replica() as calm:  # all GPUs are in use at first
            for number, node in enumerate(NODES * 2):
                await an_opportunistic_pod(self.lab, calm, f"early-{number}", node)
                self.others.add(f"early-{number}")
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(14):
                await self._users()
                await self.one_step(stack, NODES)
                await end_deleted(self.lab)
                await self.check_always()

    async def _users(self) -> None:
        self.lab.clock.now += timedelta(seconds=self.random.randint(1, 30))
        if self.random.random() < 0.7:
            name = f"p{len(self.booked) + len(self.others)}-{self.random.randrange(10**6)}"
            if self.random.random() < 0.4:
                pod = await self.lab.pod(name, limits=WHOLE, annotations=BOOKED)
                self.booked[name] = pod["metadata"]["uid"]
                self.booked_ever += 1
            else:
                await self.lab.pod(name, limits=WHOLE, annotations=OPPORTUNISTIC)
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
    async with a_lab([a_node(name, cards=2) for name in NODES]) as lab:
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
        async with a_lab([a_node(name, cards=2) for name in NODES]) as lab:
            run = TiersRun(lab, seed)
            await run.run()
            await come_to_rest(lab)
            starts += run.starts
            pods = await pods_of(lab)
            handed_over += sum("carrel.dev/handed-over" in pod.metadata.annotations for pod in pods.values())

    assert starts > 16, "two are started in every run; the others replace killed ones"
    assert handed_over >= 4
