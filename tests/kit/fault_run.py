"""What the fault sweeps have in common: replicas on transports that fail, all by one seed."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from random import Random

from carrel.ids import NodeName
from carrel.kubernetes.cluster import ClusterError, DeleteOptions, Json
from carrel.kubernetes.objects.resources import PODS
from kubernetes_in_memory.faults import Crashed, FaultPlan
from tests.kit.faults import Faulty
from tests.kit.lab import Lab, Replica
from tests.kit.tiers import BOOKED, OPPORTUNISTIC, TierController, pods_of, schedule

FAULTS = {
    "refuse": 0.1,
    "lose_answer": 0.1,
    "stale_list": 0.1,
    "drop_watch": 0.05,
    "double_event": 0.1,
    "delay_event": 0.2,
    "longest_delay_s": 0.002,
}


class FaultRun:
    """One run of a sweep. When it fails, `story` says what happened."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.seed = seed
        self.random = Random(seed)
        self.starts = 0
        self.story: list[str] = []

    def faulty_transport(self, crash_after_write: int, **faults: float) -> Faulty:
        """For a process that is started now. `faults` replace some of `FAULTS`."""
        self.starts += 1
        plan = FaultPlan(
            seed=self.seed * 1000 + self.starts,
            crash_after_write=crash_after_write,
            **{**FAULTS, **faults},  # type: ignore[arg-type] # each of them is a float
        )
        faulty = Faulty(self.lab.api, plan)
        self.story.append(f"--- start {self.starts}: {plan}")
        faulty.story = self.story
        return faulty


class ReplicaFaultRun(FaultRun, ABC):
    """Two replicas work in turns. One that crashes is started again; after each step everything is checked."""

    STEPS = 12

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            replicas = [await self.start(stack), await self.start(stack)]
            for _ in range(self.STEPS):
                number = self.random.randrange(2)
                try:
                    await self.one_step(replicas[number])
                except* Crashed:
                    replicas[number] = await self.start(stack)
                await self.check()

    @abstractmethod
    async def start(self, stack: contextlib.AsyncExitStack) -> Replica: ...

    @abstractmethod
    async def one_step(self, replica: Replica) -> None: ...

    @abstractmethod
    async def check(self) -> None:
        """What must hold at every moment."""


class TierUsers(FaultRun, ABC):
    """People create pods, with a booking or without, and delete some of those with one."""

    NEW = 0.7
    """How often a pod is created."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self.booked: dict[str, str] = {}
        """Name → uid of all pods with a booking that their user did not delete."""
        self.others: set[str] = set()

    @abstractmethod
    async def new_pod(self, name: str, told: Mapping[str, str]) -> Json:
        """`told`: its annotations."""

    async def users_act(self) -> None:
        self.lab.clock.now += timedelta(seconds=self.random.randint(1, 30))
        if self.random.random() < self.NEW:
            name = f"p{len(self.booked) + len(self.others)}-{self.random.randrange(10**6)}"
            if self.random.random() < 0.4:
                self.booked[name] = (await self.new_pod(name, BOOKED))["metadata"]["uid"]
            else:
                await self.new_pod(name, OPPORTUNISTIC)
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


class TierFaultRun(FaultRun):
    """With two replicas, each of a scheduler and a controller. One that crashes is started again."""

    def __init__(self, lab: Lab, seed: int) -> None:
        super().__init__(lab, seed)
        self._replicas: list[tuple[Replica, TierController]] = []

    async def one_step(self, stack: contextlib.AsyncExitStack, nodes: tuple[NodeName, ...]) -> None:
        """One of the two schedules, and does one round of what the leader does."""
        while len(self._replicas) < 2:
            self._replicas.append(await self._start(stack))
        number = self.random.randrange(2)
        replica, controller = self._replicas[number]
        await asyncio.sleep(0.005)  # the watches have their turn, or have not
        try:
            with contextlib.suppress(ClusterError):
                await schedule(self.lab, replica, nodes, chooses=self.seed % 2 == 1)
            with contextlib.suppress(ClusterError):
                await controller.round()
        except* Crashed:
            self._replicas[number] = await self._start(stack)

    async def _start(self, stack: contextlib.AsyncExitStack) -> tuple[Replica, TierController]:
        faulty = self.faulty_transport(self.random.randint(2, 10), refuse=0.08, lose_answer=0.08)
        replica = await stack.enter_async_context(self.lab.replica(faulty))
        return replica, TierController(replica, grace_s=self.random.choice([0, 0, 60]))
