"""Writes the status of every GpuClaim: which GPUs its pod has, or what it waits for.

    Pending     no pod names it, or its pod has no GPUs yet; the message says why
    Reserved    the Leases give the GPUs to its pod; the pod is not bound yet
    Bound       the pod is bound to the node of its GPUs
    Released    its pod has finished, and no other names it
    Failed      the claim is impossible as it is written, or its pod was bound without GPUs

Only Leases give GPUs: an annotation or a field that a user can write changes nothing here. Several pods may name one
claim, and each gets GPUs of its own: then the status is that of the oldest one that has not finished, and the message
says how many there are. The status is written only when it changes, on the version that was read.

Where the kubelet chooses, a pod that also asks it for GPUs is bound before anybody knows which it gets. When the agent
has seen them, the pod is told, too late for its environment.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from carrel.cluster.pod_progress import FINISHED
from carrel.cluster.record.slot_gpus import indices_of
from carrel.cluster.state import ClusterState
from carrel.cluster.watches import NAMESPACE_OF
from carrel.dialects import gpuclaim
from carrel.dialects.gpuclaim import ClaimPhase
from carrel.dialects.gpuclaim_objects import GPU_CLAIMS, GpuClaim
from carrel.dialects.options import DialectOptions
from carrel.ids import NO_NODE, NodeName
from carrel.kubernetes.cluster import Conflict, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from carrel.parsing import Malformed
from carrel.parsing.printable import printable


@dataclass(frozen=True, slots=True)
class ClaimState:
    """The content of a claim's status."""

    phase: ClaimPhase
    message: str = ""
    node: NodeName = NO_NODE
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


class ClaimStatusWriter:
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def pods_of(self, claim: GpuClaim) -> Sequence[Pod]:
        """The pods that name a claim."""
        pods = self._state.pods.store.find(NAMESPACE_OF, claim.metadata.namespace)
        return [pod for pod in pods if pod.metadata.annotations.get(gpuclaim.CLAIM) == claim.metadata.name]

    async def write(self, claim: GpuClaim) -> ClaimState | None:
        """Updates the status, then tells the pods. None: it was up to date, or the claim is gone. Raises
        `ClusterError`: `Conflict` if the claim has changed, another if a pod cannot be told."""
        written = await self._write_status(claim)
        for pod in self.pods_of(claim):
            await self._tell(pod)
        return written

    async def _write_status(self, claim: GpuClaim) -> ClaimState | None:
        state = self.state_of(claim)
        state = replace(state, message=printable(state.message))  # kubectl prints it as it is
        if state.is_written_on(claim):
            return None
        status = gpuclaim.claim_status(state.phase, state.node, state.ids, state.message, claim.metadata.generation)
        metadata = claim.metadata
        patch = MergePatch({"metadata": {"resourceVersion": metadata.resource_version}, "status": status})
        try:
            await self._state.cluster.patch(GPU_CLAIMS, metadata.name, patch, metadata.namespace, subresource="status")
        except NotFound:
            return None
        return state

    async def _tell(self, pod: Pod) -> None:
        """Which GPUs the kubelet gave to a pod, if its Binding could not say it."""
        metadata, node, ledger = pod.metadata, pod.spec.node_name, self._state.cluster_ledger
        if (
            gpuclaim.ALLOCATED in metadata.annotations
            or pod.status.phase in FINISHED
            or not ledger.kubelet_chooses(node)
        ):
            return
        leases = ledger.leases_of(metadata.uid)
        ids = indices_of(ledger, leases, metadata.uid)
        if leases and len(ids) == len(leases):
            notes = gpuclaim.write_allocated(node, ids)
            patch = MergePatch({"metadata": {"uid": metadata.uid, "annotations": notes}})
            with suppress(NotFound, Conflict):  # it is gone, or another has its name
                await self._state.cluster.patch(PODS, metadata.name, patch, metadata.namespace)

    def state_of(self, claim: GpuClaim) -> ClaimState:
        wrong = _why_impossible(claim, self._state.options.dialect_options)
        if wrong:
            return ClaimState(ClaimPhase.FAILED, wrong)
        pods = sorted(self.pods_of(claim), key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        living = [pod for pod in pods if pod.status.phase not in FINISHED]
        if not pods:
            return ClaimState(ClaimPhase.PENDING, "no pod names this claim yet")
        if not living:
            last = pods[-1].metadata.name
            return ClaimState(ClaimPhase.RELEASED, f"pod {last} has finished; no other names this claim")
        state = self._of_pod(living[0])
        if len(living) == 1:
            return state
        shown = f"shown is {living[0].metadata.name}, the oldest of {len(living)} pods that name this claim"
        message = f"{state.message}; {shown}" if state.message else shown
        return ClaimState(state.phase, message, state.node, state.ids)

    def _of_pod(self, pod: Pod) -> ClaimState:
        name, node, ledger = pod.metadata.name, pod.spec.node_name, self._state.cluster_ledger
        leases = ledger.leases_of(pod.metadata.uid)
        here = [lease for lease in leases if lease.record.node == node]
        if here:
            ids = indices_of(ledger, here, pod.metadata.uid)
            message = "" if ids else f"the kubelet of {node} chooses the GPUs; its agent has not said yet which"
            if pod.metadata.deletion_timestamp:
                message = f"pod {name} is being deleted; its GPUs are free when it is gone"
            return ClaimState(ClaimPhase.BOUND, message, node, ids)
        if node:
            message = f"pod {name} was bound to {node}, but no Lease there gives it a GPU"
            return ClaimState(ClaimPhase.FAILED, message, node)
        if leases:
            first = leases[0].record.node
            on_one = [lease for lease in leases if lease.record.node == first]
            ids = indices_of(ledger, on_one, pod.metadata.uid)
            return ClaimState(ClaimPhase.RESERVED, f"pod {name} is being bound to {first}", first, ids)
        refusal = self._state.waiting_reason.why(pod)
        return ClaimState(
            ClaimPhase.PENDING,
            refusal.reason if refusal else f"pod {name} waits for the scheduler; there is room for it",
        )


def _why_impossible(claim: GpuClaim, dialect_options: DialectOptions) -> str:
    """Why the claim can never be met as it is written; empty if it can."""
    try:
        request = gpuclaim.request_of(claim, dialect_options.shared_claims_per_gpu)
    except Malformed as malformed:
        return str(malformed)
    return request.reason if isinstance(request, Refusal) else ""
