"""What the leader does where the kubelet chooses: it looks at a slot whenever something is heard of it, step by step;
and it writes KAI's words on pods that were bound there.

Every so often all slots that do not look well are looked at, so that a change of which nobody heard is caught up with.
"""

import asyncio
import logging
from collections.abc import Callable

from carrel.dialects.gpuclaim import read_lease_name
from carrel.kubernetes.backoff import Backoff
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.leases.cluster_state import ClusterState
from carrel.leases.pods import slot_of
from carrel.lifecycle.kai_copies import KaiCopies
from carrel.lifecycle.metrics import Metrics
from carrel.lifecycle.reservation_pods import Reservations

log = logging.getLogger(__name__)

SWEEP_S = 15.0
RETRY = Backoff(first_s=0.2, limit_s=15.0)
"""A bind waits for a card meanwhile; and a card that has lost its pod may be given to anybody."""
WORKERS = 4
"""Slots of different nodes need not wait for each other."""


class SlotReconciler:
    def __init__(
        self, carrel: ClusterState, reservations: Reservations, has_room: Callable[[str], None], metrics: Metrics
    ) -> None:
        """`has_room` is told a node on which there is room that was not there before."""
        self._carrel = carrel
        self._reservations = reservations
        self._has_room = has_room
        self._metrics = metrics
        self._copies = KaiCopies(carrel.cluster, carrel.cluster_ledger, carrel.read_request)
        self._open_queues()
        self._close_queues()  # until this process leads
        carrel.leases.on_change(self._see_lease)
        carrel.pods.on_change(self._see_pod)

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._open_queues()
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(WORKERS):
                    tasks.create_task(run_worker(self._due, self._look_after))
                tasks.create_task(run_worker(self._pods_due, self._copy_for))
                tasks.create_task(self._sweep())
        finally:
            self._close_queues()

    def _open_queues(self) -> None:
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        self._pods_due: WorkQueue[str] = WorkQueue(backoff=RETRY)

    def _close_queues(self) -> None:
        self._due.close()
        self._pods_due.close()

    async def _sweep(self) -> None:
        while True:
            self._count()
            for name in self._reservations.due():
                self._due.add(name)
            for pod in self._carrel.pods.store:
                self._see_pod(None, pod)
            await asyncio.sleep(SWEEP_S)

    def _see_lease(self, old: Lease | None, new: Lease | None) -> None:
        known = self._carrel.cluster_ledger.lease(new.metadata.name) if new else None
        if known is not None and known.record.reservation is not None:
            self._due.add(known.name)

    def _see_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and self._copies.may_be_due(new):
            self._pods_due.add(new.metadata.uid)
        elif (pod := new or old) is not None and (name := slot_of(pod)):
            self._due.add(name)

    async def _copy_for(self, uid: str) -> None:
        pod = self._carrel.pods.store.by_uid(uid)
        if pod is not None:
            await self._copies.write(pod)

    def _count(self) -> None:
        reservations = (lease.record.reservation for lease in self._carrel.cluster_ledger.leases())
        self._metrics.see_reservations(each.state for each in reservations if each is not None)

    async def _look_after(self, name: str) -> None:
        looked = await self._reservations.look_at(name)
        if looked.is_news:
            self._count()
        if looked.again_s is not None:
            self._due.add_after(name, looked.again_s)
        place = read_lease_name(name)
        if looked.has_room and place:
            self._has_room(place[0])
