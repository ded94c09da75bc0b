"""Makes kube-scheduler try pods again at once that it could not place.

It tries such a pod again when something changes that may help, or after a minute. It ignores a Lease that was deleted
and a gang that is complete, but not a change of the pod itself: so the pod gets an annotation.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from carrel.dialects import carrel
from carrel.kubernetes.cluster import Cluster, ClusterError, MergePatch
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
        self._next: dict[str, tuple[float, float]] = {}  # uid → when at the earliest, and how long to wait then

    def is_due(self, uid: str) -> bool:
        """Whether to wake the pod now. If so, the caller wakes it."""
        at, wait_s = self._next.get(uid, (self._clock(), SOON_S))
        if self._clock() < at:
            return False
        self._next[uid] = (self._clock() + wait_s, min(2 * wait_s, RARELY_S))
        return True

    def forget(self, uid: str) -> None:
        """The pod is placed or gone, or has room that it had not before."""
        self._next.pop(uid, None)


class SchedulerWaker:
    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._under_way: dict[str, asyncio.Task[None]] = {}

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
