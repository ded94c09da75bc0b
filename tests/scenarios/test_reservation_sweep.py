"""Faults where the kubelet chooses the GPUs, by seed: crashes after every write, lost answers, stale caches.

At every moment: the kubelet finds a GPU for every pod that is bound to it; no other pod has the GPU of a fraction pod;
and no GPU is oversubscribed. After the faults: nothing is lost, leaked or duplicated.

`CARREL_SWEEP=1000` tries that many seeds; a failing one is in the name of its test, and its story is printed.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from random import Random

import pytest

from carrel.kubernetes.cluster import ClusterError, DeleteOptions, NotFound, Selection
from carrel.kubernetes.objects.resources import LEASES, PODS
from kubernetes_in_memory.faults import Crashed
from tests.kit.coexist import Kubelet, coexisting, create_reservation_namespace, reservation_pods
from tests.kit.eventually import eventually
from tests.kit.fault_run import FaultRun
from tests.kit.gpus import N1
from tests.kit.lab import Lab, Replica, a_lab

SEEDS = int(os.environ.get("CARREL_SWEEP", "8"))
MEMORY = 1000
KINDS: list[dict[str, dict[str, str]]] = [
    {"annotations": {"gpu-fraction": "0.5"}},
    {"annotations": {"gpu-fraction": "0.3"}},
    {"annotations": {"carrel.dev/gpu-count": "2", "carrel.dev/gpu-memory-mib": "400"}},
    {"annotations": {"carrel.dev/gpu-count": "1"}},
    {"limits": {"nvidia.com/gpu": "1"}},
]


class ReservationRun(FaultRun):
    """Two replicas schedule, one of them leads; both may crash at any write."""

    def __init__(self, lab: Lab, kubelet: Kubelet, seed: int, *, kills_reservation_pods: bool = False) -> None:
        """With `kills_reservation_pods`, no pod asks the kubelet for whole GPUs."""
        super().__init__(lab, seed)
        self.kills_reservation_pods = kills_reservation_pods
        self.kubelet = kubelet
        self.names = 0
        self.binds = 0

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            replicas = [await self._start(stack), await self._start(stack)]
            for _ in range(8):
                number, leader = self.random.randrange(2), self.random.randrange(2)
                try:
                    await self._one_step(replicas[number], replicas[leader])
                except* Crashed:
                    replicas = [await self._start(stack), await self._start(stack)]
                await check_always(self.lab, self.kubelet)

    async def _start(self, stack: contextlib.AsyncExitStack) -> Replica:
        faulty = self.faulty_transport(self.random.randint(1, 12))
        return await stack.enter_async_context(self.lab.replica(faulty, reserve_s=0.3))

    async def _one_step(self, replica: Replica, leader: Replica) -> None:
        for _ in range(self.random.randint(0, 2)):
            self.names += 1
            await self.lab.pod(
                f"p{self.names}", **self.random.choice(KINDS[:-1] if self.kills_reservation_pods else KINDS)
            )
        there = {pod.metadata.uid for pod in (await self.lab.client.list(PODS, Selection("lab"))).items}
        await eventually(lambda: all(replica.pods.store.by_uid(uid) for uid in there))
        waiting = [pod.metadata.name for pod in replica.pods.store if not pod.spec.node_name]
        async with asyncio.TaskGroup() as tasks:
            binding = [tasks.create_task(self._schedule(replica, name)) for name in waiting[:4]]
            tasks.create_task(self._lead(leader, binding))
        if self.names and self.random.random() < 0.6:
            with contextlib.suppress(NotFound):
                gone = f"p{self.random.randint(1, self.names)}"
                await self.lab.client.delete(PODS, gone, "lab", how=DeleteOptions(grace_seconds=0))
        if self.kills_reservation_pods and (pods := await reservation_pods(self.lab)):
            victim = self.random.choice(pods).metadata
            await self.lab.client.delete(PODS, victim.name, victim.namespace, how=DeleteOptions(grace_seconds=0))
        self.lab.clock.now += timedelta(seconds=self.random.choice((0, 1, 15)))

    async def _lead(self, leader: Replica, binding: Sequence[asyncio.Task[None]]) -> None:
        """As long as a pod waits for a GPU, and a little longer."""
        more = 3
        while more:
            more -= all(task.done() for task in binding)
            with contextlib.suppress(ClusterError):
                await leader.collector.collect()
            for name in leader.reservations.due():
                with contextlib.suppress(ClusterError):
                    await leader.reservations.reconcile_slot(name)
            await self.kubelet.work()
            await check_always(self.lab, self.kubelet)
            await asyncio.sleep(0.002)

    async def _schedule(self, replica: Replica, name: str) -> None:
        pod = replica.pods.store.get(name, "lab")
        if pod is not None and replica.filter(pod, [N1], chooses=self.seed % 2 == 1).fitting:
            with contextlib.suppress(ClusterError):
                self.binds += await replica.scheduler.bind(pod, N1) is None


async def check_always(lab: Lab, kubelet: Kubelet) -> None:
    """Computed from the annotations of the pods and the GPUs that the kubelet gave them, without Leases."""
    pods = (await lab.client.list(PODS)).items
    refused = [pod.metadata.name for pod in pods if pod.status.phase == "Failed" and pod.metadata.namespace == "lab"]
    assert not refused, f"the kubelet had no GPU for {refused}"
    held = Counter[str]()
    for pod in pods:
        told = pod.metadata.annotations.get("carrel.dev/devices", "")
        for gpu in filter(None, told.split(",")):
            part = float(pod.metadata.annotations.get("gpu-fraction", "0"))
            mib = pod.metadata.annotations.get("carrel.dev/gpu-memory-mib", str(MEMORY))
            held[gpu] += int(part * MEMORY) or int(mib)
    assert all(amount <= MEMORY for amount in held.values()), held
    whole = {pod.metadata.uid for pod in pods if pod.metadata.namespace == "lab"}
    for uid, gpus in kubelet.given.items():
        assert uid not in whole or not held.keys() & set(gpus), f"{uid} and others were given {gpus}"


async def come_to_rest(lab: Lab, kubelet: Kubelet) -> None:
    """After the faults, a healthy replica repairs everything. The kubelet gives any GPU that is free: to get a lost one
    back takes as many attempts as it takes, and after the first four there is a pause before each."""

    def fitting() -> list[str]:
        waiting = [pod for pod in replica.pods.store if not pod.spec.node_name]
        return [pod.metadata.name for pod in waiting if replica.filter(pod, [N1]).fitting]

    async with lab.replica(reserve_s=5.0) as replica:
        for number in range(60):
            if number >= 4 and not replica.reservations.due() and not fitting():
                break
            binding: list[asyncio.Task[object]] = []
            for pod in [pod for pod in replica.pods.store if not pod.spec.node_name]:
                if replica.filter(pod, [N1]).fitting:
                    binding.append(asyncio.create_task(replica.scheduler.bind(pod, N1)))
            for _ in range(60):
                await replica.collector.collect()
                for name in replica.reservations.due():
                    await replica.reservations.reconcile_slot(name)
                await kubelet.work()
                await asyncio.sleep(0.002)
            await asyncio.gather(*binding)
            lab.clock.now += timedelta(minutes=4)  # whatever was half done has had its time
        replica.ledger.audit()
        assert not fitting()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_faults_lose_and_duplicate_no_gpu(seed: int) -> None:
    node = coexisting("n1", gpus=3, memory=MEMORY)
    async with a_lab([node]) as lab:
        await create_reservation_namespace(lab)
        kubelet = Kubelet(lab, node, Random(seed).choice)
        run = ReservationRun(lab, kubelet, seed)
        try:
            await run.run()
            await come_to_rest(lab, kubelet)
            await check_always(lab, kubelet)
            pods = (await lab.client.list(PODS, Selection("lab"))).items
            bound = {pod.metadata.uid for pod in pods if pod.spec.node_name}
            held = {uid for shares in (await lab.held()).values() for uid in shares}
            assert held == bound, "afterwards, the holders are exactly the bound pods"
            leases = (await lab.client.list(LEASES, Selection("carrel"))).items
            reserved = [lease for lease in leases if "carrel.dev/reservation" in lease.metadata.annotations]
            assert len(reserved) == len(await reservation_pods(lab)), "a reservation pod for each slot that is shared"
        except BaseException:
            print("\n".join(run.story))
            raise


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_after_reservation_pods_were_killed_every_gpu_is_held_by_the_right_pod(
    seed: int,
) -> None:
    node = coexisting("n1", gpus=3, memory=MEMORY)
    async with a_lab([node]) as lab:
        await create_reservation_namespace(lab)
        kubelet = Kubelet(lab, node, Random(seed).choice)
        run = ReservationRun(lab, kubelet, seed, kills_reservation_pods=True)
        try:
            await run.run()
            await come_to_rest(lab, kubelet)
            await check_always(lab, kubelet)
            reserved = {gpu for gpus in kubelet.given.values() for gpu in gpus}
            for pod in (await lab.client.list(PODS, Selection("lab"))).items:
                told = set(filter(None, pod.metadata.annotations.get("carrel.dev/devices", "").split(",")))
                assert told <= reserved, (
                    f"{pod.metadata.name} runs on {told}; the kubelet may give away what is not held"
                )
        except BaseException:
            print("\n".join(run.story))
            raise


async def test_every_kind_of_fault_happens_in_the_sweep() -> None:
    binds = starts = 0
    for seed in range(4):
        node = coexisting("n1", gpus=3, memory=MEMORY)
        async with a_lab([node]) as lab:
            await create_reservation_namespace(lab)
            run = ReservationRun(lab, Kubelet(lab, node, Random(seed).choice), seed)
            await run.run()
            binds, starts = binds + run.binds, starts + run.starts

    assert binds >= 6
    assert starts >= 12, "two are started in every run; the others replace killed ones"
