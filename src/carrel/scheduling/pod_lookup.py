"""Finds the pod that is to be bound: in the cache, or at the API server, which may know it earlier."""

from collections.abc import Callable
from dataclasses import dataclass

from carrel.dialects import nvidia
from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.objects.kinds import NodeObject, Pod
from carrel.kubernetes.objects.pods import asks_for, resources_by_claim
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from carrel.scheduling.extender_calls import BindArgs


@dataclass(frozen=True, slots=True)
class PodLookup:
    """Raises `ClusterError` if the API server does not answer."""

    cluster: Cluster
    pod_by_uid: Callable[[str], Pod | None]
    node_named: Callable[[str], NodeObject | None] = lambda name: None

    async def __call__(self, args: BindArgs) -> Pod | Refusal:
        title = f"{args.namespace}/{args.pod}"
        known = self.pod_by_uid(args.uid)
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

    def _may_just_have_got_a_claim(self, pod: Pod, node: str) -> bool:
        """Whole GPUs of a node whose kubelet offers none are had by a ResourceClaim, which kube-scheduler makes and
        notes on the pod right before the bind. With it the pod must not get others besides."""
        there = self.node_named(node)
        if there is None or there.status.allocatable.get(nvidia.GPU, "0") != "0":
            return False
        return asks_for(pod, nvidia.GPU) and nvidia.GPU not in resources_by_claim(pod)
