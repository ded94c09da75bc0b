"""Frees the cards of pods that are gone: the Leases do not know when a pod ends, and nobody else tells them.

A share is taken off its Lease only if the API server itself says that the pod cannot be using the card: it does not
exist, has another uid, has finished, or was never bound to that node although there was time enough. What a cache says
is only a reason to ask. The Lease is changed by its version, so a card that was taken anew meanwhile is left alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from carrel.core.shares import Share
from carrel.ports.cluster import Cluster, Json, NotFound
from carrel.protocols import Malformed
from carrel.protocols.kubernetes.resources import LEASES, PODS
from carrel.protocols.kubernetes.shapes import Pod
from carrel.protocols.kubernetes.time import instant
from carrel.usecases.hold import Cards
from carrel.usecases.observe import FINISHED, Books, KnownLease

TIME_TO_BIND = timedelta(seconds=60)
"""Between taking a Lease and writing the Binding lies one call, or the wait for a gang; later than this it failed."""


@dataclass(frozen=True, slots=True)
class Freed:
    share: Share
    node: str
    index: int
    why: str


class Collector:
    def __init__(
        self,
        books: Books,
        cards: Cards,
        cluster: Cluster,
        pod_by_uid: Callable[[str], Pod | None],
        now: Callable[[], datetime],
    ) -> None:
        self._books = books
        self._cards = cards
        self._cluster = cluster
        self._pod_by_uid = pod_by_uid
        self._now = now

    async def collect(self) -> list[Freed]:
        """One round over all Leases. To be called when a pod has gone, and every so often."""
        freed = []
        for lease in self._books.leases():
            for share in lease.record.shares:
                if not self._may_be_over(lease, share):
                    continue
                why = await self._why_over(lease, share)
                if why:
                    await self._cards.strike(lease.record.node, lease.record.index, share.holder.uid)
                    freed.append(Freed(share, lease.record.node, lease.record.index, why))
        return freed

    def _may_be_over(self, lease: KnownLease, share: Share) -> bool:
        """By what we have seen, without asking anybody."""
        pod = self._pod_by_uid(share.holder.uid)
        return pod is None or pod.status.phase in FINISHED or pod.spec.node_name != lease.record.node

    async def _why_over(self, lease: KnownLease, share: Share) -> str:
        """By what the API server says now. Empty: the pod may be using the card."""
        namespace, _, name = share.holder.name.partition("/")
        if not name:
            return ""  # somebody else wrote this Lease, and does not say whose the uid is: a person must look
        try:
            pod = await self._cluster.get(PODS, name, namespace)
        except NotFound:
            return "the pod is gone"
        if pod["metadata"]["uid"] != share.holder.uid:
            return "another pod has its name now"
        if pod.get("status", {}).get("phase") in FINISHED:
            return "the pod has finished"
        if _node_of(pod) != lease.record.node and self._had_time(lease):
            return f"the pod was not bound to {lease.record.node}"
        return ""

    def _had_time(self, lease: KnownLease) -> bool:
        try:
            written = instant(lease.written_at, f"{LEASES.kind} {lease.name}", "spec.renewTime")
        except Malformed:
            return False
        return self._now() - written > TIME_TO_BIND


def _node_of(pod: Json) -> str:
    return str(pod["spec"].get("nodeName", ""))
