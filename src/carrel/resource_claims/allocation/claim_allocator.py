"""Allocates the ResourceClaims of booked pods, so that the GPUs which are kept for such a pod are its own.

A scheduler takes the first GPU that looks free. It may try one that another booking covers, or one of another model
than was booked, again and again. So when a scheduler has failed to place a booked pod and there is room for it, Carrel
chooses the GPUs and allocates the claims, and every scheduler only follows:

    1. the Leases of the GPUs name the claim     a crash after this leaves GPUs that the next round uses
    2. the allocation is written into the claim  only if nobody has changed the claim; the gate lets it pass, because
                                                 the Leases name the claim already. It is reserved for the pod,
                                                 so that Kubernetes frees it if the pod goes before it is placed

If a scheduler was faster, what was taken is given back. A scheduler that cannot follow, for want of CPU for example,
removes the allocation; the claim is then left to it for a while. A claim that says more than Carrel understands
(`selectors`) is never allocated here.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from carrel.cluster.pod_progress import could_not_be_scheduled, holder_of, is_waiting
from carrel.cluster.state import ClusterState
from carrel.dialects.lent_gpus import is_lent
from carrel.ids import GpuUuid, HolderId, NodeName, ResourceClaimUid
from carrel.kubernetes.cluster import Conflict, Forbidden, Invalid, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpus import Gpu
from carrel.ledger.placement import Placement, WaitingPod, candidates, place
from carrel.ledger.requests import Request
from carrel.ledger.shares import Coverage
from carrel.resource_claims.allocation.allocation_words import (
    WantedGpu,
    given,
    wanted_gpus,
    write_allocation,
    write_consumer,
)
from carrel.resource_claims.device_claims import DeviceClaims
from carrel.resource_claims.dra import DELETE_PROTECTION, holder_of_claim, is_for_extended_resource
from carrel.resource_claims.objects import RESOURCE_CLAIMS, ResourceClaim
from carrel.resource_claims.shadows.shadow_words import AdvertisedDevice

log = logging.getLogger(__name__)

TIME_TO_SEE_S = 0.2
"""Until the gate, which watches the Leases, knows what was just taken. If it does not, it is tried again later."""
AGAIN_AFTER = timedelta(seconds=60)
"""A claim that a scheduler has deallocated, or whose allocation was refused, is left to the scheduler for so long."""


class ClaimAllocator:
    def __init__(self, state: ClusterState, device_claims: DeviceClaims) -> None:
        self._state = state
        self._device_claims = device_claims
        self._left_alone_since: dict[
            ResourceClaimUid, datetime
        ] = {}  # uid of a claim → when Carrel allocated it, or failed to

    async def round(self) -> list[str]:
        """Allocates what is due. The names of the pods whose claims were allocated."""
        isolation = self._state.isolation
        interrupted = isolation.found("claim_allocation", self._claims_with_gpus(), self._if_interrupted, str)
        waiting = [*self._state.booked_waiting(), *interrupted]
        due = isolation.found("claim_allocation", waiting, self._if_due, lambda each: each.holder.full_name)
        done = await isolation.each("claim_allocation", due, self._allocate, lambda each: each[0].holder.full_name)
        return [name for name in done if name]

    def _if_due(self, waiting: WaitingPod) -> tuple[WaitingPod, Pod] | None:
        pod = self._state.pods.store.by_uid(waiting.holder.uid)
        if pod is None or not is_waiting(pod) or not could_not_be_scheduled(pod):
            return None
        if is_lent(pod, self._state.options.now()):
            return None  # also one whose claim still has its GPUs
        has_claims = bool(self._device_claims.gpu_claims_of(pod))
        return (waiting, pod) if has_claims and self._device_claims.is_understood(pod) else None

    def _claims_with_gpus(self) -> set[HolderId]:
        shares = (share for lease in self._state.cluster_ledger.leases() for share in lease.record.shares)
        return {share.holder.uid for share in shares if share.holder.is_claim}

    def _if_interrupted(self, uid: HolderId) -> WaitingPod | None:
        """The booked pod that waits for a claim which has its GPUs on Leases, but no allocation."""
        claim = self._device_claims.claims.store.by_uid(uid)
        pod = self._state.holders.pod_of(uid)
        if claim is None or claim.status.allocation is not None or pod is None:
            return None
        covered, request = self._state.covered_pods.of(pod.metadata.uid), self._device_claims.request_of(pod)
        if covered is None or request is None:
            return None
        return WaitingPod(
            holder_of(pod), request, self._state.eligible_nodes.nodes_for(pod), covered.entitlement.booking
        )

    async def _allocate(self, due: tuple[WaitingPod, Pod]) -> str:
        waiting, pod = due
        asked = [each for each in self._device_claims.gpu_claims_of(pod) if not each.is_allocated]
        claims = [each.claim for each in asked if each.claim is not None]
        if not claims or len(claims) < len(asked) or not all(map(self._is_left_to_us, claims)):
            return ""
        gpus = self._gpus_for(waiting, claims)
        devices = self._device_claims.devices_on(gpus[0].node) if gpus else {}
        if not all(gpu.uuid in devices for gpu in gpus):
            return ""
        divides = all(devices[gpu.uuid].divides for gpu in gpus)
        for claim in claims:
            wanted = wanted_gpus(claim, self._device_claims.is_gpu_class, divides)
            chosen = given(wanted, gpus, self._state.ledger.shares_of(claim.metadata.uid))
            if chosen is None or not await self._allocate_claim(
                due, claim, list(zip(wanted, chosen, strict=True)), devices
            ):
                return ""
            gpus = [gpu for gpu in gpus if gpu not in chosen]
        log.info("claims_allocated pod=%s claims=%d", waiting.holder, len(claims))
        return waiting.holder.full_name

    def _is_left_to_us(self, claim: ResourceClaim) -> bool:
        now = self._state.options.now()
        self._left_alone_since = {uid: at for uid, at in self._left_alone_since.items() if now < at + AGAIN_AFTER}
        # One that a scheduler made for a resource is gone if the scheduler did not get it.
        return claim.metadata.uid not in self._left_alone_since and not is_for_extended_resource(claim)

    def _gpus_for(self, waiting: WaitingPod, claims: Sequence[ResourceClaim]) -> list[Gpu]:
        """The GPUs of one node that the claims get: those that they hold already, and new ones."""
        ledger = self._state.ledger
        shares = [share for claim in claims for share in ledger.shares_of(claim.metadata.uid).values()]
        held = [entry.gpu for entry in (ledger.entry(share.gpu) for share in shares) if entry is not None]
        missing = waiting.request.gpus - len(held)
        if missing <= 0:
            return held
        request, keeper = replace(waiting.request, gpus=missing), waiting.keeper(ledger)
        nodes = tuple({gpu.node for gpu in held}) or waiting.nodes
        for node in candidates(ledger, request, nodes, keeper).fitting:
            found = place(ledger, self._within_devices(request, node), node, keeper)
            if isinstance(found, Placement):
                return [*held, *found.gpus]
        return held

    def _within_devices(self, request: Request, node: NodeName) -> Request:
        """Not on GPUs that no scheduler would give: tainted, in use where devices are not divided, or in no slice."""
        devices = self._device_claims.devices_on(node)
        unfit = {
            entry.gpu.uuid
            for entry in self._state.ledger.entries(node)
            if (device := devices.get(entry.gpu.uuid)) is None
            or device.is_tainted
            or (entry.shares and not device.divides)
        }
        selector = request.selector
        return replace(request, selector=replace(selector, not_on=selector.not_on | unfit)) if unfit else request

    async def _allocate_claim(
        self,
        due: tuple[WaitingPod, Pod],
        claim: ResourceClaim,
        pairs: Sequence[tuple[WantedGpu, Gpu]],
        devices: Mapping[GpuUuid, AdvertisedDevice],
    ) -> bool:
        (waiting, pod), holder, writer = due, holder_of_claim(claim), self._state.lease_writer
        placement = Placement(
            pairs[0][1].node,
            tuple(gpu for _, gpu in pairs),
            Request(len(pairs), waiting.request.amount),
            Coverage(waiting.booking, self._state.options.now()),
            tuple(each.on(gpu) for each, gpu in pairs),
            pod.metadata.uid,
        )
        if (refusal := await writer.take(placement, holder)) is not None:
            log.info("claim_not_allocated claim=%s why=%r", holder, str(refusal))
            return False
        allocation = write_allocation(claim, pairs, devices, self._state.options.now())
        try:
            await self._write(claim, {"allocation": allocation, "reservedFor": [write_consumer(waiting.holder)]})
        except (Conflict, NotFound, Invalid, Forbidden) as refused:
            # A scheduler was faster, the claim is gone, or the gate does not know our Leases.
            log.info("claim_not_allocated claim=%s why=%r", holder, str(refused))
            await writer.give_back(holder.uid)
            if not isinstance(refused, Conflict):
                self._left_alone_since[claim.metadata.uid] = self._state.options.now()
            return False
        writer.finish_bind(holder.uid)
        self._left_alone_since[claim.metadata.uid] = self._state.options.now()
        return True

    async def _write(self, claim: ResourceClaim, status: dict[str, object]) -> None:
        metadata, version = claim.metadata, claim.metadata.resource_version
        if DELETE_PROTECTION not in metadata.finalizers:
            as_seen = {
                "uid": metadata.uid,
                "resourceVersion": version,
                "finalizers": [*metadata.finalizers, DELETE_PROTECTION],
            }
            patch = MergePatch({"metadata": as_seen})
            written = await self._state.cluster.patch(RESOURCE_CLAIMS, metadata.name, patch, metadata.namespace)
            version = written["metadata"]["resourceVersion"]
        await asyncio.sleep(TIME_TO_SEE_S)
        as_seen = {"uid": metadata.uid, "resourceVersion": version}
        patch = MergePatch({"metadata": as_seen, "status": status})
        await self._state.cluster.patch(RESOURCE_CLAIMS, metadata.name, patch, metadata.namespace, subresource="status")
