"""Takes GPUs by writing their Leases, and gives them back: the only writer of shares.

Every write names the version that it changes, so two schedulers, a failover or a paused process cannot promise a GPU
twice: one of them gets a conflict, reads the Lease again, and either still has room or gives everything back.
A crash at any point leaves a Lease that names the pod: its next bind uses it, or the collector frees it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from secrets import token_hex
from weakref import WeakValueDictionary

from carrel.cluster.options import ClusterOptions
from carrel.cluster.record.cluster_ledger import ClusterLedger
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.record.slot_gpus import ReservationWaiter
from carrel.dialects import gpu_lease
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.ids import NO_BOOKING, BookingId, HolderId, NodeName
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Cluster,
    Conflict,
    DeleteOptions,
    Json,
    NotFound,
    OutcomeUnknown,
    Selection,
)
from carrel.kubernetes.objects.resources import LEASES
from carrel.ledger.gpus import Gpu
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Coverage, Holder, Share
from carrel.ledger.slots import Reservation, ReservationState

ATTEMPTS = 8
"""Each is lost to another writer of the same GPU; if more than a few are lost, something else is wrong."""
NOBODYS: list[Json] = [{}]
"""No field of the Lease has a manager. To keep track of them takes the API server a sixth of what a write takes, and
only Carrel may write these Leases."""


@dataclass(frozen=True, slots=True)
class _Bind:
    mark: str
    """Unique: one bind writes the same mark on all Leases that it takes."""
    since: float


class LeaseWriter:
    def __init__(
        self,
        cluster: Cluster,
        cluster_ledger: ClusterLedger,
        reservation_waiter: ReservationWaiter,
        options: ClusterOptions,
    ) -> None:
        self._cluster = cluster
        self._cluster_ledger = cluster_ledger
        self._reservation_waiter = reservation_waiter
        self._namespace = options.namespace
        self._now = options.now
        self._clock = options.clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._binds: dict[HolderId, _Bind] = {}  # uid → the bind under way

    async def take(self, placement: Placement, holder: Holder, *, is_promised: bool = False) -> Refusal | None:
        """Takes all GPUs of the placement or none. The ledger must have room; another replica may be faster.

        Where the kubelet chooses, these are slots: when this returns, the GPU behind each of them is known.
        With `is_promised`, the caller has promised the GPUs before, and withdraws the promise itself.
        """
        bind = _Bind(token_hex(6), self._clock())
        if not is_promised:
            self._cluster_ledger.promise(placement, holder, bind.mark)
        self._binds[holder.uid] = bind
        try:
            refusal = await self._take_all(placement, holder)
            if refusal is not None:
                await self.give_back(holder.uid)
                return refusal
        except BaseException:
            # Also when cancelled: what was taken is given back, if the API server answers; else the collector does it.
            await asyncio.shield(self.give_back(holder.uid))
            raise
        finally:
            self._cluster_ledger.withdraw(holder.uid, bind.mark)
        return None

    async def _take_all(self, placement: Placement, holder: Holder) -> Refusal | None:
        there = self._cluster_ledger.ledger.node(placement.node)
        if there is not None and there.kubelet_chooses and there.unusable:
            # A GPU has lost its reservation pod since the plan was made: the kubelet might give it to this pod.
            return Refusal(f"{placement.node} takes no new GPU pods: {there.unusable}")
        is_reserved = self._cluster_ledger.kubelet_chooses(placement.node) and not placement.request.by_kubelet
        for gpu, share in zip(placement.gpus, placement.shares(holder), strict=True):
            refusal = await self._take_gpu(gpu, share, is_reserved)
            if refusal is not None:
                return refusal
        return await self._reservation_waiter.wait_reserved(placement) if is_reserved else None

    async def give_back(self, uid: HolderId) -> None:
        """Removes this process's last bind of the pod from its Leases, and the pod too where no other bind needs it.

        Another replica may be binding the same pod at this moment: it must not lose its GPU.
        """
        bind = self._binds.pop(uid, None)
        for lease in self._cluster_ledger.leases_of(uid) if bind else ():
            if bind and bind.mark in lease.record.tries.get(uid, ()):
                await self._change(lease.name, lambda record, mark=bind.mark: record.given_back(uid, mark))  # type: ignore[misc] # bound now

    def finish_bind(self, uid: HolderId) -> None:
        """The pod is bound, or may be bound: it keeps its GPUs."""
        self._binds.pop(uid, None)

    def held_for(self, uid: HolderId) -> float:
        """How many seconds ago the bind that is under way began to take the pod's GPUs."""
        return self._clock() - self._binds[uid].since

    async def remove_pod(self, node: NodeName, index: int, uid: HolderId, *, only_version: str = "") -> bool:
        """Removes one pod from the Lease of one GPU: its share, and what is kept for it. Whether it is removed.

        With `only_version`, only if nobody has changed the Lease since that version.
        """
        return await self._change(gpu_lease.lease_name(node, index), lambda record: record.without(uid), only_version)

    async def keep_for(
        self, gpu: Gpu, holder: Holder, victims: Sequence[Holder], booking: BookingId = NO_BOOKING
    ) -> bool:
        """Keeps a GPU for a pod that the booking covers, and names the victims that have to give it back. Whether it is
        kept now.

        Only if the Lease is as this process knows it: if it has changed, the decision has to be made again.
        """
        name = gpu_lease.lease_name(gpu.node, gpu.index)
        async with self._lock(name):
            lease = self._cluster_ledger.lease(name)
            record = lease.record if lease else LeaseRecord(gpu.node, gpu.index, gpu.uuid)
            kept = record.keeping(holder, victims, booking)
            if record.kept_for is not None and record.kept_for.uid not in (holder.uid, booking):
                return False
            if kept == record or await self._write(kept, lease):
                return True
            left = self._cluster_ledger.lease(name)
            return left is not None and left.record == kept

    async def stop_keeping(self, name: str, uid: HolderId) -> None:
        """The pod that the GPU was kept for is bound, with this GPU or another."""
        await self._change(
            name,
            lambda record: record.kept_for_nobody() if record.kept_for and record.kept_for.uid == uid else record,
        )

    async def keep_for_next(self, name: str, uid: HolderId, until: datetime) -> None:
        """The pod that the GPU was kept for is gone: it is kept for the next pod of its booking."""
        await self._change(
            name,
            lambda record: record.kept_for_next(until) if record.kept_for and record.kept_for.uid == uid else record,
        )

    async def record_coverage(self, lease: KnownLease, uid: HolderId, coverage: Coverage | None) -> bool:
        """Records which booking covers a pod's share, if the Lease has not changed. Whether it was recorded."""
        return await self._change(lease.name, lambda record: record.covered(uid, coverage), only_version=lease.version)

    async def record_share(self, gpu: Gpu, share: Share, *, only_with_room: bool = False) -> bool:
        """Records what a pod has already, whoever gave it to the pod. Whether the Lease names the pod now.

        There need not be room: what is true is recorded, and a GPU with less than nothing free is given to nobody.
        `only_with_room`: of a claim, which gets its GPU only if a Lease names it.
        """
        name = gpu_lease.lease_name(gpu.node, gpu.index)
        async with self._lock(name):
            for _ in range(ATTEMPTS):
                lease = self._cluster_ledger.lease(name)
                record = lease.record if lease else LeaseRecord(gpu.node, gpu.index, gpu.uuid)
                if record.gpu != gpu.uuid:
                    return False  # the GPU was renumbered
                if any(each.holder.uid == share.holder.uid for each in record.shares):
                    return True
                if record.shares and self._cluster_ledger.kubelet_chooses(gpu.node):
                    return False  # another pod has just got this slot; any other one will do
                if only_with_room and not record.has_room_for(share, gpu.memory):
                    return False
                if await self._write(replace(record, shares=(*record.shares, share)), lease):
                    return True
        return False

    async def move(self, lease: KnownLease, index: int) -> bool:
        """Records on the Lease of this index what another Lease says of the same GPU, and deletes that one. Whether it
        is done: not if the Lease of the index is another GPU's, or if somebody else has changed one of both."""
        record, name = lease.record, gpu_lease.lease_name(lease.record.node, index)
        async with self._lock(name):
            there = self._cluster_ledger.lease(name)
            if there is not None and there.record.gpu != record.gpu:
                return False
            known = there.record if there is not None else replace(record, index=index, shares=())
            held = {share.holder.uid for share in known.shares}
            missing = tuple(share for share in record.shares if share.holder.uid not in held)
            after = replace(known, shares=(*known.shares, *missing), tries={**record.tries, **known.tries})
            if (there is None or missing) and not await self._write(after, there):
                return False
            return await self._write(LeaseRecord(record.node, record.index, record.gpu), lease)

    async def set_reservation(self, lease: KnownLease, reservation: Reservation | None) -> bool:
        """Records the state of a slot's reservation, if the Lease has not changed. Whether it was recorded."""
        return await self._change(
            lease.name, lambda record: replace(record, reservation=reservation), only_version=lease.version
        )

    async def reread_all(self) -> None:
        """Reads all Leases from the API server, past the cache."""
        cluster, namespace = self._cluster, self._namespace
        before = tuple(self._cluster_ledger.leases())
        found = (await cluster.list(LEASES, Selection(namespace))).items
        for lease in found:
            self._cluster_ledger.on_lease(None, lease)
        there = {lease.metadata.name for lease in found}
        for known in before:
            if known.name not in there:
                await self._reread(known.name, known)

    async def _change(self, name: str, change: Callable[[LeaseRecord], LeaseRecord], only_version: str = "") -> bool:
        """Whether the Lease now is as the change would make it."""
        async with self._lock(name):
            for _ in range(ATTEMPTS):
                lease = self._cluster_ledger.lease(name)
                after = change(lease.record) if lease else None
                if lease is None or after is None or after == lease.record:
                    return True
                if only_version and lease.version != only_version:
                    return False
                if await self._write(after, lease):
                    return True
        return False

    async def delete_if_empty(self, name: str) -> bool:
        """Deletes a Lease that names no pod. Whether it is gone: it stays if it names a pod by now."""
        async with self._lock(name):
            lease = self._cluster_ledger.lease(name)
            if lease is not None and lease.record.is_empty:
                await self._write(lease.record, lease)
            return self._cluster_ledger.lease(name) is None

    async def _take_gpu(self, gpu: Gpu, share: Share, is_reserved: bool) -> Refusal | None:
        name = gpu_lease.lease_name(gpu.node, gpu.index)
        mark = self._binds[share.holder.uid].mark
        async with self._lock(name):
            for _ in range(ATTEMPTS):
                lease = self._cluster_ledger.lease(name)
                record = lease.record if lease else LeaseRecord(gpu.node, gpu.index, gpu.uuid)
                if mark in record.tries.get(share.holder.uid, ()):
                    return None  # written, although the answer was lost
                if (refusal := self._why_no_room(gpu, share)) is not None:
                    return refusal
                reservation = record.reservation
                if reservation and (not is_reserved or reservation.state is ReservationState.CLOSING):
                    # It is ending, or must end first because the new pod asks the kubelet itself.
                    return Refusal(f"{gpu} still has the reservation pod of pods that are gone; it is being deleted")
                # If the pod has the GPU already, from an earlier try, our mark is added: the collector or another
                # replica, which may be about to free it, then gets a conflict.
                after = record.taking(share, mark)
                if await self._write(after.reserved() if is_reserved else after, lease):
                    return None
        return Refusal(f"{gpu} could not be taken: its Lease {name} changed {ATTEMPTS} times in a row")

    def _why_no_room(self, gpu: Gpu, share: Share) -> Refusal | None:
        """None if the GPU, which had room when it was chosen, still has it."""
        entry = self._cluster_ledger.ledger.entry(gpu.uuid)
        if entry is None or entry.gpu.unusable:
            return Refusal(f"{gpu} is no longer in use" + (f": {entry.gpu.unusable}" if entry else ""))
        if entry.kept_for is not None and not share.may_have(entry.kept_for):
            return Refusal(f"{gpu} is now kept for {entry.kept_for}")
        if share.holder.uid not in entry.shares:
            return Refusal(f"{gpu} is no longer promised to {share.holder}")
        if entry.free < 0:  # our own promise is counted in
            return Refusal(f"{gpu} was taken by another pod in the meantime")
        return None

    # --- one Lease ---------------------------------------------------------------------------------------------------

    def _lock(self, name: str) -> asyncio.Lock:
        """One write of a Lease at a time, so that the writers of one process do not conflict."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _write(self, record: LeaseRecord, before: KnownLease | None) -> bool:
        """Creates, updates or, if the record is empty, deletes the Lease; only if it has not changed since `before`.
        Whether that was done. If not, or if nobody knows, the Lease has been read again."""
        cluster, namespace = self._cluster, self._namespace
        name = gpu_lease.lease_name(record.node, record.index)
        try:
            if before is not None and record.is_empty:
                how = DeleteOptions(uid=before.uid, resource_version=before.version)
                await cluster.delete(LEASES, name, namespace, how=how)
                self._cluster_ledger.lease_deleted(name, before.uid)
                return True
            body = gpu_lease.write_lease(record, namespace, self._now())
            if before is None:
                answer = await cluster.create(LEASES, body, namespace)
            else:
                body["metadata"] |= {"resourceVersion": before.version, "uid": before.uid, "managedFields": NOBODYS}
                answer = await cluster.update(LEASES, body)
            now = answer["metadata"]
            self._cluster_ledger.lease_written(KnownLease(name, now["uid"], now["resourceVersion"], record))
            return True
        except (Conflict, AlreadyExists, NotFound, OutcomeUnknown):
            await self._reread(name, before)
            return False

    async def _reread(self, name: str, before: KnownLease | None) -> None:
        """Reads the Lease from the API server, past the cache."""
        only_it = Selection(self._namespace, fields=f"metadata.name={name}")
        found = (await self._cluster.list(LEASES, only_it)).items
        if found:
            self._cluster_ledger.on_lease(None, found[0])
        elif before is not None:
            # A list may be out of date. Forgetting a Lease that exists would lose a pod's GPU for good: get it by name.
            try:
                await self._cluster.get(LEASES, name, self._namespace)
            except NotFound:
                self._cluster_ledger.lease_deleted(name, before.uid)
