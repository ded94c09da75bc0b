"""Finds the pod with which a controller (Job, ReplicaSet …) has replaced one that lost its GPU."""

from collections.abc import Mapping
from datetime import datetime

from carrel.cluster.watches import NAMESPACE_OF
from carrel.dialects import hand_over_record
from carrel.dialects.hand_over_record import HandedOver, HandOver
from carrel.kubernetes.cluster import Cluster, Conflict, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.store import Store
from carrel.parsing import Malformed
from carrel.parsing.time import instant


class Replacements:
    def __init__(self, cluster: Cluster, pods: Store[Pod]) -> None:
        self._cluster = cluster
        self._pods = pods

    async def is_there(self, record: HandOver) -> bool:
        """The webhook writes on a replacement which pod it succeeds; without the webhook there is no such mark.

        The webhook does not know the pods. If several pods of one controller lose their GPUs at once, it may write the
        same pod on all replacements: then the second one that names it counts as the replacement of this record's pod.
        """
        pods = self._pods.find(NAMESPACE_OF, record.place[0])
        by_age = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp, pod.metadata.name))
        named: set[str] = set()
        spare: list[Pod] = []
        for pod in by_age:
            if not (origin := origin_of(pod.metadata.annotations)):
                continue
            if origin in named and _is_made_by(pod, record.owner, since=record.decided):
                spare.append(pod)
            named.add(origin)
        return record.uid in named or (bool(spare) and await self._mark(spare[0], record))

    async def _mark(self, pod: Pod, record: HandOver) -> bool:
        """Only in the version of the cache: another record may have got it meanwhile."""
        as_seen = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        notes = hand_over_record.write_handed_over(HandedOver(record.lost_at, record.why, record.uid))
        try:
            patch = MergePatch({"metadata": {**as_seen, "annotations": notes}})
            await self._cluster.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)
        except (NotFound, Conflict):
            return False
        return True


def origin_of(annotations: Mapping[str, str]) -> str:
    """The uid of the pod that a pod with these annotations succeeds; empty if none."""
    try:
        mark = hand_over_record.handed_over(annotations, "pod")
    except Malformed:
        return ""
    return mark.origin if mark else ""


def _is_made_by(pod: Pod, owner: str, since: datetime) -> bool:
    is_its_own = any(each.controller and each.uid == owner for each in pod.metadata.owner_references)
    try:
        made = instant(pod.metadata.creation_timestamp, f"pod {pod.metadata.name}", "metadata.creationTimestamp")
    except Malformed:
        return False
    return is_its_own and made >= since
