"""The gate of Dynamic Resource Allocation: a scheduler's allocation is stored only if Carrel could take its GPUs.

kube-apiserver asks about each write that gives a ResourceClaim a device of ours (`manifests/dra.yaml`), whoever writes
it. The answer is yes when the Leases of all its GPUs name the claim, and no with the reason otherwise; then nothing is
held. Which GPUs it may have depends on the pod for which it is reserved. Two replicas, or a replica
and the extender, decide by the Leases' versions.

- Asked again about the same claim, because an answer was lost or the write had a conflict, the gate says the same.
- After a yes the write may still fail. The claim then holds a GPU that it does not have, until its next allocation or
  until the collector frees it (`allocation.claim_ends`); the GPU is never promised twice. If it fails again and again,
  the claim has to wait (`allocation_retries`).
- A dry run gets the same answer and takes nothing. Admin access takes nothing.

Of a new claim, and of a template for claims, it says early what the API server would change in silence.

The terms on which a claim gets GPUs are those of the pod for which a scheduler reserves it:

    its pod is booked          it gets GPUs that its booking covers, also those that are kept for it
    its pod is opportunistic   it leaves room for booked pods that wait, and its person may hold so much and no more
    it has no pod              as an opportunistic one, of nobody
    an admin exempts its pod   it gets what is free

A pod that did not come through Carrel's webhook gets nothing. Of several pods the first counts (`holders`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from carrel.admission.review import AdmissionRequest, ClaimReviews
from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects import mig, nvidia
from carrel.dialects.carrel import SHADOW
from carrel.dialects.protected_keys import Writer, account_of
from carrel.dialects.registry import asked_in_ways, dialects_of
from carrel.dialects.tier import tier_of
from carrel.ids import NO_POD, HolderId
from carrel.kubernetes.cluster import NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.gpus import Gpu, MiB
from carrel.ledger.ledger import LedgerError
from carrel.ledger.placement import Placement, why_not_on
from carrel.ledger.precedence import WAITED_FOR
from carrel.ledger.refusals import Refusal
from carrel.ledger.requests import ANY_SLICE, WHOLE, Memory, Request
from carrel.ledger.shares import Coverage, Holder, Share
from carrel.ledger.tiers import Tier
from carrel.parsing import Malformed
from carrel.resource_claims import dra
from carrel.resource_claims.device_claims import DeviceClaims
from carrel.resource_claims.dra import DevicePlace
from carrel.resource_claims.gate.allocation_retries import AllocationRetries
from carrel.resource_claims.objects import ClaimConsumer, ResourceClaim, ResourceClaimSpec


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    pod: Pod | None
    keeper: HolderId
    """In whose name it gets what is kept."""
    coverage: Coverage | None = None
    leaves_room: bool = True


class ClaimTermsLookup:
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def of(self, holder: Holder, pods: Sequence[Pod]) -> ClaimTerms | Refusal:
        """`pods`: for which the claim is reserved, in that order."""
        pod = next((each for each in pods if not is_ending(each)), None)
        if pod is None:
            return ClaimTerms(None, holder.uid)
        if (unsealed := self._state.requests.why_not_sealed(pod)) is not None:
            return unsealed
        if tier_of(pod) is Tier.BOOKED and self._state.pods.store.by_uid(pod.metadata.uid) is None:
            why = "Carrel's webhook has not seen it yet"
            return Refusal(f"{subject(pod.metadata)} may be booked, and {why}; a scheduler tries again by itself")
        facts = self._state.pod_facts(pod)
        return ClaimTerms(pod, facts.keeper, facts.coverage, facts.leaves_room)

    def why_not(self, terms: ClaimTerms, placement: Placement, new: Sequence[tuple[Gpu, Share]]) -> Refusal | None:
        """Why the claim may not have what it does not hold yet; None if it may."""
        for gpu, share in new:
            if (why := self._why_not_on(terms, gpu, share)) is not None:
                return why
        if not new or not terms.leaves_room:
            return None
        if terms.pod is not None:
            parts = [share.memory for _, share in new if share.memory is not None]
            asked = Request(len(new), Memory(max(parts)) if parts else WHOLE)
            over = self._state.person_limit.why_over(self._state.pod_facts(terms.pod), asked)
            if over is not None:
                return over
        with self._state.precedence.served(placement.node):
            left = [gpu for gpu, share in new if self._why_not_on(terms, gpu, share) is not None]
        return Refusal(f"{left[0]} has {WAITED_FOR}") if left else None

    def _why_not_on(self, terms: ClaimTerms, gpu: Gpu, share: Share) -> Refusal | None:
        # The claim's selectors have chosen it: who allocates it asks for such a slice.
        slices = ANY_SLICE if gpu.slice is not None else ""
        request = Request(1, WHOLE if share.memory is None else Memory(share.memory), slices=slices)
        covered = self._state.covered_pods.of(terms.pod.metadata.uid) if terms.pod is not None else None
        if covered is not None:
            request = covered.narrowed(request)
        return why_not_on(self._state.ledger, gpu, request, terms.keeper)


class ClaimGate(ClaimReviews):
    def __init__(
        self, state: ClusterState, device_claims: DeviceClaims, trusted: AbstractSet[str] = frozenset()
    ) -> None:
        """`trusted`: who may write shadow claims, besides the controller."""
        self._state = state
        self._shadow_writers = {account_of(Writer.CONTROLLER, state.options.namespace), *trusted}
        self._device_claims = device_claims
        self._terms = ClaimTermsLookup(state)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._retries = AllocationRetries()
        device_claims.claims.on_change(self._on_claim)

    async def decide(self, request: AdmissionRequest) -> Refusal | None:
        """None: the write may pass. Raises `Malformed`, and `ClusterError` if the Leases could not be written."""
        claim, before = _claim(request.object), _claim(request.old_object)
        if claim is None or (before is not None and before.status.allocation is not None):
            return None  # it has its devices already: they cannot change, only go
        taken = dra.allocated(claim, self._device_claims.drivers)
        if not taken:
            return None
        if self._device_claims.is_shadow(claim):
            # It shows what is on Leases already. A scheduler that would allocate it would do so past the ledger.
            is_ours = request.user.name in self._shadow_writers
            return None if is_ours else Refusal(f"only Carrel's controller allocates claims with the label {SHADOW}")
        gpus = self._gpus(taken)
        if isinstance(gpus, Refusal):
            return gpus
        if not gpus:
            return None
        pods = await self._pods(claim)
        refusal = _why_asked_twice(claim, pods)
        if refusal is not None:
            return refusal
        holder = dra.holder_of_claim(claim)
        async with self._locks.setdefault(holder.uid, asyncio.Lock()):
            placement = self._placement(gpus, holder, pods)
            if isinstance(placement, Refusal) or request.dry_run:
                return placement if isinstance(placement, Refusal) else None
            now = self._state.options.clock()
            if why := self._retries.why_not(holder.uid, now):
                return Refusal(f"{holder}: {why}")
            refusal = await self._take(placement, holder)
            if refusal is None:
                self._retries.approved(holder.uid, now)
            return refusal

    def why_not_new(self, request: AdmissionRequest) -> Refusal | None:
        if request.operation != "CREATE" or request.subresource or request.object is None:
            return None
        refusal = self._device_claims.why_not_divided(_spec(request.object))
        name = request.name or "without a name yet"
        return Refusal(f"{request.kind} {request.namespace}/{name}: {refusal}") if refusal is not None else None

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        claim = new or old
        if claim is not None and (new is None or new.status.allocation is not None):
            self._retries.forget(claim.metadata.uid)

    def _gpus(self, taken: Mapping[DevicePlace, MiB | None]) -> dict[Gpu, MiB | None] | Refusal:
        """How much of which GPU; None: the whole of it."""
        gpus: dict[Gpu, MiB | None] = {}
        for place, memory in taken.items():
            uuid = self._device_claims.uuid_of(place)
            entry = self._state.ledger.entry(uuid) if uuid else None
            if entry is None and uuid.startswith(mig.UUID):
                if (why := self._why_not_mig(place)) is not None:
                    return why
                continue
            if entry is None:
                known = f"is {uuid}, which no agent of Carrel reports" if uuid else "is in no slice yet"
                return Refusal(f"device {place} {known}; a scheduler tries again by itself")
            gpus[entry.gpu] = None if memory is None or memory >= entry.gpu.memory else memory
            if memory is not None and memory > entry.gpu.memory:
                return Refusal(f"{entry.gpu} has {entry.gpu.memory:,} MiB in all, {memory:,} MiB asked")
        nodes = sorted({gpu.node for gpu in gpus})
        if len(nodes) > 1:
            return Refusal(f"the allocation has GPUs of {' and '.join(nodes)}; a claim gets GPUs of one node")
        return gpus

    def _why_not_mig(self, place: DevicePlace) -> Refusal | None:
        """A MIG slice of a GPU that Carrel gives to nobody is not counted. NVIDIA's driver can also make slices of
        a GPU that is whole, and that Carrel may have promised."""
        parent = self._device_claims.uuid_of(place, dra.PARENT_UUID)
        entry = self._state.ledger.entry(parent) if parent else None
        if entry is not None and entry.gpu.unusable and not entry.shares:
            return None
        of = f"{entry.gpu}, which Carrel hands out as a whole" if entry else "a GPU that Carrel does not know"
        return Refusal(f"device {place} is a MIG slice of {of}")

    def _placement(self, gpus: Mapping[Gpu, MiB | None], holder: Holder, pods: Sequence[Pod]) -> Placement | Refusal:
        """What is to be recorded, or why the GPUs cannot be had, by what this process knows. What the claim holds
        already, it keeps on the terms on which it was taken: also what Carrel itself allocates."""
        placement, held = _placement(gpus), self._state.ledger.shares_of(holder.uid)
        wanted = list(zip(placement.gpus, placement.shares(holder), strict=True))
        for gpu, share in wanted:
            if (before := held.get(gpu.uuid)) is not None and before.memory != share.memory:
                return Refusal(
                    f"another amount of {gpu} is still recorded for {holder}; it is freed within two minutes"
                )
        new = [(gpu, share) for gpu, share in wanted if gpu.uuid not in held]
        if not new:
            known = next((held[gpu.uuid].coverage for gpu in placement.gpus), None)
            return replace(placement, coverage=known)
        terms = self._terms.of(holder, pods)
        if isinstance(terms, Refusal):
            return terms
        user = terms.pod.metadata.uid if terms.pod is not None else NO_POD
        return self._terms.why_not(terms, placement, new) or replace(placement, coverage=terms.coverage, for_pod=user)

    async def _take(self, placement: Placement, holder: Holder) -> Refusal | None:
        writer = self._state.lease_writer
        try:
            refusal = await writer.take(placement, holder)
        except LedgerError as error:
            return Refusal(str(error))  # the ledger knows a reason that `why_not_on` does not
        if refusal is None:
            writer.finish_bind(holder.uid)
        return refusal

    # --- the pods that use it ----------------------------------------------------------------------------------------

    async def _pods(self, claim: ResourceClaim) -> Sequence[Pod]:
        found = [await self._pod(consumer, claim.metadata.namespace) for consumer in claim.status.reserved_for]
        return [pod for pod in found if pod is not None]

    async def _pod(self, consumer: ClaimConsumer, namespace: str) -> Pod | None:
        """None: it is no pod, or it is gone."""
        if not consumer.is_pod:
            return None
        pod = self._state.pods.store.by_uid(consumer.uid)
        if pod is not None:
            return pod
        try:  # the scheduler's cache may be ahead of ours
            found = msgspec.convert(await self._state.cluster.get(PODS, consumer.name, namespace), Pod)
        except NotFound:
            return None
        return found if found.metadata.uid == consumer.uid else None


def _why_asked_twice(claim: ResourceClaim, pods: Sequence[Pod]) -> Refusal | None:
    """A pod that asks for GPUs in another dialect too would be promised both. Admission says so when the pod is
    created, if the claim is known by then. A claim that a scheduler made for `nvidia.com/gpu` is that resource."""
    is_made = dra.is_for_extended_resource(claim)
    for pod in pods:
        if others := [each for each in dialects_of(pod) if not (is_made and each is nvidia.DIALECT)]:
            return asked_in_ways(pod, [*(each.words for each in others), f"ResourceClaim {claim.metadata.name}"])
    return None


def _placement(gpus: Mapping[Gpu, MiB | None]) -> Placement:
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    request = Request(len(ordered), WHOLE)
    return Placement(ordered[0].node, tuple(ordered), request, memory=tuple(gpus[gpu] for gpu in ordered))


def _claim(document: Mapping[str, object] | None) -> ResourceClaim | None:
    try:
        return None if document is None else msgspec.convert(document, ResourceClaim)
    except msgspec.ValidationError as error:
        raise Malformed("ResourceClaim", "the claim", "something else", str(error)) from None


def _spec(document: Mapping[str, Any]) -> ResourceClaimSpec:
    """Read the spec of a claim, or of a template's claims. What cannot be read, the API server itself refuses."""
    spec = document.get("spec") or {}
    try:
        return msgspec.convert(spec.get("spec", spec), ResourceClaimSpec)
    except msgspec.ValidationError:
        return ResourceClaimSpec()
