"""Finds ResourceClaims that have a GPU without a Lease, and records them. The leader does it.

That happens when a scheduler was not asked to go through the gate (its configuration was missing), when its write came
very late, or when somebody deleted a Lease. What fits is recorded, and is then as if the gate had said yes. What does
not fit is reported by an Event: the node does not hand the GPU over to it, and if it has done so before, the GPU is set
aside until the claim is given up (`cluster.record.cluster_ledger`).
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import msgspec

from carrel.cluster.state import ClusterState
from carrel.dialects.gpu_lease import lease_name
from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.shares import Share, ShareState
from carrel.resource_claims import dra
from carrel.resource_claims.device_claims import DeviceClaims
from carrel.resource_claims.objects import RESOURCE_CLAIMS, ResourceClaim

log = logging.getLogger(__name__)

COMPONENT = "carrel-controller"
"""Who reports the Events."""
EVERY_S = 5.0
NO_LEASE = "GPUWithoutLease"


class ClaimOutcome(Enum):
    RECORDED = "recorded"
    NO_ROOM = "no room"
    OVER = "over"
    """It has given the GPU back meanwhile."""


@dataclass(frozen=True, slots=True)
class UnrecordedClaim:
    """A claim, and one GPU that it has without a Lease."""

    claim: ResourceClaim
    gpu: Gpu
    memory: MiB | None
    """None: the whole GPU."""

    @property
    def key(self) -> tuple[str, str]:
        return self.claim.metadata.uid, self.gpu.uuid

    @property
    def lease(self) -> str:
        return lease_name(self.gpu.node, self.gpu.index)

    def __str__(self) -> str:
        return f"{dra.holder_of_claim(self.claim)} on {self.gpu}"


class UnrecordedClaims:
    def __init__(self, state: ClusterState, device_claims: DeviceClaims) -> None:
        self._state = state
        self._device_claims = device_claims
        self._events = EventRecorder(state.cluster, COMPONENT, state.options.now)
        self._told: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        seen: frozenset[tuple[str, str]] = frozenset()
        while True:
            # A claim of which the watch has not shown the Lease yet is gone from here a moment later.
            found = self.found()
            await self.treat([each for each in found if each.key in seen])
            seen = frozenset(each.key for each in found)
            self._told &= seen
            await asyncio.sleep(EVERY_S)

    def found(self) -> list[UnrecordedClaim]:
        """Return what the caches show."""
        allocated = (each for each in self._device_claims.claims.store if each.status.allocation is not None)
        listed = self._state.isolation.found("unrecorded_claim", allocated, lambda claim: list(self._missing(claim)))
        return [each for several in listed for each in several]

    async def treat(self, due: list[UnrecordedClaim]) -> list[ClaimOutcome]:
        return await self._state.isolation.each("unrecorded_claim", due, self._treat, str)

    async def _treat(self, each: UnrecordedClaim) -> ClaimOutcome:
        metadata, gpu = each.claim.metadata, each.gpu
        try:
            now = msgspec.convert(
                await self._state.cluster.get(RESOURCE_CLAIMS, metadata.name, metadata.namespace), ResourceClaim
            )
        except NotFound:
            return ClaimOutcome.OVER
        if now.metadata.uid != metadata.uid or each.key not in {missing.key for missing in self._missing(now)}:
            return ClaimOutcome.OVER
        share = Share(dra.holder_of_claim(now), gpu.uuid, each.memory, ShareState.ASSUMED)
        if await self._state.lease_writer.record_share(gpu, share, only_with_room=True):
            log.info("claim_recorded claim=%s gpu=%s", share.holder, gpu)
            return ClaimOutcome.RECORDED
        await self._tell(now, each)
        return ClaimOutcome.NO_ROOM

    def _missing(self, claim: ResourceClaim) -> Iterator[UnrecordedClaim]:
        if self._device_claims.is_shadow(claim) or self._is_recorded(claim):
            return
        for place, memory in dra.allocated(claim, self._device_claims.drivers).items():
            entry = self._state.ledger.entry(self._device_claims.uuid_of(place))
            if entry is not None and claim.metadata.uid not in entry.shares:
                whole = memory is None or memory >= entry.gpu.memory
                yield UnrecordedClaim(claim, entry.gpu, None if whole else memory)

    def _is_recorded(self, claim: ResourceClaim) -> bool:
        """Nearly all claims are, and there may be tens of thousands: this is cheaper than to read their amounts."""
        held, allocation = self._state.ledger.shares_of(claim.metadata.uid), claim.status.allocation
        results = allocation.devices.results if allocation is not None else ()
        return bool(held) and all(self._device_claims.uuid_of(dra.place_of(each)) in held for each in results)

    async def _tell(self, claim: ResourceClaim, each: UnrecordedClaim) -> None:
        entry = self._state.ledger.entry(each.gpu.uuid)
        free = max(0, entry.free) if entry is not None else 0
        asked = each.gpu.memory if each.memory is None else each.memory
        set_aside = entry.gpu.unusable if entry is not None else ""
        why = f"is set aside: {set_aside}" if set_aside else f"has {free:,} MiB free, {asked:,} MiB asked"
        words = (
            f"{each.gpu} was allocated to ResourceClaim {claim.metadata.name} without Carrel, and {why};"
            " a pod that uses it does not start there: delete the pod, or the claim"
        )
        note = Note(NO_LEASE, words, WARNING)
        if each.key not in self._told:
            self._told.add(each.key)
            log.warning("claim_without_lease claim=%s free=%d asked=%d", each, free, asked)
        await self._events.record(claim, note, resource=RESOURCE_CLAIMS)
        for consumer in claim.status.reserved_for:
            pod = self._state.pods.store.by_uid(consumer.uid)
            if pod is not None and pod.metadata.namespace == claim.metadata.namespace:
                await self._events.record(pod, note)
