"""Writes KAI's labels and ConfigMaps for fraction pods, for tools that read them.

They are copies of what the Leases say; nothing in Carrel reads them. A Binding cannot carry them, so they are written
when the pod is bound. The pod owns the ConfigMaps, and they are deleted with it; existing ones are left alone.
"""

import contextlib
from collections.abc import Sequence
from fractions import Fraction

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.state import ClusterState
from carrel.dialects import kai, visible_devices
from carrel.dialects.interface import PodRequest
from carrel.dialects.kai_reservation import group_of
from carrel.kubernetes.cluster import AlreadyExists, Conflict, Json, MergePatch, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import CONFIG_MAPS, PODS
from carrel.ledger.requests import ContainerNeed, Portion
from carrel.ledger.slots import ReservationState


class KaiMetadataWriter:
    def __init__(self, state: ClusterState) -> None:
        self._cluster = state.cluster
        self._cluster_ledger = state.cluster_ledger
        self._pod_facts = state.pod_facts

    def may_be_due(self, pod: Pod) -> bool:
        """Bound, asked for in KAI's dialect, and not labelled yet: the label is written last."""
        notes = pod.metadata.annotations
        is_told = notes.get(kai.CONFIG_MAP_PREFIX) == kai.prefix_for(pod.metadata.name, pod.metadata.uid)
        return is_told and not is_ending(pod) and not kai.read_groups(pod.metadata.labels)

    async def write(self, pod: Pod) -> bool:
        """Whether it was written: only if the Leases confirm the pod's annotations."""
        asked = self._pod_facts.asked(pod) if self.may_be_due(pod) else None
        leases = [
            each for each in self._cluster_ledger.leases_of(pod.metadata.uid) if each.record.node == pod.spec.node_name
        ]
        if not isinstance(asked, PodRequest) or kai.CONFIG_MAP_PREFIX not in asked.dialect.written_annotations:
            return False
        if len(leases) != asked.request.gpus or not all(map(self._visible_name, leases)):
            return False
        for need in asked.request.containers:
            await self._write_maps(pod, need, leases)
        labels = kai.group_labels([group_of(lease.name) for lease in leases])
        patch = MergePatch({"metadata": {"uid": pod.metadata.uid, "labels": labels}})
        try:
            await self._cluster.patch(PODS, pod.metadata.name, patch, pod.metadata.namespace)
        except (NotFound, Conflict):
            return False
        return True

    async def _write_maps(self, pod: Pod, need: ContainerNeed, leases: Sequence[KnownLease]) -> None:
        containers = pod.spec.init_containers if need.init else pod.spec.containers
        place = [container.name for container in containers].index(need.container)
        slot = self._cluster_ledger.ledger.entry(leases[0].record.gpu)
        amount = need.amount
        part = (
            amount.part
            if isinstance(amount, Portion)
            else Fraction(amount.mib, slot.gpu.memory if slot else amount.mib)
        )
        prefix = kai.prefix_for(pod.metadata.name, pod.metadata.uid)
        shared = kai.SharedGpu(prefix, place, need.init, tuple(map(self._visible_name, leases)), part)
        for name in (shared.name, shared.env_name):
            with contextlib.suppress(AlreadyExists):  # written before a crash, or by its owner
                await self._cluster.create(CONFIG_MAPS, _config_map(name, shared, pod), pod.metadata.namespace)

    def _visible_name(self, lease: KnownLease) -> str:
        """Of a slot, only while a reservation pod holds its GPU."""
        record, reservation = lease.record, lease.record.reservation
        if self._cluster_ledger.kubelet_chooses(record.node):
            is_held = reservation is not None and reservation.state is ReservationState.HELD
            return reservation.gpu if reservation is not None and is_held else ""
        entry = self._cluster_ledger.ledger.entry(record.gpu)
        return visible_devices.visible_name(entry.gpu) if entry is not None else ""


def _config_map(name: str, shared: kai.SharedGpu, pod: Pod) -> Json:
    owner = {"apiVersion": PODS.api_version, "kind": PODS.kind, "name": pod.metadata.name, "uid": pod.metadata.uid}
    return {
        "apiVersion": CONFIG_MAPS.api_version,
        "kind": CONFIG_MAPS.kind,
        "metadata": {"name": name, "ownerReferences": [owner]},
        "data": shared.data(),
    }
