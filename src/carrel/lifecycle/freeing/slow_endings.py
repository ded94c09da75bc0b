"""Bounds the time that a pod without a booking takes to end, so that nobody keeps a GPU by ending slowly.

A pod that somebody deletes with a grace period of a year runs on for a year, holds its GPU, and is no victim of a
revocation, because it is ending. When it has had the longest grace (`EndLimits`) it is deleted again, with a short one;
an Event says so before. Kubernetes lets a second delete shorten the grace period, never lengthen it. A pod that a
booking covers may take its time.

`is_overdue` says of which pods nothing more can be expected: others lose their GPUs in their place.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from carrel.cluster.pod_progress import FINISHED, holder_of
from carrel.cluster.state import ClusterState
from carrel.kubernetes.cluster import ClusterError, DeleteOptions
from carrel.kubernetes.event_recorder import EventRecorder
from carrel.kubernetes.objects.events import WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS
from carrel.lifecycle.freeing.end_limits import EndLimits
from carrel.lifecycle.reporting.pod_events import COMPONENT
from carrel.parsing import Malformed
from carrel.parsing.time import instant, seconds

log = logging.getLogger(__name__)

ENDS_SLOWLY = "GPUPodEndsSlowly"
LAST_GRACE = timedelta(seconds=30)
"""What a pod gets that is deleted again; also the shortest time between the warning and that."""
LONGEST_S = 10**10
"""More need not be told exactly."""
KUBELET_TIME = timedelta(seconds=60)
"""So long after its time is over, the kubelet has ended a pod and reported it, unless something is wrong."""


class SlowEndings:
    def __init__(self, state: ClusterState, limits: EndLimits) -> None:
        self._state = state
        self._limits = limits
        self._events = EventRecorder(state.cluster, COMPONENT, state.options.now)
        self._warned: dict[str, datetime] = {}  # uid → when

    async def round(self) -> int:
        """Warns the pods that take too long, and deletes those again that were warned. How many were deleted."""
        slow = self._state.isolation.found(
            "ending", self._pods_with_gpus(), lambda pod: pod if self._is_slow(pod) else None
        )
        self._warned = {pod.metadata.uid: at for pod in slow if (at := self._warned.get(pod.metadata.uid)) is not None}
        return sum(await self._state.isolation.each("ending", slow, self._hurry))

    def _pods_with_gpus(self) -> Iterable[Pod]:
        return [pod for uid in tuple(self._state.ledger.holders()) for pod in self._state.claim_users.pods_of(uid)]

    def _is_slow(self, pod: Pod) -> bool:
        """Most pods are not ending: so who holds them by a booking is asked last."""
        return ends_slowly(pod, self._limits) and self._state.pod_facts.may_lose_gpus(pod)

    async def _hurry(self, pod: Pod) -> bool:
        metadata, now = pod.metadata, self._state.options.now()
        told = told_at(pod)
        due = (told if told is not None else self._warned.get(metadata.uid, now)) + self._limits.grace
        last = min(LAST_GRACE, self._limits.grace)
        if metadata.uid not in self._warned:
            try:
                await self._events.record(pod, slow_note(pod, max(due, now + last), last))
            except ClusterError as error:  # no reason to keep the GPU
                log.info("event_not_written pod=%s reason=%s: %s", holder_of(pod), ENDS_SLOWLY, error)
            self._warned[metadata.uid] = now
            return False
        if now < max(due, self._warned[metadata.uid] + last):
            return False
        last_s = int(last.total_seconds())
        how = DeleteOptions(uid=metadata.uid, grace_seconds=last_s)
        await self._state.cluster.delete(PODS, metadata.name, metadata.namespace, how=how)
        log.info("pod_deleted_again pod=%s uid=%s grace_s=%d", holder_of(pod), metadata.uid, last_s)
        return True


def slow_note(pod: Pod, ends_at: datetime, last: timedelta) -> Note:
    given = timedelta(seconds=min(pod.metadata.deletion_grace_period_seconds, LONGEST_S))
    return Note(
        ENDS_SLOWLY,
        f"this pod was told to end, with a grace period of {given}; without a booking it keeps its GPU no longer than"
        f" until {seconds(ends_at)}: then it is deleted again, with a grace period of {last}",
        WARNING,
    )


def ends_slowly(pod: Pod, limits: EndLimits) -> bool:
    """Whether it is ending, and has been given more time than a pod without a booking may have."""
    if not pod.metadata.deletion_timestamp or pod.status.phase in FINISHED:
        return False
    # Not as a timedelta: it may be any number of 64 bits, and then it is longer than all of them.
    return pod.metadata.deletion_grace_period_seconds > limits.grace.total_seconds()


def told_at(pod: Pod) -> datetime | None:
    """When a pod that is ending was told to. None: that cannot be read."""
    metadata = pod.metadata
    try:
        ends = instant(metadata.deletion_timestamp, f"pod {metadata.name}", "metadata.deletionTimestamp")
        return ends - timedelta(seconds=metadata.deletion_grace_period_seconds)
    except (Malformed, OverflowError):
        return None


def is_overdue(pod: Pod, now: datetime, limits: EndLimits) -> bool:
    """Whether a pod that is ending should be gone by now: it is not known when it will be, if ever."""
    told = told_at(pod)
    return told is None or now >= told + limits.grace + LAST_GRACE + KUBELET_TIME
