"""Bad days of two tiers, by seed: booked and other pods come and go while controllers crash, err and are two at once.

At every moment: no booked pod is a victim. When the faults stop: every workload that its user did not end is there
exactly once, nothing is left to be handed over or kept, and not more have lost their card than booked pods came.

`CARREL_SWEEP=1000` tries that many seeds; a failing one is in the name of its test, and its story is printed.
"""

import asyncio
import contextlib
import os
from datetime import timedelta
from random import Random

import pytest

from carrel.dialects.carrel import read_lease
from carrel.kubernetes.cluster import ClusterError, Deletion, Selection
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, PODS
from kubernetes_in_memory.faults import Crashed, FaultPlan, Faulty
from tests.kit.gpus import a_node
from tests.kit.lab import Lab, Replica, a_lab
from tests.kit.tiers import (
    BOOKED,
    OPPORTUNISTIC,
    WHOLE,
    TierController,
    an_opportunistic_pod,
    end_deleted,
    pods_of,
    schedule,
    settle,
)

SEEDS = int(os.environ.get("CARREL_SWEEP", "8"))
NODES = ("n1", "n2")


class BadDay:
    """One seed's story."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.seed = seed
        self.chance = Random(seed)
        self.lives = 0
        self.booked: dict[str, str] = {}
        """Name → uid of all that have a booking and were not ended by their user."""
        self.others: set[str] = set()
        self.booked_ever = 0
        self.stories: list[str] = []

    async def play(self) -> None:
        async with self.lab.replica() as calm:  # the day begins with all cards in use
            for number, node in enumerate(NODES * 2):
                await an_opportunistic_pod(self.lab, calm, f"early-{number}", node)
                self.others.add(f"early-{number}")
        async with contextlib.AsyncExitStack() as options:
            replicas = [await self._start(options), await self._start(options)]
            for _ in range(14):
                await self._users()
                number = self.chance.randrange(2)
                try:
                    await self._one_step(*replicas[number])
                except* Crashed:
                    replicas[number] = await self._start(options)
                await end_deleted(self.lab)
                await self.check_always()

    async def _start(self, options: contextlib.AsyncExitStack) -> tuple[Replica, TierController]:
        self.lives += 1
        plan = FaultPlan(
            seed=self.seed * 1000 + self.lives,
            crash_after_write=self.chance.randint(2, 12),
            refuse=0.08,
            lose_answer=0.08,
            stale_list=0.1,
            drop_watch=0.05,
            double_event=0.1,
            delay_event=0.2,
            longest_delay_s=0.002,
        )
        faulty = Faulty(self.lab.api, plan)
        self.stories.append(f"--- life {self.lives}: {plan}")
        self.stories = faulty.story = self.stories
        replica = await options.enter_async_context(self.lab.replica(faulty))
        return replica, TierController(replica, grace_s=self.chance.choice([0, 0, 60]))

    async def _users(self) -> None:
        self.lab.clock.now += timedelta(seconds=self.chance.randint(1, 30))
        if self.chance.random() < 0.7:
            name = f"p{len(self.booked) + len(self.others)}-{self.chance.randrange(10**6)}"
            if self.chance.random() < 0.4:
                pod = await self.lab.pod(name, limits=WHOLE, annotations=BOOKED)
                self.booked[name] = pod["metadata"]["uid"]
                self.booked_ever += 1
            else:
                await self.lab.pod(name, limits=WHOLE, annotations=OPPORTUNISTIC)
                self.others.add(name)
        elif self.booked and self.chance.random() < 0.5:
            name = self.chance.choice(sorted(self.booked))
            del self.booked[name]
            await self.lab.client.delete(PODS, name, "lab", how=Deletion(grace_seconds=0))

    async def _one_step(self, replica: Replica, controller: TierController) -> None:
        await asyncio.sleep(0.005)  # the watches have their turn, or have not
        with contextlib.suppress(ClusterError):
            await schedule(self.lab, replica, NODES)
        with contextlib.suppress(ClusterError):
            await controller.round()

    async def check_always(self) -> None:
        pods = await pods_of(self.lab)
        for name, uid in self.booked.items():
            assert pods[name].metadata.uid == uid, f"{name} has a booking, and was ended"
            assert not pods[name].metadata.deletion_timestamp
        assert sum("carrel.dev/handed-over" in pod.metadata.annotations for pod in pods.values()) <= self.booked_ever

    async def check_at_rest(self) -> None:
        await self.check_always()
        pods = await pods_of(self.lab)
        assert pods.keys() == self.booked.keys() | self.others, "no workload is lost, none is doubled"
        assert (await self.lab.client.list(CONFIG_MAPS, Selection("carrel"))).items == []
        waiting = {pod.metadata.uid for pod in pods.values() if not pod.spec.node_name}
        for lease in (await self.lab.client.list(LEASES, Selection("carrel"))).items:
            record = read_lease(lease)
            assert record is not None
            assert record.kept_for is None or record.kept_for.uid in waiting, "kept for somebody who is served"
        running = [pod for pod in pods.values() if pod.spec.node_name and pod.spec.scheduler_name == "gpu-scheduler"]
        low = [pod for pod in running if pod.metadata.name in self.others]
        starving = [name for name in self.booked if not pods[name].spec.node_name]
        assert not (low and starving), "a booked pod waits while others have cards"


async def come_to_rest(lab: Lab) -> None:
    """The faults have stopped: a healthy controller puts everything in order."""
    async with lab.replica() as replica:
        controller = TierController(replica)
        for _ in range(4):
            await settle(lab, controller, NODES)
            lab.clock.now += timedelta(minutes=2)  # whatever was half done has had its time


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_faults_break_no_promise_of_the_two_tiers(seed: int) -> None:
    async with a_lab([a_node(name, cards=2) for name in NODES]) as lab:
        day = BadDay(lab, seed)
        try:
            await day.play()
            await come_to_rest(lab)
            await day.check_at_rest()
        except BaseException:
            print("\n".join(day.stories))
            raise


async def test_every_kind_of_fault_happens_in_the_sweep() -> None:
    lives = handed_over = 0
    for seed in range(4):
        async with a_lab([a_node(name, cards=2) for name in NODES]) as lab:
            day = BadDay(lab, seed)
            await day.play()
            await come_to_rest(lab)
            lives += day.lives
            pods = await pods_of(lab)
            handed_over += sum("carrel.dev/handed-over" in pod.metadata.annotations for pod in pods.values())

    assert lives >= 12, "two are started on every day; the rest were killed"
    assert handed_over >= 4
