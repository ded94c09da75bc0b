"""Frees the GPUs of pods and claims that are gone: nothing else removes an ended holder from its Leases.

A pod is removed from a Lease only if the API server itself says that it cannot be using the GPU: it does not exist, has
another uid, has finished, or was not bound to that node in time. What a cache says is only a reason to ask. Of a pod
that is gone without having finished, its node must confirm that its containers are gone too
(`ConfirmedEnds`). The Lease is changed by its version, so a GPU that was taken again meanwhile is left
alone. What `claim_ends` says of a ResourceClaim is treated in the same way.

A node that is gone frees nothing by itself: it may come back with its pods still running, and until then no pod can be
placed there. Kubernetes deletes the pods of a lost node; each frees its GPUs when it is gone. A Lease that names no pod
is deleted, even if its GPU has another index now: such a Lease would make the GPU unusable.
"""

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import timedelta

from carrel.cluster.holders import HolderEnds
from carrel.cluster.pod_progress import FINISHED
from carrel.cluster.record.known_lease import KnownLease
from carrel.cluster.state import ClusterState
from carrel.dialects import visible_devices
from carrel.ids import HolderId, NodeName
from carrel.kubernetes.cluster import Json, NotFound
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.shares import Holder
from carrel.lifecycle.revoking.kept_gpus import KeptGpus, is_kept_for_next

KEPT_FOR_NEXT = timedelta(minutes=15)
"""How long a GPU that was taken back for a booking is kept when the pod that it was taken back for is gone. A notebook
hub gives up after some minutes, and its user tries again."""
FINISHED_POD = "the pod has finished"
TIME_TO_BIND_S = 60.0
"""A bind takes only a few calls from the Leases to the Binding; after this time it has failed."""


@dataclass(frozen=True, slots=True)
class FreedShare:
    holder: Holder
    node: NodeName
    index: int
    why: str


@dataclass(frozen=True, slots=True)
class _Unbound:
    """The bind that took a share, and when the collector first found that the pod was not bound."""

    mark: str
    since: float


class LeaseCollector:
    def __init__(self, state: ClusterState, other_ends: Callable[[], HolderEnds]) -> None:
        """`other_ends`: of holders that are no pods; asked for when a Lease names one."""
        self._state = state
        self._other_ends = other_ends
        self._cluster_ledger = state.cluster_ledger
        self._lease_writer = state.lease_writer
        self._pod_by_uid = state.pods.store.by_uid
        self._clock = state.options.clock
        self._kept = KeptGpus(state)
        self._ends = ConfirmedEnds(state)
        self._unbound: dict[tuple[str, HolderId], _Unbound] = {}  # Lease and uid

    async def collect(self) -> Sequence[FreedShare]:
        """One round over all Leases."""
        collected = await self._state.isolation.each("collection", self.due(), self.collect_lease)
        return [share for freed in collected for share in freed]

    def due(self) -> Sequence[str]:
        """The names of the Leases that may have something to free, by the caches."""
        leases = {lease.name: lease for lease in self._cluster_ledger.leases()}
        holders = {share.holder.uid for lease in leases.values() for share in lease.record.shares}
        self._ends.forget_all_but(holders)
        self._unbound = {
            (name, uid): seen
            for (name, uid), seen in self._unbound.items()
            if name in leases and leases[name].record.names(uid)
        }
        return self._state.isolation.found("collection", leases.values(), self._name_if_due, lambda lease: lease.name)

    def _name_if_due(self, lease: KnownLease) -> str | None:
        record = lease.record
        is_due = record.is_empty or any(self._absent_holders(lease)) or self._kept.is_in_vain(record)
        return lease.name if is_due else None

    def awaited_on(self, node: NodeName) -> list[str]:
        """The names of the Leases that name a pod which is gone, and of which the node has to confirm it."""
        uids = self._ends.awaited_on(node)
        return [lease.name for uid in uids for lease in self._cluster_ledger.leases_of(uid)]

    async def collect_lease(self, name: str) -> Sequence[FreedShare]:
        """Removes from one Lease every pod that, as the API server says, cannot be using the GPU."""
        freed = []
        lease = self._cluster_ledger.lease(name)
        for holder in self._absent_holders(lease) if lease else ():
            # Each removal changes the Lease: the next one needs its new version.
            lease = self._cluster_ledger.lease(name)
            why = await self._remove_if_over(lease, holder) if lease else ""
            if lease and why:
                freed.append(FreedShare(holder, lease.record.node, lease.record.index, why))
        left = self._cluster_ledger.lease(name)
        if left and left.record.kept_for and self._kept.is_in_vain(left.record):
            await self._lease_writer.stop_keeping(name, left.record.kept_for.uid)
        left = self._cluster_ledger.lease(name)
        if left and left.record.is_empty:
            await self._lease_writer.delete_if_empty(name)
        return freed

    def _absent_holders(self, lease: KnownLease) -> Sequence[Holder]:
        """The holders that the caches do not show on the node. A pod that the GPU is kept for need not be bound yet."""
        record, kept_for, absent = lease.record, lease.record.kept_for, []
        for holder in (share.holder for share in record.shares):
            if holder.is_claim:
                is_absent = self._other_ends().seems_over(holder, record)
            else:
                is_absent = self._node_of(holder) != record.node or self._has_others(lease, holder)
            if is_absent:
                absent.append(holder)
        if kept_for is not None and not is_kept_for_next(record) and self._node_of(kept_for) is None:
            absent.append(kept_for)
        return absent

    def _node_of(self, holder: Holder) -> NodeName | None:
        """The node of the pod by the caches; empty if it is not bound, None if it is gone or has finished."""
        pod = self._pod_by_uid(holder.uid)
        return None if pod is None or pod.status.phase in FINISHED else pod.spec.node_name

    def _has_others(self, lease: KnownLease, holder: Holder) -> bool:
        """Whether the pod was bound with other GPUs than this one, by another bind than the one that took this one.

        A bind that was interrupted may leave such a Lease. The pod's annotation is not enough, because a user could
        change it: the Leases of the GPUs that a pod was bound with have the mark of one bind in common.
        """
        pod, uid, record = self._pod_by_uid(holder.uid), holder.uid, lease.record
        annotated = visible_devices.bound_gpus(pod.metadata.annotations) if pod else frozenset()
        others = [each.record for each in self._cluster_ledger.leases_of(uid) if each.record.gpu in annotated]
        if not annotated or record.gpu in annotated or {each.gpu for each in others} != annotated:
            return False
        return not any(set(each.tries.get(uid, ())) & set(record.tries.get(uid, ())) for each in others)

    async def _remove_if_over(self, lease: KnownLease, holder: Holder) -> str:
        """Why the pod was removed from the Lease; empty if it was not."""
        if not holder.namespace:
            return ""  # another program wrote this Lease without the pod's name: an admin must look at it
        if holder.is_claim:
            return await self._remove_claim_if_over(lease, holder)
        try:
            pod = await self._state.cluster.get(PODS, holder.name, holder.namespace)
        except NotFound:
            pod = {}
        record, why, only_version = lease.record, _why_ended(pod, holder), ""
        is_elsewhere = not why and (pod["spec"].get("nodeName", "") != record.node or self._has_others(lease, holder))
        if why and holder == record.kept_for and not any(share.holder == holder for share in record.shares):
            return await self._keep_for_next(lease, holder, why)
        if why and why != FINISHED_POD and self._ends.why_unsure(holder.uid, record.node):
            return ""
        known = self._pod_by_uid(holder.uid)
        # Its gang runs already: it is to get the GPUs that were taken for it.
        is_awaited = known is not None and not known.spec.node_name and is_elsewhere and self._state.gang_runs(known)
        if is_elsewhere and holder != record.kept_for and not is_awaited and self._had_time(lease, holder):
            # It may be bound at this very moment. The bind writes the Lease first: then this write gets a conflict.
            why, only_version = f"the pod was not bound to {record.node}", lease.version
        if why and await self._lease_writer.remove_pod(
            record.node, record.index, holder.uid, only_version=only_version
        ):
            return why
        return ""

    async def _remove_claim_if_over(self, lease: KnownLease, holder: Holder) -> str:
        record, end = lease.record, await self._other_ends().end_of(holder, lease.record)
        if not end.why or (end.final_after_s and not self._had_time(lease, holder, end.final_after_s)):
            return ""
        # The gate may be saying yes to this claim at this very moment: then this write gets a conflict.
        is_removed = await self._lease_writer.remove_pod(
            record.node, record.index, holder.uid, only_version=lease.version
        )
        return end.why if is_removed else ""

    async def _keep_for_next(self, lease: KnownLease, holder: Holder, why: str) -> str:
        """The GPU was taken back for a booking: its next pod gets it, if it comes soon."""
        if lease.record.kept_booking and self._kept.is_running(lease.record.kept_booking):
            await self._lease_writer.keep_for_next(lease.name, holder.uid, self._state.options.now() + KEPT_FOR_NEXT)
            return ""
        await self._lease_writer.stop_keeping(lease.name, holder.uid)
        return why

    def _had_time(self, lease: KnownLease, holder: Holder, enough_s: float = TIME_TO_BIND_S) -> bool:
        """Counted on this process's clock from the first look: the clock of the Lease's writer may be wrong.

        Another bind of the same pod has its own time. Other pods that take or leave the GPU change nothing.
        """
        key, now = (lease.name, holder.uid), self._clock()
        mark = ",".join(lease.record.tries.get(holder.uid, ())) or lease.version
        seen = self._unbound.get(key)
        if seen is None or seen.mark != mark:
            self._unbound[key] = _Unbound(mark, now)
            return False
        return now - seen.since > enough_s


def _why_ended(pod: Json, holder: Holder) -> str:
    """Why a pod cannot be using any GPU; empty if it may."""
    if not pod:
        return "the pod is gone"
    if pod["metadata"]["uid"] != holder.uid:
        return "another pod has its name now"
    return FINISHED_POD if pod.get("status", {}).get("phase") in FINISHED else ""


REPORTS = 2


@dataclass(slots=True)
class _Reports:
    """What was heard of a node since a pod was found gone."""

    heartbeat: str
    new: int = 0


class ConfirmedEnds:
    """Whether a pod that is gone from the API server has really ended on its node.

    A kubelet removes a pod only when its containers are gone, and says before that the pod has finished. A pod that was
    deleted by force, or lost with its node's connection, is gone without that. Then its node must confirm it:

        the Node is gone                       nothing runs there any more
        its agent sees containers              two reports in a row, after the pod was found gone, name the pod neither
                                               as a user of a GPU nor among the orphans
        its agent does not, or there is none   nobody can say it: the API server's word counts

    An agent that is silent confirms nothing. The GPU stays set aside until it answers, or until an admin who knows
    better says `carrel release`. Reports are counted by their heartbeats; no clocks are compared. The first new one may
    have been under way when the pod was found gone.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._reports: dict[tuple[HolderId, NodeName], _Reports] = {}  # uid and node

    def forget_all_but(self, kept: AbstractSet[str]) -> None:
        self._reports = {key: seen for key, seen in self._reports.items() if key[0] in kept}

    def awaited_on(self, node: NodeName) -> set[HolderId]:
        """The uids of the pods that the node has to confirm."""
        return {uid for uid, where in self._reports if where == node}

    def why_unsure(self, uid: HolderId, node: NodeName) -> str:
        """Why a pod that is gone may still run on the node; empty if it does not. To be asked at each report."""
        last, status = self._state.gone_holders.get(uid), self._state.node_statuses.store.get(node)
        has_ended = last is not None and (last.status.phase in FINISHED or last.spec.node_name != node)
        if has_ended or self._state.nodes.store.get(node) is None or status is None or status.status.orphans is None:
            self._reports.pop((uid, node), None)
            return ""
        heartbeat = status.status.heartbeat
        seen = self._reports.setdefault((uid, node), _Reports(heartbeat))
        if uid in status.status.orphans or any(uid in device.in_use_by for device in status.status.devices):
            seen.heartbeat, seen.new = heartbeat, 0
            return f"its containers still run on {node}"
        if seen.heartbeat != heartbeat:
            seen.heartbeat, seen.new = heartbeat, seen.new + 1
        return "" if seen.new >= REPORTS else f"{node} has not confirmed yet that its containers are gone"
