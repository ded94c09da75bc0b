"""Finds the pod that is to be bound: in the cache, or with the API server, which may know it earlier."""

from collections.abc import Callable
from dataclasses import dataclass

from carrel.kubernetes.cluster import Cluster, Selection
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.refusals import Refusal
from carrel.scheduling.extender_calls import Binding


@dataclass(frozen=True, slots=True)
class PodLookup:
    """Raises `ClusterError` if the API server does not answer."""

    cluster: Cluster
    pod_by_uid: Callable[[str], Pod | None]

    async def __call__(self, binding: Binding) -> Pod | Refusal:
        title = f"{binding.namespace}/{binding.pod}"
        known = self.pod_by_uid(binding.uid)
        if known is not None:
            if (known.metadata.namespace, known.metadata.name) != (binding.namespace, binding.pod):
                return Refusal(f"uid {binding.uid} is not that of pod {title}")
            return known
        only_it = Selection(binding.namespace, fields=f"metadata.name={binding.pod}")
        found = (await self.cluster.list(PODS, only_it)).items
        if not found:
            return Refusal(f"pod {title} does not exist any more")
        if found[0].metadata.uid != binding.uid:
            return Refusal(f"pod {title} is another one now: its uid is {found[0].metadata.uid}, not {binding.uid}")
        return found[0]
