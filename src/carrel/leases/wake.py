"""Makes kube-scheduler look again, now, at pods that it has put aside.

It puts a pod that no node would take aside, and looks at it again when something happens that it believes could help,
or after a minute. A Lease that went or a gang that is complete is nothing to it, a changed pod is: so it is touched.
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
    that Carrel does not know. So at once, then ever more rarely; what the waking itself changes wakes nobody again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Seconds; only differences mean something."""
        self._clock = clock
        self._next: dict[str, tuple[float, float]] = {}  # uid → when at the earliest, and how long to wait then

    def is_due(self, uid: str) -> bool:
        """Whether to wake the pod now; who asks does so."""
        at, wait_s = self._next.get(uid, (self._clock(), SOON_S))
        if self._clock() < at:
            return False
        self._next[uid] = (self._clock() + wait_s, min(2 * wait_s, RARELY_S))
        return True

    def forget(self, uid: str) -> None:
        """The pod is placed, or gone, or something has changed for it."""
        self._next.pop(uid, None)


class SchedulerWaker:
    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def __call__(self, holders: Iterable[Holder]) -> None:
        """Returns at once. A pod that cannot be touched is looked at later, as it would be without us."""
        for holder in holders:
            if holder.uid not in self._under_way:
                task = asyncio.get_running_loop().create_task(self._touch(holder))
                self._under_way[holder.uid] = task
                task.add_done_callback(lambda _, uid=holder.uid: self._under_way.pop(uid, None))  # type: ignore[misc] # bound now

    async def _touch(self, holder: Holder) -> None:
        touch = MergePatch({"metadata": {"uid": holder.uid, "annotations": carrel.write_woken(self._now())}})
        try:
            await self._cluster.patch(PODS, holder.name, touch, holder.namespace)
        except ClusterError as error:
            log.info("pod_not_woken pod=%s: %s", holder, error)
