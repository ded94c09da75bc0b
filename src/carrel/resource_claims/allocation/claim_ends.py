"""Whether a ResourceClaim that holds a GPU has given it back, as the API server says.

    the claim is gone, or another has its name      nobody can be using the GPU by it
    its allocation does not name the GPU            the same, unless the allocation is about to be stored: the gate says
                                                    yes before that, and a request to the API server may take a minute.
                                                    If it was seen stored, since the gate's last yes, it is over;
                                                    also if another GPU is stored instead
    the node's agent names it as a user of the GPU  its containers may still run: it keeps the GPU in any case

A pod that is deleted by force frees its claim at once, and its containers may still run; hence the last line.
"""

import msgspec

from carrel.cluster.holders import HolderEnd
from carrel.cluster.state import ClusterState
from carrel.dialects.gpu_lease import LeaseRecord
from carrel.dialects.gpuclaim import users_on
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES, GpuNodeStatus
from carrel.ids import GpuUuid, HolderId
from carrel.kubernetes.cluster import Forbidden, NotFound, Selection
from carrel.ledger.shares import Holder
from carrel.resource_claims import dra
from carrel.resource_claims.dra import DevicePlace
from carrel.resource_claims.holders import ClaimHolders
from carrel.resource_claims.objects import RESOURCE_CLAIMS, ResourceClaim

TIME_TO_STORE_S = 90.0
"""From the gate's yes to the stored allocation: the API server itself gives a request up after 60 s."""


HOLDS = HolderEnd("")


class ClaimEnds:
    def __init__(self, state: ClusterState) -> None:
        """Where claims are not counted any more, the API server is asked about every claim that a Lease still names."""
        self._cluster = state.cluster
        self._cluster_ledger = state.cluster_ledger
        self._device_claims = state.holders.device_claims if isinstance(state.holders, ClaimHolders) else None
        self._stored: dict[
            HolderId, dict[GpuUuid, tuple[str, ...]]
        ] = {}  # uid → GPU → the marks of the share when it was seen
        if self._device_claims is not None:
            self._device_claims.claims.on_change(self._on_claim)

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        if new is not None and new.status.allocation is not None:
            for lease in self._cluster_ledger.leases_of(new.metadata.uid):
                self.seems_over(dra.holder_of_claim(new), lease.record)
        elif new is None and old is not None:
            self._stored.pop(old.metadata.uid, None)

    def seems_over(self, holder: Holder, record: LeaseRecord) -> bool:
        """Whether the caches give a reason to ask."""
        if self._device_claims is None:
            return True
        claim = self._device_claims.claims.store.get(holder.name, holder.namespace)
        if claim is None or self._end_of(claim, holder, record).why:
            return True
        self._stored.setdefault(holder.uid, {})[record.gpu] = _marks(record, holder)
        return False

    async def end_of(self, holder: Holder, record: LeaseRecord) -> HolderEnd:
        """Ask the API server whether the holder still has the GPU."""
        if holder.uid in self._cluster_ledger.users_on(record):
            return HOLDS
        try:
            end = await self._read_end(holder, record)
            # The claim is looked at first: one that is over is not handed over any more.
            return HOLDS if end.why and await self._is_used(holder, record) else end
        except Forbidden:
            # Its role is older than this program. Other holders of the GPU must still be looked at.
            return HOLDS

    async def _read_end(self, holder: Holder, record: LeaseRecord) -> HolderEnd:
        try:
            found = await self._cluster.get(RESOURCE_CLAIMS, holder.name, holder.namespace)
        except NotFound:
            return HolderEnd("the claim is gone") if await self._is_served(holder) else HOLDS
        return self._end_of(msgspec.convert(found, ResourceClaim), holder, record)

    async def _is_used(self, holder: Holder, record: LeaseRecord) -> bool:
        """Ask whether the node's agent names it as a user. A cache may be older than the end
        of the claim, which another watch reports."""
        try:
            found = msgspec.convert(await self._cluster.get(GPU_NODE_STATUSES, record.node), GpuNodeStatus)
        except NotFound:
            return False
        return holder.uid in users_on(found, record.gpu, record.index)

    async def _is_served(self, holder: Holder) -> bool:
        """An API server that does not know the kind at all says of every claim that it is not found. It lists no more
        than this one: claims end with nearly every pod."""
        try:
            await self._cluster.list(
                RESOURCE_CLAIMS, Selection(holder.namespace, fields=f"metadata.name={holder.name}")
            )
        except NotFound:
            return False
        return True

    def _end_of(self, claim: ResourceClaim, holder: Holder, record: LeaseRecord) -> HolderEnd:
        if claim.metadata.uid != holder.uid:
            return HolderEnd("another claim has its name now")
        results = claim.status.allocation.devices.results if claim.status.allocation is not None else ()
        if any(self._is_for(dra.place_of(result), record) for result in results if not dra.is_for_admin(claim, result)):
            return HOLDS
        # What is stored elsewhere cannot be stored here too: a write names the version of the claim that it changes.
        is_final = bool(results) or self._stored.get(holder.uid, {}).get(record.gpu) == _marks(record, holder)
        return HolderEnd(
            f"the claim is not allocated to GPU {record.index} of {record.node}", 0.0 if is_final else TIME_TO_STORE_S
        )

    def _is_for(self, place: DevicePlace, record: LeaseRecord) -> bool:
        """Whether a device is the GPU of the Lease; also if no slice says any more which one it is, but it may be."""
        if place == DevicePlace(dra.DRIVER, record.node, dra.device_name(record.gpu)):
            return True
        uuid = self._device_claims.uuid_of(place) if self._device_claims is not None else ""
        return uuid == record.gpu if uuid else place.pool == record.node and place.driver in dra.CLASSES


def _marks(record: LeaseRecord, holder: Holder) -> tuple[str, ...]:
    return record.tries.get(holder.uid, ())
