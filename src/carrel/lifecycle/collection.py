"""Frees the cards of pods that are gone: the Leases do not know when a pod ends, and nobody else tells them.

A pod is taken off a Lease only if the API server itself says that it cannot be using the card: it does not exist, has
another uid, has finished, or was never bound to that node although there was time enough. What a cache says is only a
reason to ask. The Lease is changed by its version, so a card that was taken anew meanwhile is left alone.

A node that is gone frees nothing by itself: it may come back with its pods still running, and until then nobody can be
placed there. Kubernetes deletes the pods of a lost node; each frees its cards when it is gone. A Lease that names
nobody is deleted, wherever its card is: left behind by a card that was renumbered, it would keep that card set aside.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carrel.dialects import carrel
from carrel.kubernetes.cluster import Cluster, ClusterError, Json, NotFound
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.objects.shapes import Pod
from carrel.leases.cluster_ledger import ClusterLedger, KnownLease, PodByUid
from carrel.leases.lease_writer import LeaseWriter
from carrel.leases.pods import FINISHED
from carrel.ledger.shares import Holder

log = logging.getLogger(__name__)

TIME_TO_BIND_S = 60.0
"""Between taking the Leases and writing the Binding lie a few calls; after this it failed."""


@dataclass(frozen=True, slots=True)
class Freed:
    holder: Holder
    node: str
    index: int
    why: str


@dataclass(frozen=True, slots=True)
class _Unbound:
    """The bind that took a share, and when we first found that the pod was not bound."""

    mark: str
    since: float


@dataclass(frozen=True, slots=True)
class CollectionContext:
    """Who is asked about a pod."""

    cluster: Cluster
    pod_by_uid: PodByUid
    gang_runs: Callable[[Pod], bool]
    """Whether other members of the pod's gang are bound: then its own cards are not given to anybody else."""
    clock: Callable[[], float]
    """Seconds; only differences mean something. Not the wall's, which may jump."""


class Collector:
    def __init__(self, cluster_ledger: ClusterLedger, lease_writer: LeaseWriter, context: CollectionContext) -> None:
        self._cluster_ledger = cluster_ledger
        self._lease_writer = lease_writer
        self._cluster = context.cluster
        self._pod_by_uid = context.pod_by_uid
        self._gang_runs = context.gang_runs
        self._clock = context.clock
        self._unbound: dict[tuple[str, str], _Unbound] = {}  # Lease and uid

    async def collect(self) -> Sequence[Freed]:
        """One round over all Leases. One that cannot be written now does not keep the others waiting."""
        freed: list[Freed] = []
        for name in self.due():
            try:
                freed += await self.look_at(name)
            except ClusterError as error:
                log.warning("lease_not_collected lease=%s: %s", name, error)
        return freed

    def due(self) -> Sequence[str]:
        """The Leases that there is a reason to look at, by what we have seen, without asking anybody."""
        leases = {lease.name: lease for lease in self._cluster_ledger.leases()}
        self._unbound = {
            (name, uid): seen
            for (name, uid), seen in self._unbound.items()
            if name in leases and leases[name].record.names(uid)
        }
        return [
            name
            for name, lease in leases.items()
            if lease.record.is_empty or any(self._suspects(lease)) or self._is_served(lease.record.kept_for)
        ]

    async def look_at(self, name: str) -> Sequence[Freed]:
        """Takes off one Lease whoever the API server says cannot be using the card."""
        freed = []
        lease = self._cluster_ledger.lease(name)
        for holder in self._suspects(lease) if lease else ():
            # Each strike changes the Lease: the next one is about what it says then.
            lease = self._cluster_ledger.lease(name)
            why = await self._free(lease, holder) if lease else ""
            if lease and why:
                freed.append(Freed(holder, lease.record.node, lease.record.index, why))
        left = self._cluster_ledger.lease(name)
        if left and left.record.kept_for and self._is_served(left.record.kept_for):
            await self._lease_writer.keep_no_more(name, left.record.kept_for.uid)
        left = self._cluster_ledger.lease(name)
        if left and left.record.is_empty:
            await self._lease_writer.discard(name)
        return freed

    def _suspects(self, lease: KnownLease) -> Sequence[Holder]:
        """Whom our caches do not show on the card. The pod that a card is kept for need not be there yet."""
        record = lease.record
        absent = [
            share.holder
            for share in record.shares
            if self._node_of(share.holder) != record.node or self._has_others(lease, share.holder)
        ]
        if record.kept_for is not None and self._node_of(record.kept_for) is None:
            absent.append(record.kept_for)
        return absent

    def _is_served(self, kept_for: Holder | None) -> bool:
        """Whether the pod that a card is kept for has been bound."""
        return kept_for is not None and bool(self._node_of(kept_for))

    def _node_of(self, holder: Holder) -> str | None:
        """Where our caches show the pod, still running; empty if it is not bound, None if it is gone or finished."""
        pod = self._pod_by_uid(holder.uid)
        return None if pod is None or pod.status.phase in FINISHED else pod.spec.node_name

    def _has_others(self, lease: KnownLease, holder: Holder) -> bool:
        """Whether the pod was bound with other cards than this one, by another bind than the one that took this one.

        A bind that was cut short may leave such a Lease. What the pod was told is not enough, because a user could
        change it: the cards that a pod was bound with have the mark of one bind in common.
        """
        pod, uid, record = self._pod_by_uid(holder.uid), holder.uid, lease.record
        told = carrel.told_cards(pod.metadata.annotations) if pod else frozenset()
        others = [each.record for each in self._cluster_ledger.leases_of(uid) if each.record.gpu in told]
        if not told or record.gpu in told or {each.gpu for each in others} != told:
            return False
        return not any(set(each.tries.get(uid, ())) & set(record.tries.get(uid, ())) for each in others)

    async def _free(self, lease: KnownLease, holder: Holder) -> str:
        """Why the pod was taken off the Lease; empty if it was not."""
        if not holder.namespace:
            return ""  # somebody else wrote this Lease, and does not say whose the uid is: a person must look
        pod, record = await self._pod_of(holder), lease.record
        why, only_version = _why_over(pod, holder), ""
        is_elsewhere = not why and (_node_of(pod) != record.node or self._has_others(lease, holder))
        spared = holder == record.kept_for or self._is_awaited(holder)
        if is_elsewhere and not spared and self._had_time(lease, holder):
            # It may be bound at this very moment. Whoever binds it writes the Lease first: then ours is too late.
            why, only_version = f"the pod was not bound to {record.node}", lease.version
        if why and await self._lease_writer.strike(record.node, record.index, holder.uid, only_version=only_version):
            return why
        return ""

    def _is_awaited(self, holder: Holder) -> bool:
        """By its gang, part of which runs already: it is to have the cards that were taken for it."""
        pod = self._pod_by_uid(holder.uid)
        return pod is not None and not pod.spec.node_name and self._gang_runs(pod)

    async def _pod_of(self, holder: Holder) -> Json:
        """The pod of that name, as the API server has it now; empty if there is none."""
        try:
            return await self._cluster.get(PODS, holder.name, holder.namespace)
        except NotFound:
            return {}

    def _had_time(self, lease: KnownLease, holder: Holder) -> bool:
        """Counted on our own clock from when we first saw it so: the clock of whoever wrote the Lease may be wrong.

        Another bind of the same pod has time of its own. Other pods that come to the card and go change nothing.
        """
        key, now = (lease.name, holder.uid), self._clock()
        mark = ",".join(lease.record.tries.get(holder.uid, ())) or lease.version
        seen = self._unbound.get(key)
        if seen is None or seen.mark != mark:
            self._unbound[key] = _Unbound(mark, now)
            return False
        return now - seen.since > TIME_TO_BIND_S


def _why_over(pod: Json, holder: Holder) -> str:
    """Why a pod cannot be using any card; empty if it may."""
    if not pod:
        return "the pod is gone"
    if pod["metadata"]["uid"] != holder.uid:
        return "another pod has its name now"
    return "the pod has finished" if pod.get("status", {}).get("phase") in FINISHED else ""


def _node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))
