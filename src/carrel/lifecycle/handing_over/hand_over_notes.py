"""What people are told about a hand-over to CPU, by Events and in words that are the same everywhere."""

from datetime import datetime

from carrel.dialects import hand_over_record
from carrel.dialects.hand_over_record import HandOver, HandOverPhase, Why
from carrel.kubernetes.objects.events import NORMAL, WARNING, Note
from carrel.kubernetes.objects.kinds import Pod
from carrel.parsing import Malformed
from carrel.parsing.time import seconds

REVOKED = "GPURevoked"
EXPIRED = "BookingEnded"
FULL = "NoGPUFree"
CALLED_OFF = "RevocationCalledOff"
HANDED_OVER = "HandedOverToCPU"

STAYS = Note(
    CALLED_OFF,
    "the GPU of this pod is not needed for a booked pod any more: the pod goes on, and keeps its GPU",
    NORMAL,
)


def end_note(record: HandOver, *, is_last: bool = False) -> Note:
    """`is_last`: its owner wants no successor."""
    after = "its controller replaces it without a GPU" if record.owner else "it is created again without a GPU"
    if is_last and not record.owner:
        after = "it is not created again"
    if record.why is Why.EXPIRED:
        return Note(EXPIRED, f"the booking of this pod ended at {seconds(record.due)}; {after}", WARNING)
    if record.why is Why.FULL:
        return Note(FULL, f"this pod has waited for a GPU, and none is free; {after}", WARNING)
    when = f"at {seconds(record.due)}" if record.phase is HandOverPhase.ANNOUNCED else "now"
    needed = "the GPU of this pod is needed for a booked pod"
    return Note(REVOKED, f"{needed}: the pod is ended {when}, and {after}", WARNING)


def handed_over_note(record: HandOver) -> Note:
    lost = "this pod got no GPU" if record.why is Why.FULL else "this pod lost its GPU"
    return Note(HANDED_OVER, f"{lost}: {loss_reason(record.why, record.decided)}; handed over to CPU", NORMAL)


def loss_reason(why: Why, at: datetime) -> str:
    """How a pod lost its GPU, in the words that people see everywhere."""
    when = seconds(at)
    if why is Why.FULL:
        return f"none was free until {when}"
    return f"its booking ended {when}" if why is Why.EXPIRED else f"revoked {when} for a booked pod"


def how_lost(pod: Pod) -> str:
    """How a pod lost its GPU; empty if it did not, or if its annotation cannot be read."""
    try:
        mark = hand_over_record.read_handed_over(pod)
    except Malformed:
        return ""
    return loss_reason(mark.why, mark.at) if mark else ""
