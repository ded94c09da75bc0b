"""Asks kube-scheduler to retry pods that it could not place, and on which node first.

It tries such a pod again when something changes that may help, or after a minute. It ignores a Lease that was deleted
and a gang that is complete, but not a change of the pod itself: so the pod gets an annotation.

In a large cluster kube-scheduler looks at a part of the nodes for each pod, and asks the extender about no others. But
first it tries the node that `status.nominatedNodeName` says, alone. A nomination gives the pod nothing. kube-scheduler
leaves the CPU and memory there to the pod, so a nomination that has no use any more is removed.

The nomination and the annotation that wakes the pod are one write: a change of the status alone wakes no pod, and a pod
that is woken earlier would be tried elsewhere.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime

from carrel.dialects import carrel
from carrel.ids import HolderId, NodeName
from carrel.kubernetes.cluster import Cluster, ClusterError, Conflict, Invalid, JsonPatch, MergePatch, NotFound
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.shares import Holder

log = logging.getLogger(__name__)


SOON_S, RARELY_S = 15.0, 240.0


class WakeLimiter:
    """How often a pod is woken that has room and is not placed: the scheduler may have missed that, or may have reasons
    that Carrel does not know. So at once, then less and less often; the change by the waking itself wakes no pod."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Seconds; only differences mean something."""
        self._clock = clock
        self._next: dict[HolderId, tuple[float, float]] = {}  # uid → when at the earliest, and how long to wait then

    def is_due(self, uid: HolderId) -> bool:
        """Whether to wake the pod now. If so, the caller wakes it."""
        at, wait_s = self._next.get(uid, (self._clock(), SOON_S))
        if self._clock() < at:
            return False
        self._next[uid] = (self._clock() + wait_s, min(2 * wait_s, RARELY_S))
        return True

    def forget(self, uid: HolderId) -> None:
        """The pod is placed or gone, or has room that it had not before."""
        self._next.pop(uid, None)


class SchedulerWaker:
    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._under_way: dict[HolderId, asyncio.Task[None]] = {}

    def __call__(self, holders: Iterable[Holder]) -> None:
        """Returns at once. A pod that cannot be changed is tried later, as it would be without this."""
        for holder in holders:
            if holder.uid not in self._under_way:
                task = asyncio.get_running_loop().create_task(self.touch(holder))
                self._under_way[holder.uid] = task
                task.add_done_callback(lambda _, uid=holder.uid: self._under_way.pop(uid, None))  # type: ignore[misc] # bound now

    async def touch(self, holder: Holder) -> None:
        """Returns when the API server has answered."""
        touch = MergePatch({"metadata": {"uid": holder.uid, "annotations": carrel.write_woken(self._now())}})
        try:
            await self._cluster.patch(PODS, holder.name, touch, holder.namespace)
        except ClusterError as error:
            log.info("pod_not_woken pod=%s: %s", holder, error)


Write = Callable[[Holder, NodeName], Awaitable[None]]


class Nominations:
    """Writes to one pod follow each other; of those that have not begun, only the last is made."""

    def __init__(self, cluster: Cluster, now: Callable[[], datetime], wake: SchedulerWaker) -> None:
        """`wake`: for a pod that cannot be nominated."""
        self._cluster = cluster
        self._now = now
        self._wake = wake
        self._next: dict[HolderId, tuple[Write, NodeName]] = {}  # uid → what is to be written, and about which node
        self._under_way: dict[HolderId, asyncio.Task[None]] = {}

    def nominate(self, nodes: Mapping[Holder, NodeName]) -> None:
        """Returns at once. A pod that cannot be nominated is woken, as it would be without this."""
        for holder, node in nodes.items():
            self._write_next(holder, self._nominate, node)

    def withdraw(self, nodes: Mapping[Holder, NodeName]) -> None:
        """Returns at once. What somebody else has nominated meanwhile stays."""
        for holder, node in nodes.items():
            self._write_next(holder, self._withdraw, node)

    @property
    def are_written(self) -> bool:
        """Whether the API server has answered all of them."""
        return not self._under_way

    def _write_next(self, holder: Holder, write: Write, node: NodeName) -> None:
        self._next[holder.uid] = (write, node)
        if holder.uid not in self._under_way:
            self._under_way[holder.uid] = asyncio.get_running_loop().create_task(self._write_all(holder))

    async def _write_all(self, holder: Holder) -> None:
        try:
            while (following := self._next.pop(holder.uid, None)) is not None:
                write, node = following
                await write(holder, node)
        finally:
            del self._under_way[holder.uid]

    async def _nominate(self, holder: Holder, node: NodeName) -> None:
        metadata = {"uid": holder.uid, "annotations": carrel.write_woken(self._now())}
        patch = MergePatch({"metadata": metadata, "status": {"nominatedNodeName": node}})
        try:
            await self._cluster.patch(PODS, holder.name, patch, holder.namespace, subresource="status")
        except (NotFound, Conflict):
            pass  # the pod is gone
        except ClusterError as error:
            log.warning("pod_not_nominated pod=%s node=%s: %s", holder, node, error)
            await self._wake.touch(holder)

    async def _withdraw(self, holder: Holder, node: NodeName) -> None:
        nominated = "/status/nominatedNodeName"
        patch = JsonPatch(
            [
                {"op": "test", "path": "/metadata/uid", "value": holder.uid},
                {"op": "test", "path": nominated, "value": node},
                {"op": "remove", "path": nominated},
            ]
        )
        try:
            await self._cluster.patch(PODS, holder.name, patch, holder.namespace, subresource="status")
        except (NotFound, Conflict, Invalid):
            pass  # the pod or the nomination is gone
        except ClusterError as error:
            log.info("nomination_not_withdrawn pod=%s node=%s: %s", holder, node, error)
