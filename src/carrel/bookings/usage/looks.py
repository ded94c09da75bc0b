"""Looks at the cluster for the usage counter: who holds which GPU, and what the GPUs are used for."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from carrel.bookings.usage.counter import GpuLook, HeldPart
from carrel.cluster.gpu_activities import GpuActivities
from carrel.cluster.pod_progress import bound_at
from carrel.cluster.record.shown_gpus import shown_gpus
from carrel.cluster.state import ClusterState
from carrel.dialects.tier import person_of
from carrel.ids import HolderId
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.ledger import GpuEntry
from carrel.ledger.shares import Share


class ClusterLooks:
    """To be created before the informers run."""

    def __init__(self, carrel: ClusterState, activities: GpuActivities) -> None:
        self._carrel = carrel
        self._activities = activities
        self._changed: dict[HolderId, datetime] = {}
        carrel.cluster_ledger.on_shares(self._on_shares)

    @property
    def is_possible(self) -> bool:
        """False: what is known of the cluster is not complete, or old. Who held what meanwhile is told afterwards."""
        watches = self._carrel.pods, self._carrel.leases
        return self._carrel.informers.is_synced and not any(each.failures for each in watches)

    def take(self, with_usage: bool) -> Sequence[GpuLook]:
        """Return all GPUs as they are. `with_usage`: and what they are used for."""
        now, found = self._carrel.options.now(), []
        for node in self._carrel.ledger.nodes:
            usages = self._activities.usages.of_node(node) if with_usage else {}
            for entry in shown_gpus(self._carrel.cluster_ledger, node):
                gpu = entry.gpu
                usage = usages.get(gpu.uuid)
                lowest = self._activities.lowest_watts(gpu.model, usage, now) if usage is not None else None
                found.append(GpuLook(gpu.uuid, gpu.model, self._holdings(entry), usage, lowest))
        return found

    def changed(self) -> Mapping[HolderId, datetime]:
        """Return when these holders have got or given back GPUs since this was last asked."""
        changed, self._changed = self._changed, {}
        return changed

    def _on_shares(self, uids: Iterable[HolderId]) -> None:
        self._changed |= dict.fromkeys(uids, self._carrel.options.now())

    def _holdings(self, entry: GpuEntry) -> Sequence[HeldPart]:
        return [self._holding(entry, uid, share) for uid, share in entry.shares.items()]

    def _holding(self, entry: GpuEntry, uid: HolderId, share: Share) -> HeldPart:
        part = entry.held(share) / entry.gpu.memory
        pod = self._carrel.holders.pod_of(uid) or self._carrel.gone_holders.get(uid)
        if pod is None:
            return HeldPart(uid, part=part, of=entry.gpu.part)
        otherwise = HeldPart(uid, part=part, of=entry.gpu.part)
        return self._carrel.isolation.ask("usage", pod, lambda pod: self._known(otherwise, pod), otherwise)

    def _known(self, holding: HeldPart, pod: Pod) -> HeldPart:
        tier = self._carrel.covered_pods.tier(pod)
        return replace(holding, person=person_of(pod), tier=tier, since=bound_at(pod))
