"""What the leader does on nodes where the kubelet chooses the GPUs: it reconciles a slot whenever its Lease or its
reservation pod changes, step by step; and it writes KAI's labels and ConfigMaps for pods that were bound there.

At regular intervals all slots that are not healthy are reconciled, so that a missed change is handled.
"""

import asyncio
from collections.abc import Callable

from carrel.cluster.pod_progress import slot_of
from carrel.cluster.state import ClusterState
from carrel.dialects.gpu_lease import lease_name, read_lease_name
from carrel.dialects.gpuclaim_objects import GpuNodeStatus
from carrel.ids import HolderId, NodeName
from carrel.kubernetes.objects.kinds import Lease, Pod
from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.lifecycle.metrics import ControllerMetrics
from carrel.lifecycle.reservations.kai_metadata import KaiMetadataWriter
from carrel.lifecycle.reservations.reservation_pods import ReservationPods

SWEEP_S = 15.0
RETRY = Backoff(first_s=0.2, limit_s=15.0)
"""A bind waits for a GPU meanwhile; and the kubelet may give a GPU that has lost its reservation pod to any pod."""
WORKERS = 4
"""Slots of different nodes need not wait for each other."""


class SlotReconciler:
    def __init__(
        self,
        state: ClusterState,
        reservations: ReservationPods,
        on_room: Callable[[NodeName], None],
        metrics: ControllerMetrics,
    ) -> None:
        """`on_room` is called with a node that has more room than before."""
        self._state = state
        self._reservations = reservations
        self._on_room = on_room
        self._metrics = metrics
        self._copies = KaiMetadataWriter(state)
        self._open_queues()
        self._close_queues()  # until this process leads
        state.leases.on_change(self._on_lease)
        state.pods.on_change(self._on_pod)
        state.node_statuses.on_change(self._on_node_status)

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._open_queues()
        try:
            async with asyncio.TaskGroup() as tasks:
                failed = self._state.isolation.count
                for _ in range(WORKERS):
                    tasks.create_task(run_worker(self._due, self._reconcile, lambda _: failed("reservation")))
                tasks.create_task(run_worker(self._pods_due, self._write_copies, lambda _: failed("kai_metadata")))
                tasks.create_task(self._sweep())
        finally:
            self._close_queues()

    def _open_queues(self) -> None:
        self._due: WorkQueue[str] = WorkQueue(backoff=RETRY)
        self._pods_due: WorkQueue[HolderId] = WorkQueue(backoff=RETRY)

    def _close_queues(self) -> None:
        self._due.close()
        self._pods_due.close()

    async def _sweep(self) -> None:
        while True:
            self._count()
            for name in self._reservations.due():
                self._due.add(name)
            for pod in self._state.pods.store:
                self._state.isolation.ask("kai_metadata", pod, lambda pod: self._on_pod(None, pod), None)
            await asyncio.sleep(SWEEP_S)

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        known = self._state.cluster_ledger.lease(new.metadata.name) if new else None
        if known is not None and known.record.reservation is not None:
            self._due.add(known.name)

    def _on_node_status(self, old: GpuNodeStatus | None, new: GpuNodeStatus | None) -> None:
        """The agent may say which GPU the kubelet gave to a reservation pod, or whether a GPU is healthy."""
        if new is None or (old is not None and old.status.devices == new.status.devices):
            return
        ledger, name = self._state.cluster_ledger, new.metadata.name
        for device in new.status.devices:
            known = ledger.lease(lease_name(name, device.id))
            if known is not None and known.record.reservation is not None:
                self._due.add(known.name)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and self._copies.may_be_due(new):
            self._pods_due.add(new.metadata.uid)
        elif (pod := new or old) is not None and (name := slot_of(pod)):
            self._due.add(name)

    async def _write_copies(self, uid: HolderId) -> None:
        pod = self._state.pods.store.by_uid(uid)
        if pod is not None:
            await self._copies.write(pod)

    def _count(self) -> None:
        reservations = (lease.record.reservation for lease in self._state.cluster_ledger.leases())
        self._metrics.count_reservations(each.state for each in reservations if each is not None)

    async def _reconcile(self, name: str) -> None:
        step = await self._reservations.reconcile_slot(name)
        if step.is_news:
            self._count()
        if step.again_s is not None:
            self._due.add_after(name, step.again_s)
        place = read_lease_name(name)
        if step.has_room and place:
            self._on_room(place[0])
