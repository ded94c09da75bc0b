"""How far a pod is: whether it waits, is ending, or has finished; and its name as a holder of shares."""

from datetime import UTC, datetime

from carrel.dialects import carrel
from carrel.dialects.gpu_lease import lease_name, read_lease_name
from carrel.dialects.kai_reservation import is_reservation
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.pods import gates_of
from carrel.ledger.shares import Holder, Share, ShareState
from carrel.parsing import Malformed
from carrel.parsing.time import instant

FINISHED = ("Succeeded", "Failed")
SCHEDULED = "PodScheduled"
NEWEST = datetime.max.replace(tzinfo=UTC)


def holder_of(pod: Pod) -> Holder:
    return Holder(pod.metadata.uid, pod.metadata.namespace, pod.metadata.name)


def is_ending(pod: Pod) -> bool:
    """It is being deleted, or has finished."""
    return bool(pod.metadata.deletion_timestamp) or pod.status.phase in FINISHED


def is_waiting(pod: Pod) -> bool:
    """For a GPU. A pod with scheduling gates wants none yet: no GPU is revoked or left free for it."""
    is_over = pod.metadata.deletion_timestamp or pod.status.phase in FINISHED
    return not (pod.spec.node_name or is_over or gates_of(pod))


def could_not_be_scheduled(pod: Pod) -> bool:
    """The scheduler has tried to place it, without success."""
    return any(each.type == SCHEDULED and each.status == "False" for each in pod.status.conditions)


def created_at(pod: Pod) -> datetime:
    """A pod whose time cannot be read, or that is not created yet, counts as the newest."""
    if not pod.metadata.creation_timestamp:
        return NEWEST
    try:
        return instant(pod.metadata.creation_timestamp, f"pod {pod.metadata.name}", "metadata.creationTimestamp")
    except Malformed:
        return NEWEST


def bound_at(pod: Pod) -> datetime | None:
    """None: it is not bound, or nobody says when it was."""
    for condition in pod.status.conditions:
        if condition.type == SCHEDULED and condition.status == "True":
            try:
                return instant(condition.last_transition_time, f"pod {pod.metadata.name}", SCHEDULED)
            except Malformed:
                break
    return None


def state_of(share: Share, pod: Pod | None) -> ShareState:
    """How far a share is. `pod`: its holder, or the pod whose GPUs those of its holder are; None: it is not known."""
    if pod is None:
        return share.state
    if is_ending(pod):
        return ShareState.RELEASING
    return ShareState.ASSIGNED if pod.status.phase == "Running" else share.state


def slot_of(pod: Pod) -> str:
    """The name of the Lease of a reservation pod's slot; empty if it is no reservation pod, or not Carrel's."""
    name = pod.metadata.annotations.get(carrel.RESERVED_LEASE, "")
    place = read_lease_name(name) if is_reservation(pod) else None
    return lease_name(*place) if place else ""
