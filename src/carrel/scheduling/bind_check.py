"""Finds the pod that is to be bound, and says whether it may be bound to a node by everything but its GPUs.

kube-scheduler has checked all of this before it asks for a bind. Carrel checks it again, because the right to bind is
the right to put any pod on any node, past taints, cordons and selectors: a call that kube-scheduler did not make must
not do more than one that it did. What only kube-scheduler knows is not checked here: volumes, other pods, free CPU and
memory.

The cache may be a moment behind kube-scheduler's. So a pod that it does not have, and a node before it is refused, are
read from the API server.
"""

from dataclasses import dataclass

from carrel.dialects import nvidia
from carrel.ids import NodeName
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.objects.affinity import closed_by, may_run_on, untolerated_taints
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import resource_asked, resources_by_claim, subject
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.kubernetes.store import Store
from carrel.ledger.refusals import Refusal
from carrel.scheduling.extender_calls import BindArgs


@dataclass(frozen=True, slots=True)
class BindCheck:
    """Raises `ClusterError` if the API server does not answer."""

    cluster: Cluster
    pods: Store[Pod]
    nodes: Store[NodeObject]
    schedulers: frozenset[str] | None
    """Whose pods are bound; None: of all."""

    async def find_pod(self, args: BindArgs) -> Pod | Refusal:
        title, known = f"{args.namespace}/{args.pod}", self.pods.by_uid(args.uid)
        if known is not None:
            if (known.metadata.namespace, known.metadata.name) != (args.namespace, args.pod):
                return Refusal(f"uid {args.uid} is not that of pod {title}")
            if not self._may_just_have_got_a_claim(known, args.node):
                return known
        only_it = Selection(args.namespace, fields=f"metadata.name={args.pod}")
        found = (await self.cluster.list(PODS, only_it)).items
        if not found:
            return Refusal(f"pod {title} does not exist any more")
        if found[0].metadata.uid != args.uid:
            return Refusal(f"pod {title} is another pod now: its uid is {found[0].metadata.uid}, not {args.uid}")
        return found[0]

    def _may_just_have_got_a_claim(self, pod: Pod, node: NodeName) -> bool:
        """Whole GPUs of a node whose kubelet advertises none are had by a ResourceClaim, which kube-scheduler makes and
        notes on the pod right before the bind. With it the pod must not get others besides."""
        there = self.nodes.get(node)
        if there is None or there.status.allocatable.get(nvidia.GPU, "0") != "0":
            return False
        return resource_asked(pod, nvidia.GPU).total > 0 and nvidia.GPU not in resources_by_claim(pod)

    async def why_not(self, pod: Pod, node: NodeName) -> Refusal | None:
        """Why the pod may not be bound to the node; None if it may."""
        who, bound_to, scheduler = subject(pod.metadata), pod.spec.node_name, pod.spec.scheduler_name
        if pod.metadata.deletion_timestamp:
            return Refusal(f"{who} is being deleted")
        if bound_to not in ("", node):
            return Refusal(f"{who} is bound to {bound_to} already")
        if self.schedulers is not None and scheduler not in self.schedulers:
            others = "this extender binds pods of others only (pods.schedulers)"
            return Refusal(f"{who} belongs to the scheduler {scheduler!r}, and {others}")
        if bound_to == node:
            return None  # the answer to the bind before may have been lost
        known = self.nodes.get(node)
        if known is not None and not _why_not_on(pod, known):
            return None
        found = (await self.cluster.list(NODES, Selection(fields=f"metadata.name={node}"))).items
        why = _why_not_on(pod, found[0]) if found else "does not exist"
        return Refusal(f"{who} may not run on {node}, which {why}") if why else None


def _why_not_on(pod: Pod, node: NodeObject) -> str:
    if taints := untolerated_taints(pod, node):
        return f"is {closed_by(taints[0], node.metadata.name)}; the pod does not tolerate that"
    if not may_run_on(pod, node):
        return "the pod's node selector or affinity excludes"
    return ""
