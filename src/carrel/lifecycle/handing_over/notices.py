"""What people are told about the end of a pod: by a notice on the pod that is kept true, and by Events.

A notice (`dialects.notice`) says what the person in the pod should know now. It follows from what is written on the
pod: that it is about to lose its GPU, that it has lost it, or that it was warned of its booking's end. So a notice goes
by itself when a revocation is called off or a booking is extended.
"""

from datetime import datetime, tzinfo

from carrel.cluster.pod_progress import is_ending
from carrel.cluster.state import ClusterState
from carrel.dialects import hand_over_record
from carrel.dialects.carrel import HANDED_OVER, LEAVE_BY, NOTICE, TIER, WARNED
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why, notice_of, read_handed_over
from carrel.dialects.notice import ENDED, booking_notice, revocation_notice, what_follows
from carrel.dialects.tier import TERMINATE_AT, read_terminate_at
from carrel.kubernetes.cluster import MergePatch
from carrel.kubernetes.objects.events import NORMAL, WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import annotation_field, subject
from carrel.kubernetes.objects.resources import PODS
from carrel.ledger.tiers import AtEnd
from carrel.parsing import Malformed
from carrel.parsing.time import instant, local, moment, seconds

STAYS = Note(
    "RevocationCalledOff",
    "the GPU of this pod is not needed for a booked pod any more: the pod goes on, and keeps its GPU",
    NORMAL,
)


class Notices:
    def __init__(self, state: ClusterState, at_end: AtEnd) -> None:
        self._state = state
        self._at_end = at_end

    async def round(self) -> None:
        due = self._state.isolation.found("notice", self._state.pods.store, self._if_due)
        await self._state.isolation.each("notice", due, self._write)

    def _if_due(self, pod: Pod) -> Pod | None:
        notes = pod.metadata.annotations
        is_concerned = (TIER in notes or HANDED_OVER in notes or NOTICE in notes) and not is_ending(pod)
        return pod if is_concerned and notes.get(NOTICE, "") != self._notice(pod) else None

    def _notice(self, pod: Pod) -> str:
        return notice(pod, self._at_end, self._state.options.zone)

    async def _write(self, pod: Pod) -> None:
        metadata = pod.metadata
        as_seen = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
        notes = {NOTICE: self._notice(pod) or None}
        patch = MergePatch({"metadata": {**as_seen, "annotations": notes}})
        await self._state.cluster.patch(PODS, metadata.name, patch, metadata.namespace)


def notice(pod: Pod, at_end: AtEnd, zone: tzinfo) -> str:
    """What is true now; empty if there is nothing to say, or if what is written on the pod cannot be read."""
    notes, where = pod.metadata.annotations, subject(pod.metadata)
    has_controller = any(owner.controller for owner in pod.metadata.owner_references)
    try:
        if LEAVE_BY in notes:
            leave_by = instant(notes[LEAVE_BY], where, annotation_field(LEAVE_BY))
            return revocation_notice(leave_by, what_follows(notes, has_controller=has_controller), zone)
        if (mark := read_handed_over(pod)) is not None:
            return notice_of(mark, zone)
    except Malformed:
        return ""
    if WARNED not in notes or TERMINATE_AT not in notes:
        return ""  # nearly all pods: an instant need not be read
    end = end_of(pod)
    if end is None or notes[WARNED].partition(" ")[0] != seconds(end):
        return ""  # the warning was about another end
    then = ENDED if at_end is AtEnd.END else what_follows(notes, has_controller=has_controller)
    return booking_notice(end, then, zone)


def end_of(pod: Pod) -> datetime | None:
    """When the pod has to end, as is written on it; None: it has no end, or none that can be read."""
    try:
        end = read_terminate_at(pod)
    except Malformed:
        return None
    return end if isinstance(end, datetime) else None


# --- Events ----------------------------------------------------------------------------------------------------------


def end_note(record: HandOver, zone: tzinfo, *, is_last: bool = False) -> Note:
    """`is_last`: its owner wants no successor."""
    after = "its controller replaces it without a GPU" if record.owner else "it is created again without a GPU"
    if is_last and not record.owner:
        after = "it is not created again"
    if record.why is Why.EXPIRED:
        return Note("BookingEnded", f"the booking of this pod ended at {moment(record.due, zone)}; {after}", WARNING)
    if record.why is Why.FULL:
        return Note("NoGPUFree", f"this pod has waited for a GPU, and none is free; {after}", WARNING)
    # To the second: the minute alone may have begun already.
    when = f"at {moment(record.due, zone)}" if record.phase is HandOverPhase.ANNOUNCED else "now"
    needed = "the GPU of this pod is needed for a booked pod"
    return Note("GPURevoked", f"{needed}: the pod is ended {when}, and {after}", WARNING)


def handed_over_note(record: HandOver, zone: tzinfo) -> Note:
    lost = "this pod got no GPU" if record.why is Why.FULL else "this pod lost its GPU"
    reason = loss_reason(record.why, record.decided, zone)
    return Note("HandedOverToCPU", f"{lost}: {reason}; handed over to CPU", NORMAL)


def loss_reason(why: Why, at: datetime, zone: tzinfo) -> str:
    """How a pod lost its GPU, in the words that people see everywhere."""
    when = local(at, zone)
    if why is Why.FULL:
        return f"none was free until {when}"
    return f"its booking ended {when}" if why is Why.EXPIRED else f"revoked {when} for a booked pod"


def how_lost(pod: Pod, zone: tzinfo) -> str:
    """How a pod lost its GPU; empty if it did not, or if its annotation cannot be read."""
    try:
        mark = hand_over_record.read_handed_over(pod)
    except Malformed:
        return ""
    return loss_reason(mark.why, mark.at, zone) if mark else ""
