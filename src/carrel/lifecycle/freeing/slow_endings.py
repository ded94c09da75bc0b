"""Bounds the time that a pod without a booking takes to end, so that nobody keeps a GPU by ending slowly; and the time
for which a disruption budget may keep it.

A pod that somebody deletes with a grace period of a year runs on for a year, holds its GPU, and is no victim of a
revocation, because it is ending. When it has had the longest grace it is deleted again, with a short one;
an Event says so before. Kubernetes lets a second delete shorten the grace period, never lengthen it. A pod that a
booking covers may take its time.

`is_overdue` says of which pods nothing more can be expected: others lose their GPUs in their place.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from carrel.cluster.pod_progress import FINISHED, holder_of
from carrel.cluster.state import ClusterState
from carrel.ids import HolderId
from carrel.kubernetes.cluster import DeleteOptions
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.lifecycle.reporting.pod_events import COMPONENT
from carrel.parsing import Malformed
from carrel.parsing.time import instant

log = logging.getLogger(__name__)

ENDS_SLOWLY = "GPUPodEndsSlowly"
LAST_GRACE = timedelta(seconds=30)
"""What a pod gets that is deleted again; also the shortest time between the warning and that."""
LONGEST_S = 10**10
"""More need not be told exactly."""
KUBELET_TIME = timedelta(seconds=60)
"""So long after its time is over, the kubelet has ended a pod and reported it, unless something is wrong."""
LONGEST_DELAY = timedelta(minutes=10)
"""For how long a disruption budget may delay the end of a pod whose GPU is revoked."""
FORGET_AFTER = timedelta(hours=20)
"""So long after a budget's protection is over, the next revocation is a new one, and the budget may delay it again."""


class SlowEndings:
    def __init__(self, state: ClusterState, longest_grace: timedelta) -> None:
        self._state = state
        self._longest = longest_grace
        self._events = EventRecorder(state.cluster, COMPONENT, state.options.now)
        self._warned: dict[HolderId, datetime] = {}  # uid → when

    async def round(self) -> int:
        """Warns the pods that take too long, and deletes those again that were warned. How many were deleted."""
        holders = tuple(self._state.ledger.holders())
        pods = [pod for uid in holders for pod in self._state.holders.pods_of(uid)]
        slow = self._state.isolation.found("ending", pods, self._if_slow)
        self._warned = {pod.metadata.uid: at for pod in slow if (at := self._warned.get(pod.metadata.uid)) is not None}
        return sum(await self._state.isolation.each("ending", slow, self._hurry))

    def _if_slow(self, pod: Pod) -> Pod | None:
        """Most pods are not ending: so who holds them by a booking is asked last."""
        if not pod.metadata.deletion_timestamp or pod.status.phase in FINISHED:
            return None
        # Not as a timedelta: it may be any number of 64 bits, and then it is longer than all of them.
        is_slow = pod.metadata.deletion_grace_period_seconds > self._longest.total_seconds()
        return pod if is_slow and self._state.pod_facts.may_lose_gpus(pod) else None

    async def _hurry(self, pod: Pod) -> bool:
        metadata, now = pod.metadata, self._state.options.now()
        told = told_at(pod)
        due = (told if told is not None else self._warned.get(metadata.uid, now)) + self._longest
        last = min(LAST_GRACE, self._longest)
        if metadata.uid not in self._warned:
            await self._events.try_record(pod, slow_note(pod, self._state.words.when(max(due, now + last)), last))
            self._warned[metadata.uid] = now
            return False
        if now < max(due, self._warned[metadata.uid] + last):
            return False
        last_s = int(last.total_seconds())
        how = DeleteOptions(uid=metadata.uid, grace_seconds=last_s)
        await self._state.cluster.delete(PODS, metadata.name, metadata.namespace, how=how)
        log.info("pod_deleted_again pod=%s uid=%s grace_s=%d", holder_of(pod), metadata.uid, last_s)
        return True


def slow_note(pod: Pod, ends_at: str, last: timedelta) -> Note:
    given = timedelta(seconds=min(pod.metadata.deletion_grace_period_seconds, LONGEST_S))
    return Note(
        ENDS_SLOWLY,
        f"this pod was told to end, with a grace period of {given}; without a booking it keeps its GPU no longer than"
        f" until {ends_at}: then it is deleted again, with a grace period of {last}",
        WARNING,
    )


def told_at(pod: Pod) -> datetime | None:
    """When a pod that is ending was told to. None: that cannot be read."""
    metadata = pod.metadata
    try:
        ends = instant(metadata.deletion_timestamp, f"pod {metadata.name}", "metadata.deletionTimestamp")
        return ends - timedelta(seconds=metadata.deletion_grace_period_seconds)
    except (Malformed, OverflowError):
        return None


def is_overdue(pod: Pod, now: datetime, longest_grace: timedelta) -> bool:
    """Whether a pod that is ending should be gone by now: it is not known when it will be, if ever."""
    told = told_at(pod)
    return told is None or now >= told + longest_grace + LAST_GRACE + KUBELET_TIME


class BudgetDelays:
    """Which pods a disruption budget keeps, and since when.

    Only this process remembers it. After a restart the time of a pod counts from when its hand-over was due.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._since: dict[HolderId, datetime] = {}  # uid → when an eviction was first refused

    def refused(self, uid: HolderId, due: datetime) -> bool:
        """An eviction was refused; it was due then. Whether the budget may still keep the pod."""
        now, since = self._now(), self._since.get(uid)
        if since is None or now >= since + LONGEST_DELAY + FORGET_AFTER:
            since = self._since[uid] = now
        return now < min(since, due) + LONGEST_DELAY

    def kept(self) -> set[HolderId]:
        """The uids of all pods that a budget keeps now, as far as this process has tried: others should lose their GPUs
        instead."""
        return {uid for uid, since in self._since.items() if self._now() < since + LONGEST_DELAY}

    def forget(self, uid: HolderId) -> None:
        """The pod is gone."""
        self._since.pop(uid, None)
