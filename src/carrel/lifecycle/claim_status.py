"""Writes on every GpuClaim how far it is: which cards its pod has, or what it waits for.

    Pending     no pod names it, or its pod has no cards yet; the message says why
    Reserved    the cards are its pod's by their Leases; the pod is not bound yet
    Bound       the pod is bound to the node of its cards
    Failed      the claim cannot be met as it is written, or its pod was bound without cards

Only Leases give cards: an annotation or a field that a user can write changes nothing here. A claim may be named by
several pods, each of which gets cards of its own: then the status is that of the oldest one that is alive, and the
message says how many there are. A pod that has finished does not count. The status is written only when it changes,
on the version that was read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carrel.dialects import gpuclaim
from carrel.dialects.gpuclaim import ClaimPhase
from carrel.dialects.options import DialectOptions
from carrel.kubernetes.cluster import Cluster, MergePatch, NotFound
from carrel.kubernetes.objects.resources import GPU_CLAIMS
from carrel.kubernetes.objects.shapes import GpuClaim, Pod
from carrel.leases.cluster_ledger import ClusterLedger
from carrel.leases.pods import FINISHED
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed


@dataclass(frozen=True, slots=True)
class Standing:
    """What the status of a claim says."""

    phase: ClaimPhase
    message: str = ""
    node: str = ""
    ids: tuple[int, ...] = ()

    def is_written_on(self, claim: GpuClaim) -> bool:
        status = claim.status
        return (status.phase, status.message, status.node_name, tuple(status.gpu_ids), status.observed_generation) == (
            self.phase.value,
            self.message,
            self.node,
            self.ids,
            claim.metadata.generation,
        )


@dataclass(frozen=True, slots=True)
class ClaimContext:
    """What is known about the pods of claims."""

    cluster_ledger: ClusterLedger
    pods_of: Callable[[GpuClaim], Sequence[Pod]]
    """The pods that name a claim."""
    why: Callable[[Pod], Refusal | None]
    dialect_options: DialectOptions


class Claims:
    def __init__(self, cluster: Cluster, known: ClaimContext) -> None:
        self._cluster = cluster
        self._known = known

    async def write(self, claim: GpuClaim) -> Standing | None:
        """Brings the status up to date. None: it was, or the claim is gone. Raises `Conflict` if it has changed."""
        standing = standing_of(claim, self._known)
        if standing.is_written_on(claim):
            return None
        status = gpuclaim.claim_status(
            standing.phase, standing.node, standing.ids, standing.message, claim.metadata.generation
        )
        metadata = claim.metadata
        patch = MergePatch({"metadata": {"resourceVersion": metadata.resource_version}, "status": status})
        try:
            await self._cluster.patch(GPU_CLAIMS, metadata.name, patch, metadata.namespace, subresource="status")
        except NotFound:
            return None
        return standing


def standing_of(claim: GpuClaim, known: ClaimContext) -> Standing:
    wrong = _what_is_wrong(claim, known.dialect_options)
    if wrong:
        return Standing(ClaimPhase.FAILED, wrong)
    pods = sorted(known.pods_of(claim), key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
    living = [pod for pod in pods if pod.status.phase not in FINISHED]
    if not pods:
        return Standing(ClaimPhase.PENDING, "no pod names this claim yet")
    if not living:
        return Standing(ClaimPhase.PENDING, f"pod {pods[-1].metadata.name} has finished; no other names this claim")
    standing = _of_pod(living[0], known)
    if len(living) == 1:
        return standing
    shown = f"shown is {living[0].metadata.name}, the oldest of {len(living)} pods that name this claim"
    message = f"{standing.message}; {shown}" if standing.message else shown
    return Standing(standing.phase, message, standing.node, standing.ids)


def _of_pod(pod: Pod, known: ClaimContext) -> Standing:
    name, node, leases = pod.metadata.name, pod.spec.node_name, known.cluster_ledger.leases_of(pod.metadata.uid)
    here = [lease for lease in leases if lease.record.node == node]
    if here:
        going = f"pod {name} is going; its cards are free when it is gone" if pod.metadata.deletion_timestamp else ""
        return Standing(ClaimPhase.BOUND, going, node, known.cluster_ledger.indices_of(here))
    if node:
        return Standing(ClaimPhase.FAILED, f"pod {name} was bound to {node}, but no Lease there gives it a card", node)
    if leases:
        first = leases[0].record.node
        on_one = [lease for lease in leases if lease.record.node == first]
        return Standing(
            ClaimPhase.RESERVED, f"pod {name} is being bound to {first}", first, known.cluster_ledger.indices_of(on_one)
        )
    refusal = known.why(pod)
    return Standing(
        ClaimPhase.PENDING, refusal.reason if refusal else f"pod {name} waits for the scheduler; it has room"
    )


def _what_is_wrong(claim: GpuClaim, dialect_options: DialectOptions) -> str:
    """With the claim as it is written; empty if it can be met some day."""
    try:
        request = gpuclaim.request_of(claim, dialect_options.shared_claims_per_card)
    except Malformed as malformed:
        return str(malformed)
    return request.reason if isinstance(request, Refusal) else ""
