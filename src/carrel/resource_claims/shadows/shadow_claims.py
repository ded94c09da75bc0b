"""Keeps the shadow claims in step with what pods hold (`shadow_plan` says which there should be). The leader does it.

Level-triggered, node by node: a change of a Lease, a slice or a shadow makes its node due, and all nodes are looked at
from time to time. Changes of a moment are taken together, and the rate of writes is limited: a shadow that comes late
costs a scheduler a second try, and nothing else.

A shadow is created and then allocated; it is deallocated, which wakes pods that wait, and then deleted. Whatever is
interrupted is finished the next time.
"""

import asyncio
import contextlib
import logging

from carrel.cluster.state import ClusterState
from carrel.dialects.gpu_lease import read_lease_name
from carrel.ids import NO_NODE, HolderId, NodeName
from carrel.kubernetes.cluster import (
    AlreadyExists,
    ClusterError,
    DeleteOptions,
    MergePatch,
    NotFound,
)
from carrel.kubernetes.objects.kinds import Lease
from carrel.kubernetes.timing import Backoff
from carrel.kubernetes.work_queue import WorkQueue, run_worker
from carrel.resource_claims.device_claims import DeviceClaims
from carrel.resource_claims.objects import RESOURCE_CLAIMS, ResourceClaim, ResourceSlice
from carrel.resource_claims.shadows import shadow_words as dra_shadows
from carrel.resource_claims.shadows.shadow_words import UNALLOCATED, NodeView, Shadow, wanted_shadows

log = logging.getLogger(__name__)

SETTLE_S = 0.3
"""Many shares of a node change together; one that lives shorter needs no shadow."""
SWEEP_S = 30.0
"""How often all nodes are looked at: GPUs are set aside without a change of a Lease."""
WRITES_PER_S = 50
RETRY = Backoff(first_s=0.5, limit_s=30.0)


class ShadowClaims:
    def __init__(self, state: ClusterState, device_claims: DeviceClaims) -> None:
        self._state = state
        self._device_claims = device_claims
        self._due: WorkQueue[NodeName] = WorkQueue(backoff=RETRY)
        self._due.close()
        state.leases.on_change(self._on_lease)
        device_claims.claims.on_change(self._on_claim)
        device_claims.slices.on_change(self._on_slice)

    async def run(self) -> None:
        """While this process leads, until it is cancelled."""
        self._due = WorkQueue(backoff=RETRY)
        failed = self._state.isolation.count
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(run_worker(self._due, self._slowly, lambda _: failed("shadow")))
                tasks.create_task(self._sweep())
        finally:
            self._due.close()

    async def _sweep(self) -> None:
        while True:
            for node in self.nodes():
                self._due.add(node)
            await asyncio.sleep(SWEEP_S)

    async def _slowly(self, node: NodeName) -> None:
        await asyncio.sleep(await self.reconcile(node) / WRITES_PER_S)

    # --- changes -----------------------------------------------------------------------------------------------------

    def _on_lease(self, old: Lease | None, new: Lease | None) -> None:
        lease = new or old
        place = read_lease_name(lease.metadata.name) if lease is not None else None
        if place is not None:
            self._due.add_after(place[0], SETTLE_S)

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new or old
        if claim is not None and (node := self._device_claims.shadowed_node(claim)):
            self._due.add_after(node, SETTLE_S)

    def _on_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        found = new or old
        if found is not None and found.spec.driver in self._device_claims.drivers and found.spec.node_name:
            self._due.add_after(found.spec.node_name, SETTLE_S)

    # --- one node ----------------------------------------------------------------------------------------------------

    def nodes(self) -> set[NodeName]:
        """Those that advertise devices, and those of shadows."""
        drivers = self._device_claims.drivers
        advertising = {each.spec.node_name for each in self._device_claims.slices.store if each.spec.driver in drivers}
        shadowed = {self._device_claims.shadowed_node(each) for each in self._device_claims.claims.store}
        return (advertising | shadowed) - {NO_NODE}

    async def reconcile(self, node: NodeName) -> int:
        """Writes what is missing, then removes what is too much. How many writes that took. If some of them failed, the
        first error is raised when all others are done: a `ClusterError`."""
        there, ledger = {each.metadata.name: each for each in self._device_claims.shadows_on(node)}, self._state.ledger
        known = ledger.node(node)
        view = NodeView(
            ledger.entries(node) if known is not None else (),
            self._device_claims.devices_on(node),
            known.unusable if known is not None else "",
            self._has_claims,
        )
        wanted, writes = wanted_shadows(view), 0
        errors: list[ClusterError] = []
        for name in (*wanted, *(name for name in there if name not in wanted)):
            try:
                writes += await self._set_right(wanted.get(name), there.get(name))
            except ClusterError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return writes

    async def _set_right(self, wanted: Shadow | None, found: ResourceClaim | None) -> int:
        if wanted is None:
            return await self._remove(found) if found is not None else 0
        if found is None:
            return await self._create(wanted)
        if found.status.allocation is None:
            return await self._allocate(wanted)
        if not dra_shadows.shows(found, wanted, self._device_claims.drivers):
            return await self._remove(found)  # somebody has changed it; the watch makes the node due again
        return 0

    def _has_claims(self, uid: HolderId) -> bool:
        pod = self._state.pods.store.by_uid(uid)
        return pod is not None and (bool(pod.spec.resource_claims) or self._state.requests.asks_any_scheduler(pod))

    async def _create(self, shadow: Shadow) -> int:
        with contextlib.suppress(AlreadyExists):  # the cache is older than our own last write
            body = dra_shadows.write_shadow(shadow)
            await self._state.cluster.create(RESOURCE_CLAIMS, body, self._state.options.namespace)
            return 1 + await self._allocate(shadow)
        return 1

    async def _allocate(self, shadow: Shadow) -> int:
        lease = self._state.cluster_ledger.lease(shadow.lease)
        status = dra_shadows.write_status(shadow, lease.uid if lease else "", self._state.options.now())
        await self._patch(shadow.name, {"status": status})
        return 1

    async def _remove(self, claim: ResourceClaim) -> int:
        metadata, writes = claim.metadata, 1
        with contextlib.suppress(NotFound):
            if claim.status.allocation is not None:
                await self._patch(metadata.name, {"metadata": {"uid": metadata.uid}, "status": UNALLOCATED})
                writes += 1
            how = DeleteOptions(uid=metadata.uid)
            await self._state.cluster.delete(RESOURCE_CLAIMS, metadata.name, metadata.namespace, how=how)
        return writes

    async def _patch(self, name: str, document: dict[str, object]) -> None:
        namespace = self._state.options.namespace
        await self._state.cluster.patch(RESOURCE_CLAIMS, name, MergePatch(document), namespace, subresource="status")
