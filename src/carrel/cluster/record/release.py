"""Frees the record of GPUs by the word of an admin, who knows that nothing runs on them any more.

A node that does not answer cannot confirm that the containers of a pod are gone, so its GPUs stay set aside. An admin
who has switched it off knows. The pods that hold the GPUs are deleted without waiting for their node, and are removed
from the Leases. Before that an Event on the Node says who did it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.ids import NodeName
from carrel.kubernetes.cluster import ClusterError, Conflict, DeleteOptions, NotFound
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import Object
from carrel.kubernetes.objects.resources import NODES, PODS, Resource
from carrel.ledger.gpus import named
from carrel.ledger.shares import Holder

COMPONENT = "carrel-release"
RELEASED = "GPUReleased"
READY = "Ready"
CLAIM = "claim"
_SELF = Resource(Object, "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A GPU, or where the kubelet chooses a slot, and one pod that holds a part of it."""

    index: int
    holder: Holder
    pod: str
    """How far the pod is, as the API server says: `gone`, `ending` or `running`; of a ResourceClaim: `claim`."""


class GpuRelease:
    """On a cluster that was read."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def plan(self, node: NodeName, index: int | None = None) -> Sequence[HeldGpu]:
        """What would be freed: on all GPUs of the node, or on one."""
        leases = sorted(self._state.cluster_ledger.leases(), key=lambda lease: lease.record.index)
        records = [lease.record for lease in leases if lease.record.node == node]
        return [
            HeldGpu(record.index, share.holder, self._pod_state(share.holder))
            for record in records
            for share in record.shares
            if index is None or record.index == index
        ]

    def why_away(self, node: NodeName) -> str:
        """Why nobody can say what runs on the node; empty if the node answers."""
        there = self._state.nodes.store.get(node)
        if there is None:
            return "the cluster has no such Node"
        ready = next((each for each in there.status.conditions if each.type == READY), None)
        if ready is not None and ready.status != "True":
            return f"its kubelet is not ready since {ready.last_transition_time}"
        return self._state.cluster_ledger.why_silent(node)

    def still_held(self, node: NodeName, shown: Sequence[HeldGpu]) -> Sequence[HeldGpu]:
        """What of that is still so: others may have come since it was shown, and nobody has agreed to end them."""
        now = {(each.index, each.holder.uid): each for each in self.plan(node)}
        found = [now.get((each.index, each.holder.uid)) for each in shown]
        return [each for each in found if each is not None]

    async def release(self, node: NodeName, held: Sequence[HeldGpu], now: datetime) -> None:
        """Raises `ClusterError`. Doing it again continues where it stopped."""
        await self._tell(node, held, now)
        for each in held:
            if each.pod not in ("gone", CLAIM):
                await self._delete(each.holder)
            await self._state.lease_writer.remove_pod(node, each.index, each.holder.uid)

    async def _delete(self, holder: Holder) -> None:
        """Without waiting for the kubelet, which does not answer."""
        try:
            by_force = DeleteOptions(uid=holder.uid, grace_seconds=0)
            await self._state.cluster.delete(PODS, holder.name, holder.namespace, how=by_force)
        except (NotFound, Conflict):
            pass  # it is gone; another pod may have its name

    async def _tell(self, node: NodeName, held: Sequence[HeldGpu], now: datetime) -> None:
        there = self._state.nodes.store.get(node)
        if there is None:
            return
        what = ", ".join(f"{named(each.index)} from {each.holder}" for each in held)
        note = Note(RELEASED, f"{await self._who()} released {what} by hand", WARNING)
        await EventRecorder(self._state.cluster, COMPONENT, lambda: now).record(there, note, resource=NODES)

    async def _who(self) -> str:
        """As the API server knows us."""
        review = {"apiVersion": _SELF.api_version, "kind": _SELF.kind}
        try:
            answer = await self._state.cluster.create(_SELF, review)
        except ClusterError:
            return "somebody"
        return str(answer.get("status", {}).get("userInfo", {}).get("username") or "somebody")

    def _pod_state(self, holder: Holder) -> str:
        if holder.is_claim:
            return CLAIM
        pod = self._state.pods.store.by_uid(holder.uid)
        if pod is None:
            return "gone"
        return "ending" if is_ending(pod) else "running"
