"""A node where the kubelet chooses GPUs, and one replica of Carrel: rounds of the controller and of the kubelet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from carrel.kubernetes.cluster import DeleteOptions, Json, Selection
from carrel.kubernetes.objects.resources import LEASES, PODS
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from tests.kit.coexist import (
    RESERVATIONS,
    Kubelet,
    coexisting,
    create_reservation_namespace,
    last,
    reservation_pods,
)
from tests.kit.eventually import eventually
from tests.kit.gpus import N1
from tests.kit.lab import Lab, Replica, a_lab

HALF = {"gpu-fraction": "0.5"}
WHOLE = {"nvidia.com/gpu": "1"}


class CoexistNode:
    """A node of two GPUs whose kubelet chooses the last free one, and one replica of Carrel."""

    def __init__(self, lab: Lab, kubelet: Kubelet, replica: Replica) -> None:
        self.lab = lab
        self.kubelet = kubelet
        self.replica = replica

    async def catch_up(self) -> None:
        """Waits until the caches have all that the API server has."""
        pods = (await self.lab.client.list(PODS)).items
        there = {(pod.metadata.uid, pod.metadata.resource_version) for pod in pods}
        await eventually(
            lambda: {(p.metadata.uid, p.metadata.resource_version) for p in self.replica.pods.store} == there
        )
        leases = (await self.lab.client.list(LEASES, Selection("carrel"))).items
        known = {(lease.metadata.uid, lease.metadata.resource_version) for lease in leases}
        await eventually(lambda: {(each.uid, each.version) for each in self.replica.cluster_ledger.leases()} == known)

    async def reconcile(self, count: int = 12) -> None:
        """Rounds of the controller and of the kubelet; twelve are enough for every test."""
        for _ in range(count):
            await self.catch_up()
            await self.replica.collector.collect()
            for name in self.replica.reservations.due():
                await self.replica.reservations.reconcile_slot(name)
            await self.kubelet.work()
            await asyncio.sleep(0.001)  # let binds run

    async def bind(self, pod: Json) -> Refusal | None:
        """As kube-scheduler does: filter, then bind, while the controller and the kubelet do their work."""
        seen = await self.replica.sees(pod)
        found = self.replica.filter(seen, [N1])
        if not found.fitting:
            return self.replica.waiting_reason.why(seen)
        binding = asyncio.ensure_future(self.replica.scheduler.bind(seen, N1))
        while not binding.done():
            await self.reconcile(1)
        return await binding

    async def run_pod(self, name: str, **spec: Any) -> Json:
        pod = await self.lab.pod(name, **spec)
        assert await self.bind(pod) is None
        return pod

    async def gpu_of(self, name: str) -> str:
        return (await self.lab.annotations(name))["carrel.dev/devices"]

    async def delete_pod(self, name: str, namespace: str = "lab") -> None:
        await self.lab.client.delete(PODS, name, namespace, how=DeleteOptions(grace_seconds=0))

    async def the_reservation_pod(self) -> Json:
        (pod,) = await reservation_pods(self.lab)
        return await self.lab.client.get(PODS, pod.metadata.name, RESERVATIONS)

    async def reservation_on(self, lease: str) -> str:
        notes = (await self.lab.client.get(LEASES, lease, "carrel"))["metadata"]["annotations"]
        return str(notes.get("carrel.dev/reservation", ""))


@contextlib.asynccontextmanager
async def a_coexist_node(gpus: int = 2, node: Node | None = None, **more: Any) -> AsyncIterator[CoexistNode]:
    node = node or coexisting("n1", gpus)
    async with a_lab([node]) as lab:
        await create_reservation_namespace(lab)
        async with lab.replica(**more) as replica:
            node_lab = CoexistNode(lab, Kubelet(lab, node, last), replica)
            yield node_lab
            replica.ledger.audit()
