"""Keeps the notice on each pod true: what the person in it should know now (`dialects.notice`).

It follows from what is written on the pod: that it is about to lose its GPU, that it has lost it, or that it was warned
of its booking's end. So a notice goes by itself when a revocation is called off or a booking is extended.
"""

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects.carrel import HANDED_OVER, LEAVE_BY, NOTICE, TIER, WARNED
from carrel.dialects.hand_over_record import notice_of, read_handed_over
from carrel.dialects.maia import TERMINATE_AT
from carrel.dialects.notice import ENDED, booking_notice, revocation_notice, what_follows
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.tiers import AtEnd
from carrel.lifecycle.freeing.expiry import end_of
from carrel.parsing import Malformed
from carrel.parsing.time import instant, seconds

CONCERNED = (TIER, HANDED_OVER, NOTICE)


class Notices:
    def __init__(self, state: ClusterState, at_end: AtEnd) -> None:
        self._state = state
        self._at_end = at_end

    async def round(self) -> None:
        due = self._state.isolation.found("notice", self._state.pods.store.snapshot(), self._if_due)
        await self._state.isolation.each("notice", due, self._write)

    def _if_due(self, pod: Pod) -> Pod | None:
        notes = pod.metadata.annotations
        is_concerned = any(key in notes for key in CONCERNED) and not is_ending(pod)
        return pod if is_concerned and notes.get(NOTICE, "") != notice(pod, self._at_end) else None

    async def _write(self, pod: Pod) -> None:
        metadata = pod.metadata
        as_seen = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        notes = {NOTICE: notice(pod, self._at_end) or None}
        patch = MergePatch({"metadata": {**as_seen, "annotations": notes}})
        await self._state.cluster.patch(PODS, metadata.name, patch, metadata.namespace)


def notice(pod: Pod, at_end: AtEnd) -> str:
    """What is true now; empty if there is nothing to say, or if what is written on the pod cannot be read."""
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    try:
        if LEAVE_BY in notes:
            return revocation_notice(instant(notes[LEAVE_BY], where, annotation_field(LEAVE_BY)), _what_follows(pod))
        if (mark := read_handed_over(pod)) is not None:
            return notice_of(mark)
    except Malformed:
        return ""
    if WARNED not in notes or TERMINATE_AT not in notes:
        return ""  # nearly all pods: an instant need not be read
    end = end_of(pod)
    if end is None or notes[WARNED].partition(" ")[0] != seconds(end):
        return ""  # the warning was about another end
    return booking_notice(end, ENDED if at_end is AtEnd.END else _what_follows(pod))


def _what_follows(pod: Pod) -> str:
    has_controller = any(owner.controller for owner in pod.metadata.owner_references)
    return what_follows(pod.metadata.annotations, has_controller=has_controller)
