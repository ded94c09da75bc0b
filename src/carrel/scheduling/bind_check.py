"""Whether a pod may be bound to a node by everything but its GPUs, as far as Carrel knows it.

kube-scheduler has checked all of this before it asks for a bind. Carrel checks it again, because the right to bind is
the right to put any pod on any node, past taints, cordons and selectors: a call that kube-scheduler did not make must
not do more than one that it did. What only kube-scheduler knows is not checked here: volumes, other pods, free CPU and
memory.

The cache may be a moment behind kube-scheduler's. So before a node is refused, it is read from the API server.
"""

from collections.abc import Callable
from dataclasses import dataclass

from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.objects.affinity import closed_by, may_run_on, untolerated_taints
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import NODES
from carrel.ledger.refusals import Refusal


@dataclass(frozen=True, slots=True)
class BindCheck:
    """Raises `ClusterError` if the API server does not answer."""

    cluster: Cluster
    node_named: Callable[[str], NodeObject | None]
    schedulers: frozenset[str] | None
    """Whose pods are bound; None: of all."""

    async def __call__(self, pod: Pod, node: str) -> Refusal | None:
        """Why the pod may not be bound to the node."""
        why = self._why_not_bound(pod, node)
        if why:
            return Refusal(f"{subject(pod.metadata)} {why}")
        if pod.spec.node_name == node:
            return None  # the answer to the bind before may have been lost
        known = self.node_named(node)
        if known is not None and not _why_not_on(pod, known):
            return None
        found = (await self.cluster.list(NODES, Selection(fields=f"metadata.name={node}"))).items
        why = _why_not_on(pod, found[0]) if found else "does not exist"
        return Refusal(f"{subject(pod.metadata)} may not run on {node}, which {why}") if why else None

    def _why_not_bound(self, pod: Pod, node: str) -> str:
        if pod.metadata.deletion_timestamp:
            return "is being deleted"
        if pod.spec.node_name not in ("", node):
            return f"is bound to {pod.spec.node_name} already"
        if self.schedulers is not None and pod.spec.scheduler_name not in self.schedulers:
            name = pod.spec.scheduler_name
            return f"belongs to the scheduler {name!r}, and this extender binds pods of others only (--schedulers)"
        return ""


def _why_not_on(pod: Pod, node: NodeObject) -> str:
    if taints := untolerated_taints(pod, node):
        return f"is {closed_by(taints[0], node.metadata.name)}; the pod does not tolerate that"
    if not may_run_on(pod, node):
        return "the pod's node selector or affinity excludes"
    return ""
