"""Takes cards by writing their Leases, and gives them back: the only writer of shares.

Every write names the version it changes, so two schedulers, a failover or a process that slept cannot promise a card
twice: one of them finds the Lease changed, looks again, and either still fits or gives everything back.
A crash at any point leaves a Lease that names the pod: its next bind finds and uses it, or the collector frees it.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from weakref import WeakValueDictionary

from carrel.dialects import carrel, gpuclaim
from carrel.dialects.carrel import LeaseRecord
from carrel.kubernetes.cluster import (
    AlreadyExists,
    Cluster,
    Conflict,
    DeleteOptions,
    Json,
    NotFound,
    Selection,
    Unknown,
)
from carrel.kubernetes.objects.resources import LEASES
from carrel.leases.cluster_ledger import ClusterLedger, KnownLease
from carrel.leases.reservation_wait import ReservationWaiter
from carrel.ledger.gpus import Gpu
from carrel.ledger.placement import Placement
from carrel.ledger.refusals import Refusal
from carrel.ledger.shares import Holder, Share
from carrel.ledger.slots import Reservation, ReservationState

ATTEMPTS = 8
"""Each is lost to another writer of the same card; with more than a few at once something else is wrong."""


@dataclass(frozen=True, slots=True)
class LeaseContext:
    """Where the Leases are kept."""

    cluster: Cluster
    namespace: str
    now: Callable[[], datetime]
    clock: Callable[[], float]
    """Seconds; only differences mean something. The time of day may jump."""
    new_mark: Callable[[], str]
    """A word that nobody else uses: the mark of one bind on the Leases it takes."""


@dataclass(frozen=True, slots=True)
class _Bind:
    mark: str
    since: float


class LeaseWriter:
    def __init__(
        self, cluster_ledger: ClusterLedger, context: LeaseContext, reservation_waiter: ReservationWaiter
    ) -> None:
        self._cluster_ledger = cluster_ledger
        self._context = context
        self._reservation_waiter = reservation_waiter
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._binds: dict[str, _Bind] = {}  # uid → the bind under way

    async def take(self, placement: Placement, holder: Holder, *, is_promised: bool = False) -> Refusal | None:
        """All cards of the placement or none. The ledger must have room for them; another replica may be quicker.

        Where the kubelet chooses, they are slots: it is known of each which card it is when this returns.
        Whoever has promised the cards before withdraws the promise too, when it has served its purpose.
        """
        bind = _Bind(self._context.new_mark(), self._context.clock())
        if not is_promised:
            self._cluster_ledger.promise(placement, holder, bind.mark)
        self._binds[holder.uid] = bind
        try:
            refusal = await self._take_all(placement, holder)
            if refusal is not None:
                await self.give_back(holder.uid)
                return refusal
        except BaseException:
            # Also when cancelled: what was taken goes back, if the API server answers; else the collector does it.
            await asyncio.shield(self.give_back(holder.uid))
            raise
        finally:
            self._cluster_ledger.withdraw(holder.uid, bind.mark)
        return None

    async def _take_all(self, placement: Placement, holder: Holder) -> Refusal | None:
        there = self._cluster_ledger.ledger.node(placement.node)
        if there is not None and there.kubelet_chooses and there.unusable:
            # A card has lost its reservation pod since the plan was made: the kubelet might give it to this one.
            return Refusal(f"{placement.node} takes no new GPU pods: {there.unusable}")
        is_reserved = self._reservation_waiter.needs_reservation(placement)
        for gpu, share in zip(placement.gpus, placement.shares(holder), strict=True):
            refusal = await self._take_one(gpu, share, is_reserved)
            if refusal is not None:
                return refusal
        return await self._reservation_waiter.wait_reserved(placement) if is_reserved else None

    async def give_back(self, uid: str) -> None:
        """Takes our last bind of the pod off its Leases, and the pod too where no other bind relies on it.

        Another replica may be binding the same pod at this moment, and would be robbed of its card.
        """
        bind = self._binds.pop(uid, None)
        for lease in self._cluster_ledger.leases() if bind else ():
            if bind and bind.mark in lease.record.tries.get(uid, ()):
                await self._change(lease.name, lambda record, mark=bind.mark: record.given_back(uid, mark))  # type: ignore[misc] # bound now

    def let_stand(self, uid: str) -> None:
        """The pod is bound, or nobody knows whether it is: its cards stay its own."""
        self._binds.pop(uid, None)

    def held_for(self, uid: str) -> float:
        """How many seconds ago the bind that is under way began to take the pod's cards."""
        return self._context.clock() - self._binds[uid].since

    async def strike(self, node: str, index: int, uid: str, *, only_version: str = "") -> bool:
        """Takes one pod off the Lease of one card: its share, and what is kept for it. Whether it is off now.

        Whatever else happens to that Lease meanwhile; but with `only_version`, only if nothing does.
        """
        return await self._change(gpuclaim.lease_name(node, index), lambda record: record.without(uid), only_version)

    async def keep(self, gpu: Gpu, holder: Holder, victims: Sequence[Holder]) -> bool:
        """Keeps a card for a pod, and names those who have to give it back. Whether it is kept so now.

        Only on the Lease that is known: what was decided on another one has to be decided anew.
        """
        name = gpuclaim.lease_name(gpu.node, gpu.index)
        async with self._lock(name):
            lease = self._cluster_ledger.lease(name)
            record = lease.record if lease else LeaseRecord(gpu.node, gpu.index, gpu.uuid)
            kept = record.keeping(holder, victims)
            if record.kept_for not in (None, holder):
                return False
            try:
                if kept != record:
                    await self._write(kept, lease)
                return True
            except (Conflict, AlreadyExists, NotFound, Unknown):
                await self._look_again(name, lease)
            left = self._cluster_ledger.lease(name)
            return left is not None and left.record == kept

    async def keep_no_more(self, name: str, uid: str) -> None:
        """The pod that the card was kept for is bound: it has this card, or another."""
        await self._change(
            name,
            lambda record: record.kept_for_nobody() if record.kept_for and record.kept_for.uid == uid else record,
        )

    async def set_reservation(self, lease: KnownLease, reservation: Reservation | None) -> bool:
        """Records how far a slot's reservation is, if the Lease is as it was; whether it was."""
        return await self._change(
            lease.name, lambda record: replace(record, reservation=reservation), only_version=lease.version
        )

    async def read_anew(self) -> None:
        """What all Leases say now, straight from the API server."""
        cluster, namespace = self._context.cluster, self._context.namespace
        before = tuple(self._cluster_ledger.leases())
        found = (await cluster.list(LEASES, Selection(namespace))).items
        for lease in found:
            self._cluster_ledger.see_lease(None, lease)
        there = {lease.metadata.name for lease in found}
        for known in before:
            if known.name not in there:
                await self._look_again(known.name, known)

    async def _change(self, name: str, change: Callable[[LeaseRecord], LeaseRecord], only_version: str = "") -> bool:
        """Whether the Lease is now as the change would have it."""
        async with self._lock(name):
            for _ in range(ATTEMPTS):
                lease = self._cluster_ledger.lease(name)
                after = change(lease.record) if lease else None
                if lease is None or after is None or after == lease.record:
                    return True
                if only_version and lease.version != only_version:
                    return False
                try:
                    await self._write(after, lease)
                    return True
                except (Conflict, AlreadyExists, NotFound, Unknown):
                    await self._look_again(name, lease)
        return False

    async def discard(self, name: str) -> bool:
        """Deletes a Lease that names nobody. Whether it is gone: it stays if it names somebody by now."""
        async with self._lock(name):
            lease = self._cluster_ledger.lease(name)
            if lease is not None and lease.record.is_empty:
                try:
                    await self._write(lease.record, lease)
                except (Conflict, NotFound, Unknown):
                    await self._look_again(name, lease)
            return self._cluster_ledger.lease(name) is None

    async def _take_one(self, gpu: Gpu, share: Share, is_reserved: bool) -> Refusal | None:
        name = gpuclaim.lease_name(gpu.node, gpu.index)
        mark = self._binds[share.holder.uid].mark
        async with self._lock(name):
            for _ in range(ATTEMPTS):
                lease = self._cluster_ledger.lease(name)
                record = lease.record if lease else LeaseRecord(gpu.node, gpu.index, gpu.uuid)
                if mark in record.tries.get(share.holder.uid, ()):
                    return None  # written, though the answer was lost
                refusal = self._no_longer(gpu, share) or _still_reserved(gpu, record.reservation, is_reserved)
                if refusal is not None:
                    return refusal
                # On a card that the pod has already, from an earlier try, our mark is added: the collector or another
                # replica, which may be about to free it, then finds the Lease changed.
                try:
                    after = record.taking(share, mark)
                    await self._write(after.reserved() if is_reserved else after, lease)
                    return None
                except (Conflict, AlreadyExists, NotFound, Unknown):
                    await self._look_again(name, lease)
        return Refusal(f"{gpu} could not be taken: its Lease {name} changed {ATTEMPTS} times in a row")

    def _no_longer(self, gpu: Gpu, share: Share) -> Refusal | None:
        """Whether the card, which had room when it was chosen, has it still."""
        card = self._cluster_ledger.ledger.card(gpu.uuid)
        if card is None or card.gpu.unusable:
            return Refusal(f"{gpu} is no longer in use" + (f": {card.gpu.unusable}" if card else ""))
        if card.kept_for is not None and card.kept_for.uid != share.holder.uid:
            return Refusal(f"{gpu} is now held for the booked pod {card.kept_for}")
        if share.holder.uid not in card.shares:
            return Refusal(f"{gpu} is no longer promised to {share.holder}")
        if card.free < 0:  # our own promise is counted in
            return Refusal(f"{gpu} was taken by another pod in the meantime")
        return None

    # --- one Lease ---------------------------------------------------------------------------------------------------

    def _lock(self, name: str) -> asyncio.Lock:
        """One write of a Lease at a time: within this process there is no need to lose a race."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _write(self, record: LeaseRecord, before: KnownLease | None) -> None:
        """Creates, updates or, if nothing is left to say, deletes the Lease; only if it is as it was before."""
        cluster, namespace = self._context.cluster, self._context.namespace
        name = gpuclaim.lease_name(record.node, record.index)
        if before is not None and record.is_empty:
            how = DeleteOptions(uid=before.uid, resource_version=before.version)
            await cluster.delete(LEASES, name, namespace, how=how)
            self._cluster_ledger.erased(name, before.uid)
            return
        body = carrel.write_lease(record, namespace, self._context.now())
        if before is None:
            answer = await cluster.create(LEASES, body, namespace)
        else:
            body["metadata"] |= {"resourceVersion": before.version, "uid": before.uid}
            answer = await cluster.update(LEASES, body)
        self._cluster_ledger.wrote(_known(answer, record))

    async def _look_again(self, name: str, before: KnownLease | None) -> None:
        """What the Lease says now, straight from the API server."""
        only_it = Selection(self._context.namespace, fields=f"metadata.name={name}")
        found = (await self._context.cluster.list(LEASES, only_it)).items
        if found:
            self._cluster_ledger.see_lease(None, found[0])
        elif before is not None:
            # A list may be behind. To forget a Lease that is there would be to lose a pod's card for good: ask for it.
            try:
                await self._context.cluster.get(LEASES, name, self._context.namespace)
            except NotFound:
                self._cluster_ledger.erased(name, before.uid)


def _still_reserved(slot: Gpu, reservation: Reservation | None, is_reserved: bool) -> Refusal | None:
    """A slot whose reservation pod is going, or must go first because the pod asks the kubelet itself."""
    if reservation is None or (is_reserved and reservation.state is not ReservationState.CLOSING):
        return None
    return Refusal(f"{slot} still has the reservation pod of others who left; it is going")


def _known(answer: Json, record: LeaseRecord) -> KnownLease:
    metadata = answer["metadata"]
    written_at = answer["spec"].get("renewTime", "")
    return KnownLease(metadata["name"], metadata["uid"], metadata["resourceVersion"], record, written_at)
